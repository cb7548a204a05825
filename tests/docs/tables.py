"""The tables of the README that are made from the code. `python -m tests.docs.tables` writes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import msgspec

from journal.events import EVENTS
from reconciler.commands.run import HELP
from reconciler.core import vocabulary
from reconciler.core.vocabulary import TRANSIENT_REASONS, Reason
from reconciler.observe.metrics import METRICS
from reconciler.settings import RunOptions
from tests.tidy.source import ROOT

README = ROOT / "README.md"

REASONS = {
    Reason.UNKNOWN_CLASS: "the class does not exist; the message lists those that do",
    Reason.CLASS_DELETED: "the class is being deleted",
    Reason.COUNT_ABOVE_MAXIMUM: "more units than the class allows in one order",
    Reason.NOT_PERMITTED: "KubeVirt's permittedHostDevices does not list the resource name",
    Reason.NOT_ENTITLED: "a vGPU class, and the nearest tenant upward that says anything says no",
    Reason.BUDGET_UNREADABLE: "a budget on the way up cannot be read",
    Reason.BUDGET_EXCEEDED: "a tenant's budget, this one's or one above, would be exceeded",
    Reason.NO_FREE_UNITS: "too few units are free",
    Reason.NO_NODE_FITS: "no single node can take it",
    Reason.HOLDS_WOULD_NOT_FIT: "orders already held could no longer all start",
    Reason.MALFORMED_REFERENCES: "the annotation is not a list of references; the message names the position",
    Reason.MISSING_REFERENCES: "label or annotation without the other",
    Reason.DUPLICATE_REFERENCE: "one device is named twice",
    Reason.NAME_REQUIRED: "generateName with references: the devices need to know whose they are",
    Reason.RAW_NAME_FORBIDDEN: "a GPU asked for by resource name where the policy forbids it",
    Reason.UNKNOWN_DEVICE: "no such device in the namespace",
    Reason.DEVICE_DELETED: "the device is being deleted",
    Reason.DEVICE_NOT_HELD: "the order is still Pending",
    Reason.DEVICE_LOST: "the device's node no longer serves it",
    Reason.DEVICE_ATTACHED: "another VM has the device",
    Reason.BIND_TIMEOUT: "the binder did not answer in time; everything was undone",
    Reason.NOT_PLACED: "a launcher whose devices are on no node",
    Reason.MIGRATION_UNSUPPORTED: "a live-migration target: its devices are on the source's node",
    Reason.RESERVED_FIELD: "a field or annotation only the binder may write",
    Reason.IMMUTABLE_FIELD: "an order's class and count never change; make a new one",
    Reason.TEMPLATE_MARK_RESERVED: "the template mark is the webhooks' alone",
    Reason.MALFORMED_REVIEW: "the request cannot be read",
    Reason.NAMESPACE_TERMINATING: "the namespace is being deleted",
    Reason.NOT_READY: "this replica cannot answer yet, or could not reach the API server; try again",
}


def reasons() -> list[str]:
    rows = [
        f"| `{reason.value}` | {REASONS[reason]} | {'yes' if reason in TRANSIENT_REASONS else 'no'} |"
        for reason in Reason
    ]
    return ["| reason | meaning | may pass by itself |", "| --- | --- | --- |", *rows]


def names() -> list[str]:
    source = inspect.getsource(vocabulary)
    found = re.findall(r'^([A-Z_]+) = (f?"[^"]+")\n"""(.+?)"""', source, re.M | re.S)
    rows = [f"| `{getattr(vocabulary, name)}` | {' '.join(text.split())} |" for name, _, text in found]
    return ["| key | meaning |", "| --- | --- |", *rows]


def events() -> list[str]:
    def first(event: type) -> str:
        text = inspect.getdoc(event) or ""
        return " ".join(text.split("\n\n")[0].split()) or "As its name says."

    rows = [f"| `{name}` | {first(event)} |" for name, event in EVENTS.items()]
    return ["| event | what happened |", "| --- | --- |", *rows]


def flags() -> list[str]:
    rows = []
    for field in msgspec.structs.fields(RunOptions):
        default = "required" if field.default is msgspec.NODEFAULT else f"`{field.default}`"
        default = "" if default in ("`None`", "``") else default
        rows.append(f"| `--{field.name.replace('_', '-')}` | {default} | {HELP[field.name]} |")
    return ["| flag | default | meaning |", "| --- | --- | --- |", *rows]


def metrics() -> list[str]:
    rows = [f"| `{name}` | {', '.join(found.labels)} | {found.help} |" for name, found in METRICS.items()]
    return ["| metric | labels | meaning |", "| --- | --- | --- |", *rows]


TABLES: dict[str, Callable[[], list[str]]] = {
    "reasons": reasons,
    "names": names,
    "events": events,
    "flags": flags,
    "metrics": metrics,
}


def rendered(text: str) -> str:
    """The README with every table as the code has it."""
    for name, table in TABLES.items():
        body = "\n".join(table())
        pattern = rf"<!-- table: {name} -->\n.*?<!-- end -->"
        replacement = f"<!-- table: {name} -->\n{body}\n<!-- end -->"
        text = re.sub(pattern, lambda _: replacement, text, flags=re.S)  # noqa: B023
    return text


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
