"""The README matches the code: tables are current, commands and paths exist, the two commands work."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from journal.events import EVENTS
from reconciler.billing.prices import load
from reconciler.commands import exit_codes
from reconciler.commands.exit_codes import EXIT_CODES
from reconciler.core.metering.usage_records import UsageState
from reconciler.core.model.vocabulary import REASONS, Reason
from reconciler.core.upkeep import publish
from reconciler.main import main
from reconciler.runtime.observability import event_messages
from tests.docs.tables import PRICED, README, TABLES, commands, rendered
from tests.tidy.source import ROOT

TEXT = README.read_text()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_tables_are_the_code_s(name: str) -> None:
    assert f"<!-- table: {name} -->" in TEXT
    assert rendered(TEXT) == TEXT, "run `python -m tests.docs.tables`"


def test_every_reason_is_explained() -> None:
    assert set(REASONS) == set(Reason)


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_every_event_says_what_happened(name: str) -> None:
    """An inherited docstring does not count."""
    assert vars(EVENTS[name]).get("__doc__")


def test_every_exit_code_has_its_meaning() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_") and isinstance(value, int)}
    assert set(EXIT_CODES) == codes | {0}


def test_every_flag_has_its_help() -> None:
    for name, command in commands():
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, f"{name} {option.name}"


def test_every_reason_of_an_event_is_explained() -> None:
    """N4: decisions' reasons and those of problems stand in `notices`, a class's where its conditions are made."""
    told = {reason for _, reason in event_messages._WORDS.values() if reason}
    problems = {event_messages.UNMATCHED_BUDGET_KEY, event_messages.UNREADABLE_BUDGET, event_messages.UNREADABLE}
    source = inspect.getsource(publish._readiness) + inspect.getsource(publish.class_status)
    conditions = set(re.findall(r'"([A-Z][A-Za-z]+)"', source))
    assert set(event_messages.NOTICES) == told | problems | conditions | {"a reason of a refusal"}


def test_the_price_book_of_the_readme_is_one(tmp_path: Path) -> None:
    """U3: every state has its price in the example."""
    (example,) = re.findall(r"```yaml\n(currency: .*?)```", TEXT, re.S)
    path = tmp_path / "prices.yaml"
    path.write_text(example)
    book, july = load(path), 1_785_000_000_000
    keys = {state: "nvidia.com/GA102GL_A10" if state is UsageState.RAW else "a10" for state in UsageState}
    paid = {state: book.spans(key, state, july, july + 1)[0][2].per_unit_hour for state, key in keys.items()}
    assert str(paid[UsageState.BOUND]) == "2.20" and str(paid[UsageState.RAW]) == "3.10"
    assert set(PRICED) == set(UsageState)


def test_every_command_of_the_readme_exists_and_every_command_is_in_the_readme() -> None:
    named = set(re.findall(r"gpu-binder ([a-z][a-z-]+)", TEXT)) - {"run", "chart", "exec"}
    assert named <= set(main.commands), named - set(main.commands)
    assert set(main.commands) - named <= {"run"}


def test_every_file_the_readme_names_exists() -> None:
    for path in re.findall(r"`((?:journal|reconciler|webhooks|chart|tests)/[\w./]+)`", TEXT):
        assert (ROOT / path).exists(), path


def test_the_demo_plays_and_its_journal_answers(tmp_path: Path) -> None:
    """J7: what the first command leaves can be verified and explained, under any hash seed (J2)."""
    journal = tmp_path / "demo.db"
    told = _run("demo", "--journal", str(journal))
    for phrase in ("BudgetExceeded", "NoFreeUnits", "Lost", "nothing has moved", "all the same"):
        assert phrase in told
    for seed in ("0", "1", "4242"):
        assert "all the same" in _run("verify", str(journal), seed=seed)
    explained = _run("explain", str(journal), "vmi", "tenant-acme/wide")
    assert re.search(r"gpu-1 .* no .* 3 .* 1 ", explained), explained


def _run(*arguments: str, seed: str = "random") -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from reconciler.main import main; main()", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
