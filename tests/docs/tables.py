"""README tables generated from the code. `python -m tests.docs.tables` writes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from journal.events import EVENTS
from reconciler.cluster.port import ClusterError
from reconciler.cluster.retry_policies import POLICIES, RetryPolicy
from reconciler.commands.exit_codes import EXIT_CODES
from reconciler.core.metering.usage_records import UsageState
from reconciler.core.model import vocabulary
from reconciler.core.model.vocabulary import REASONS, TRANSIENT_REASONS
from reconciler.main import main
from reconciler.runtime.observability.event_messages import NOTICES
from reconciler.runtime.observability.logs import LOG_FIELDS
from reconciler.runtime.observability.metrics import METRICS
from tests.tidy.source import ROOT

README = ROOT / "README.md"

PRICED = {
    UsageState.BOUND: "the units are on a node",
    UsageState.HELD: "the units are set aside and run nowhere",
    UsageState.LOST: "the node no longer serves the units",
    UsageState.RAW: "a pod's GPU request that no device covers; priced by resource name",
}


def reasons() -> list[str]:
    rows = [
        f"| `{reason.value}` | {meaning} | {'yes' if reason in TRANSIENT_REASONS else 'no'} |"
        for reason, meaning in REASONS.items()
    ]
    return ["| reason | meaning | may pass by itself |", "| --- | --- | --- |", *rows]


def names() -> list[str]:
    source = inspect.getsource(vocabulary)
    found = re.findall(r'^([A-Z_]+) = (f?"[^"]+")\n"""(.+?)"""', source, re.M | re.S)
    rows = [f"| `{getattr(vocabulary, name)}` | {' '.join(text.split())} |" for name, _, text in found]
    return ["| key | meaning |", "| --- | --- |", *rows]


def events() -> list[str]:
    def first(event: type) -> str:
        text = inspect.cleandoc(vars(event).get("__doc__") or "")
        return " ".join(text.split("\n\n")[0].split())

    rows = [f"| `{name}` | {first(event)} |" for name, event in EVENTS.items()]
    return ["| event | what happened |", "| --- | --- |", *rows]


def commands(group: click.Group = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every leaf command, by its full name."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def flags() -> list[str]:
    return _flags({"run": main.commands["run"]}, "flag")


def other_flags() -> list[str]:
    return _flags({name: command for name, command in commands() if name != "run"}, "command and flag")


def _flags(found: dict[str, click.Command], title: str) -> list[str]:
    rows = []
    for name, command in found.items():
        for option in command.params:
            if not isinstance(option, click.Option):
                continue
            spelled = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
            where = "" if title == "flag" else f"`{name}` "
            rows.append(f"| {where}{spelled} | {_default(option)} | {' '.join((option.help or '').split())} |")
    return [f"| {title} | default | meaning |", "| --- | --- | --- |", *rows]


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    # click's own mark for "no default" is no value to show.
    shown = option.to_info_dict()["default"]
    plain = isinstance(shown, str | int | float | Path) and not isinstance(shown, bool)
    return f"`{shown}`" if plain and str(shown) else ""


def exit_codes() -> list[str]:
    return ["| code | meaning |", "| --- | --- |", *(f"| {code} | {said} |" for code, said in EXIT_CODES.items())]


def log_fields() -> list[str]:
    rows = [f"| `{name}` | {said} |" for name, said in LOG_FIELDS.items()]
    return ["| field | what it holds |", "| --- | --- |", *rows]


def notices() -> list[str]:
    rows = [f"| {_code(reason)} | {about} | {said} |" for reason, (about, said) in NOTICES.items()]
    return ["| reason | on | meaning |", "| --- | --- | --- |", *rows]


def _code(reason: str) -> str:
    return reason if " " in reason else f"`{reason}`"


def prices() -> list[str]:
    rows = [f"| `{state.value}` | {PRICED[state]} |" for state in UsageState]
    return ["| state | what is paid for |", "| --- | --- |", *rows]


def metrics() -> list[str]:
    rows = [f"| `{name}` | {', '.join(found.labels)} | {found.help} |" for name, found in METRICS.items()]
    return ["| metric | labels | meaning |", "| --- | --- | --- |", *rows]


def retries() -> list[str]:
    rows = [
        f"| {name} | {policy.purpose} | {_errors(policy.errors)} | {_errors(policy.never)} | {_delays(policy)} "
        f"| {policy.attempts or 'no limit'} |"
        for name, policy in POLICIES.items()
    ]
    title = "| policy | what is retried | on | never on | seconds between calls | calls at most |"
    return [title, "| --- | --- | --- | --- | --- | --- |", *rows]


def _errors(errors: tuple[type[ClusterError], ...]) -> str:
    return ", ".join("any error" if error is ClusterError else f"`{error.__name__}`" for error in errors)


def _delays(policy: RetryPolicy) -> str:
    first, longest = policy.first_seconds, policy.longest_seconds
    if first == longest:
        return f"{first:g}"
    return f"{first:g} doubling to {longest:g}" + (", with jitter" if policy.jitter else "")


TABLES: dict[str, Callable[[], list[str]]] = {
    "reasons": reasons,
    "names": names,
    "events": events,
    "flags": flags,
    "other-flags": other_flags,
    "exit-codes": exit_codes,
    "log-fields": log_fields,
    "retries": retries,
    "notices": notices,
    "prices": prices,
    "metrics": metrics,
}


def rendered(text: str) -> str:
    """The README with every table regenerated."""
    for name, table in TABLES.items():
        body = "\n".join(table())
        pattern = rf"<!-- table: {name} -->\n.*?<!-- end -->"
        replacement = f"<!-- table: {name} -->\n{body}\n<!-- end -->"
        text = re.sub(pattern, lambda _: replacement, text, flags=re.S)  # noqa: B023
    return text


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
