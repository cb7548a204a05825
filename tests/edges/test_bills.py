"""Billing commands: price books, statements of idle journals, the table (U2, U3)."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result
from freezegun import freeze_time

from journal.sqlite import SqliteJournal
from journal.store import MemoryJournal
from reconciler.demo.environment import Environment
from tests.edges.cli import run
from tests.edges.test_export import story

PERIOD = ("--from", "2026-01-01", "--to", "2026-01-02")


def used(journal: Path) -> set[tuple[str, str]]:
    """(SKU, state) of everything the journal recorded."""
    found = [json.loads(line) for line in run("usage", str(journal), "--open").stdout.splitlines()]
    return {(one["class"] or one["resourceName"], one["state"]) for one in found}


def book(tmp_path: Path, prices: dict[str, dict[str, str]], since: str = "2026-01-01") -> Path:
    path = tmp_path / "prices.yaml"
    entries = {key: [{"from": since, **states}] for key, states in prices.items()}
    path.write_text(json.dumps({"currency": "EUR", "prices": entries}))
    return path


def whole(journal: Path) -> dict[str, dict[str, str]]:
    """A price for everything."""
    prices: dict[str, dict[str, str]] = {}
    for key, state in sorted(used(journal)):
        prices.setdefault(key, {})[state] = "0.7"
    return prices


def bill(journal: Path, prices: Path, *more: str) -> Result:
    with freeze_time("2026-02-01T00:00:00Z"):
        return run("usage", str(journal), "--format", "focus", *PERIOD, "--prices", str(prices), *more)


@pytest.mark.parametrize("lacks", ["state", "class"])
def test_u3_a_state_or_class_without_a_price_is_one_clear_error(lacks: str, journal: Path, tmp_path: Path) -> None:
    """U3: exit 2, one sentence, no part of a bill on standard output or in the file."""
    prices = whole(journal)
    key, state = next((key, state) for key, state in sorted(used(journal)) if len(prices[key]) > 1)
    if lacks == "state":
        del prices[key][state]
    else:
        del prices[key]
    file = book(tmp_path, prices)
    found = bill(journal, file)
    assert (found.exit_code, found.stdout) == (2, "")
    assert f"{file} has no price for '{key}' " in found.stderr and f"under prices.{key} with a `from`" in found.stderr
    out = tmp_path / "bill.csv"
    assert bill(journal, file, "--out", str(out)).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_u3_two_prices_of_one_date_are_one_clear_error(journal: Path, tmp_path: Path) -> None:
    """U3: neither wins, whether in two entries or as a key given twice."""
    twice = tmp_path / "twice.yaml"
    twice.write_text(
        "currency: EUR\nprices: {a10: [{from: 2026-01-01, held: 1}, {from: 2026-01-01, held: 2, bound: 1}]}"
    )
    says = "has two prices for 'a10' held from 2026-01-01: 1 and 2"
    for found in (bill(journal, twice), run("prices", "check", str(twice))):
        assert found.exit_code == 2 and says in found.stderr
    for text in (
        "currency: EUR\nprices: {a10: [{from: 2026-01-01, held: 1, held: 2}]}",
        "currency: EUR\nprices:\n  a10: [{from: 2026-01-01, held: 1}]\n  a10: [{from: 2026-01-01, held: 2}]",
    ):
        twice.write_text(text)
        found = run("prices", "check", str(twice))
        assert found.exit_code == 2 and "stands twice in one map, the second time in line" in found.stderr


def test_u3_prices_check_tells_everything_that_is_missing_at_once(journal: Path, tmp_path: Path) -> None:
    """U3: all of it, before the bill."""
    prices = whole(journal)
    good = book(tmp_path, prices)
    found = run("prices", "check", str(good), str(journal))
    assert (found.exit_code, found.stderr) == (0, "")
    assert "Prices per unit and hour in EUR" in found.stdout and "used from" in found.stdout
    assert run("prices", "check", str(good)).exit_code == 0
    late = book(tmp_path, prices, since="2026-06-01")
    found = run("prices", "check", str(late), str(journal), "-o", "json")
    assert found.exit_code == 1
    assert len(json.loads(found.stdout)["missing"]) == len(used(journal)) == len(found.stderr.splitlines())


async def test_u2_a_running_replica_marks_its_idle_journal_without_an_entry() -> None:
    """U2, J3: an idle hour moves the mark along and writes nothing."""
    env, journal = Environment(), MemoryJournal()
    await env.open()
    await env.add_replica(journal, "binder-0")
    await env.later(180)
    entries, before = journal.last_seq, journal.watched_until
    await env.later(3600)
    assert journal.last_seq == entries
    assert before < journal.watched_until <= env.time.clock()
    assert env.time.clock() - journal.watched_until < 10 * 60_000
    await env.close()


def test_u2_an_idle_journal_bills_until_its_mark(tmp_path: Path) -> None:
    """U2, J3: an idle cluster writes no entry, and its held order is billed all the same."""
    world = story()
    world.order("d1")
    path, begin = tmp_path / "journal.db", world.at
    journal = SqliteJournal(path)
    for batch, entry in enumerate(world.entries, 1):
        journal.append([entry.event], at=entry.at, batch=batch)
    entries = journal.last_seq
    journal.mark(begin + 40 * 86_400_000)
    assert journal.last_seq == entries
    journal.close()
    period = ("--from", "1970-01-02", "--to", "1970-02-01")
    found = run("usage", str(path), "--format", "focus", *period)
    (charge,) = csv.DictReader(StringIO(found.stdout))
    assert charge["ConsumedQuantity"] == f"{30 * 86_400}.0"
