"""Billing commands: price books, statements of idle journals, the table (U2, U3)."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result
from freezegun import freeze_time

from journal import events
from journal.events import Entry
from journal.sqlite import SqliteJournal
from journal.store import MemoryJournal
from reconciler.billing.export import plain
from reconciler.core import snapshot
from reconciler.core.fold import fold
from reconciler.core.model.objects import DEVICE
from reconciler.core.state.placement_state import PlacementState
from reconciler.demo.environment import Environment
from tests.core.test_usage_twin import Story
from tests.core.world import NS
from tests.edges.cli import run
from tests.edges.test_export import FIRST, story

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
    assert env.time.clock() - journal.watched_until < 1000, "a stopped replica leaves its last mark"


# Statements of journals that do not reach the end of the period

JANUARY = ("--from", "1970-01-01", "--to", "1970-02-01")
FEBRUARY = ("--from", "1970-02-01", "--to", "1970-03-01")
DAY = 86_400_000
FEBRUARY_BEGINS = 31 * DAY


def written(path: Path, entries: list[Entry], mark: int = 0) -> str:
    """A closed journal at `path`, with a mark (ms) if not 0."""
    journal = SqliteJournal(path)
    for batch, entry in enumerate(entries, 1):
        journal.append([entry.event], at=entry.at, batch=batch)
    if mark:
        journal.mark(mark)
    journal.close()
    return str(path)


def quiet_month(tmp_path: Path) -> tuple[Story, list[Entry]]:
    """Two orders held since the beginning and nothing else all January; in February one of them is deleted. The
    entries until then, and the world with all of them."""
    world = story()
    world.order("d1")
    world.order("d2", count=2)
    entries = list(world.entries)
    world.at = 40 * DAY
    world.tell(events.TimeReached())
    world.gone(DEVICE, NS, "d2")
    return world, entries


def statement(files: Sequence[str], period: Sequence[str], *more: str) -> Result:
    return run("usage", *files, "--format", "focus", *period, *more)


def quantities(found: Result) -> dict[tuple[str, str], Decimal]:
    """GPU-seconds by resource and charge class."""
    assert found.exit_code == 0, found.stderr
    sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for row in csv.DictReader(StringIO(found.stdout)):
        sums[row["ResourceName"].partition("/")[2], row["ChargeClass"]] += Decimal(row["ConsumedQuantity"])
    return dict(sums)


def test_u2_a_quiet_month_bills_the_same_from_the_idle_copy_a_later_one_and_both_replicas(tmp_path: Path) -> None:
    """U2, U3, J3: byte for byte."""
    world, entries = quiet_month(tmp_path)
    idle = written(tmp_path / "idle.db", entries, mark=FEBRUARY_BEGINS + 2 * 3_600_000)
    later = written(tmp_path / "later.db", world.entries)
    other = written(tmp_path / "other.db", world.follower())
    first = statement([idle], JANUARY)
    assert quantities(first) == {
        ("d1", ""): Decimal(FEBRUARY_BEGINS - FIRST) / 1000,
        ("d2", ""): Decimal(FEBRUARY_BEGINS - FIRST) / 500,
    }
    for files in ([later], [other], [idle, later], [idle, other], [other, later]):
        assert statement(files, JANUARY).stdout == first.stdout


def test_u3_a_period_that_the_journal_does_not_cover_is_refused(tmp_path: Path) -> None:
    """U2, U3: one sentence with the time, no part of a bill; without usage in progress a note is enough."""
    world, entries = quiet_month(tmp_path)
    idle = written(tmp_path / "idle.db", entries)
    for form in ("focus", "table"):
        found = run("usage", idle, "--format", form, *JANUARY)
        assert (found.exit_code, found.stdout) == (1, "")
        assert found.stderr.startswith("gpu-binder: the journals are complete only until 1970-01-01T00:16:40.000Z: ")
        assert "would lack the rest of 2 intervals" in found.stderr and "--provisional" in found.stderr
    out = tmp_path / "bill.csv"
    assert statement([idle], JANUARY, "--out", str(out)).exit_code == 1 and not out.exists()
    late = written(tmp_path / "late.db", entries, mark=FEBRUARY_BEGINS + 60_000)
    assert "would lack facts that may still come in" in statement([late], JANUARY).stderr
    world.gone(DEVICE, NS, "d1")
    ended = statement([written(tmp_path / "ended.db", world.entries)], ("--from", "1970-01-01", "--to", "1970-04-01"))
    assert ended.exit_code == 0 and "when nothing was in use" in ended.stderr


@freeze_time("1970-02-01T00:30:00Z")
def test_u3_a_period_that_has_not_closed_is_refused(tmp_path: Path) -> None:
    """U3: late facts may still come in, whatever the journal covers."""
    _, entries = quiet_month(tmp_path)
    found = statement([written(tmp_path / "idle.db", entries, mark=FEBRUARY_BEGINS)], JANUARY)
    assert found.exit_code == 1
    assert "the period closes at 1970-02-01T01:00:00.000Z" in found.stderr


def test_u3_what_a_provisional_statement_lacked_comes_as_corrections(tmp_path: Path) -> None:
    """U3: the provisional statement names the option of the next one; together they bill what there was."""
    world, entries = quiet_month(tmp_path)
    known = 20 * DAY
    early = written(tmp_path / "early.db", entries, mark=known)
    provisional = statement([early], JANUARY, "--provisional")
    assert quantities(provisional) == {
        ("d1", ""): Decimal(known - FIRST) / 1000,
        ("d2", ""): Decimal(known - FIRST) / 500,
    }
    assert "make the next statement with --billed-until 1970-01-21T00:00:00.000Z" in provisional.stderr
    later = written(tmp_path / "later.db", world.entries, mark=90 * DAY)
    following = quantities(statement([later], FEBRUARY, "--billed-until", "1970-01-21T00:00:00.000Z"))
    assert following == {
        ("d1", ""): Decimal(28 * DAY) / 1000,
        ("d2", ""): Decimal(9 * DAY) / 500,
        ("d1", "Correction"): Decimal(11 * DAY) / 1000,
        ("d2", "Correction"): Decimal(11 * DAY) / 500,
    }
    assert ("d1", "Correction") not in quantities(statement([later], FEBRUARY))


def test_u3_records_left_out_because_they_are_in_use_are_told(tmp_path: Path) -> None:
    """U3: without --open."""
    _, entries = quiet_month(tmp_path)
    idle = written(tmp_path / "idle.db", entries)
    found = run("usage", idle)
    assert found.stdout == "" and "2 intervals still in use at 1970-01-01T00:16:40.000Z left out" in found.stderr
    marked = written(tmp_path / "marked.db", entries, mark=DAY)
    assert len(run("usage", marked, "--open").stdout.splitlines()) == 2


# Pruned journals


def test_u3_a_statement_from_before_a_journal_was_pruned_is_refused_unless_another_copy_has_it(tmp_path: Path) -> None:
    """U3, J6: later periods bill the same as before pruning."""
    world, _ = quiet_month(tmp_path)
    path = tmp_path / "pruned.db"
    whole = written(tmp_path / "whole.db", world.entries, mark=90 * DAY)
    pruned = written(path, world.entries, mark=90 * DAY)
    journal = SqliteJournal(path)
    state = PlacementState()
    for entry in world.entries[:-2]:
        fold(state, entry)
    journal.snapshot(state.seq, state.now, snapshot.export(state), build="test")
    assert journal.prune(before_at=state.now) > 0
    journal.close()
    found = statement([pruned], JANUARY)
    assert (found.exit_code, found.stdout) == (1, "")
    assert "the journals were pruned up to " in found.stderr and "add a copy of a journal" in found.stderr
    assert statement([pruned, whole], JANUARY).stdout == statement([whole], JANUARY).stdout
    march = ("--from", "1970-03-01", "--to", "1970-03-15")
    assert statement([pruned], march).stdout == statement([whole], march).stdout != ""
    assert "the journals were pruned: usage that ended before" in run("usage", pruned).stderr


# The table


def test_u3_the_table_shows_the_numbers_of_focus_to_the_last_digit(journal: Path, tmp_path: Path) -> None:
    """U3: per tenant and class, hours by state and cost, and their totals."""
    prices = book(tmp_path, whole(journal))
    found = bill(journal, prices, "--provisional")
    rows = list(csv.DictReader(StringIO(found.stdout)))
    with freeze_time("2026-02-01T00:00:00Z"):
        shown = run("usage", str(journal), "--format", "table", *PERIOD, "--prices", str(prices), "--provisional")
    assert shown.exit_code == 0 and "cost in EUR" in shown.stdout
    lines = [[cell.strip() for cell in line.split("│")] for line in shown.stdout.splitlines() if "│" in line]
    for tenant in {row["SubAccountId"] for row in rows}:
        for sku in {row["SkuId"].rpartition("/")[0] for row in rows if row["SubAccountId"] == tenant}:
            mine = [r for r in rows if r["SubAccountId"] == tenant and r["SkuId"].rpartition("/")[0] == sku]
            (line,) = [one for one in lines if one[1:3] == [tenant, sku]]
            assert plain(sum(Decimal(r["BilledCost"]) for r in mine)) in line
            for state in {r["x_UsageState"] for r in mine}:
                assert plain(sum(Decimal(r["PricingQuantity"]) for r in mine if r["x_UsageState"] == state)) in line
    (last,) = [one for one in lines if one[1] == "total"]
    assert plain(sum(Decimal(row["BilledCost"]) for row in rows)) in last
    with freeze_time("2026-02-01T00:00:00Z"):
        free = run("usage", str(journal), "--format", "table", *PERIOD, "--provisional")
    assert free.exit_code == 0 and "cost" not in free.stdout
