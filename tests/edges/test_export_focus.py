"""FOCUS exports: columns, exact sums, closed periods, corrections, prices; the public validator (U3)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import events
from journal.store import MemoryJournal
from reconciler.billing.focus import COLUMNS, PRICED_COLUMNS, Issuer, month_of, write_focus
from reconciler.billing.prices import PriceBook, PriceBookError, load
from reconciler.billing.statement import CLOSE_AFTER_MILLISECONDS, Charge, closes_at, corrections, statement
from reconciler.core.metering.usage_records import UsageState
from reconciler.core.model.objects import DEVICE, KINDS, POD
from tests.core.test_usage_twin import SETTLE, Story, play
from tests.core.world import NS
from tests.edges import focus_validator
from tests.edges.test_export import FIRST, export, journal_of, story

ISSUER = Issuer(name="Hoster GmbH", account="cluster-1")
BOOK = """
currency: EUR
prices:
  a10:
    - {from: 1970-01-01, held: "0.50", bound: 2.25, lost: 0}
  nvidia.com/GA102:
    - {from: 1970-01-01, raw: 3.10}
"""
CLAIMED = [
    "ACCOUNT_NAMING_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "CAPACITY_RESERVATION_SUPPORTED",
    "MULTIPLE_BILLING_ACCOUNT_TYPES_SUPPORTED",
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED",
    "REGION_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
]
CLAIMED_WITH_PRICES = [
    *CLAIMED,
    "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
]
ALTERNATIVES = {"InvoiceId-C-005-C"}
"""One of two alternatives of a rule that passes by the other: no invoice has been made when usage is exported."""


def book(tmp_path: Path, text: str = BOOK) -> PriceBook:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    return load(path)


def focus(charges: Iterable[Charge], prices: PriceBook | None = None, start: int = FIRST) -> str:
    out = io.StringIO(newline="")
    write_focus(charges, out, issuer=ISSUER, start=start, prices=prices)
    return out.getvalue()


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def all_states() -> list[Charge]:
    """Charges of every state."""
    for seed in range(100):
        world = play(seed, 60)
        found = export(journal_of(world.entries))
        if {one.state for one in found} == set(UsageState):
            return [Charge(one) for one in found]
    raise AssertionError("no story holds every state")


@pytest.mark.skipif(not focus_validator.installed() and not focus_validator.required(), reason=focus_validator.REASON)
@pytest.mark.parametrize("priced", [True, False])
def test_u3_the_public_validator_passes_for_the_version_we_claim(priced: bool, tmp_path: Path) -> None:
    """U3: FOCUS 1.2, with and without prices, corrections among the rows."""
    charges = all_states()
    charges += [Charge(one.record, -1, correction=True) for one in charges[:3]]
    path = tmp_path / "focus.csv"
    path.write_text(focus(charges, book(tmp_path) if priced else None))
    rules = tmp_path / "rules"
    rules.mkdir()
    failed, passed = focus_validator.validate(path, CLAIMED_WITH_PRICES if priced else CLAIMED, rules)
    assert failed == ALTERNATIVES
    assert passed > 200


def test_u3_what_is_held_and_running_is_used_and_what_is_idle_is_not() -> None:
    """U3: CapacityReservationStatus; raw use reserves nothing."""
    found = {(row["x_UsageState"], row["CapacityReservationStatus"]) for row in table(focus(all_states()))}
    assert found == {("held", "Unused"), ("bound", "Used"), ("lost", "Unused"), ("raw", "")}
    assert all(
        bool(row["CapacityReservationId"]) == (row["x_UsageState"] != "raw") for row in table(focus(all_states()))
    )


def test_u3_quantities_and_costs_are_exact(tmp_path: Path) -> None:
    """U3: GPU-seconds to the millisecond, costs as hours times price, no exponent anywhere."""
    charges = all_states()
    priced = table(focus(charges, book(tmp_path)))
    price = {"held": Decimal("0.50"), "bound": Decimal("2.25"), "lost": Decimal(0), "raw": Decimal("3.10")}
    assert tuple(priced[0]) == tuple(sorted((*COLUMNS, *PRICED_COLUMNS)))
    for row in priced:
        assert Decimal(row["ListUnitPrice"]) == price[row["x_UsageState"]]
        assert Decimal(row["BilledCost"]) == Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"])
        assert "e" not in row["BilledCost"].lower() + row["PricingQuantity"].lower()
    total = sum(Decimal(row["ConsumedQuantity"]) for row in priced)
    assert total * 1000 == sum(one.record.unit_milliseconds for one in charges)


def test_u3_without_prices_there_is_no_unit_price_and_no_cost() -> None:
    """U3: FOCUS takes a usage row without a unit price only where the column is left out."""
    rows = table(focus(all_states()))
    assert tuple(rows[0]) == COLUMNS
    assert {row["BilledCost"] for row in rows} == {"0.0"}


def test_u3_months_and_price_changes_cut_a_charge(tmp_path: Path) -> None:
    """U3: a charge lies in one billing period and has one price; nothing is lost at the cuts."""
    world = Story(settle=SETTLE)
    world.at = 1_767_225_600_000 - 10_000
    world.ready(("n1", 4))
    world.order("d1")
    world.wait(40)
    text = 'currency: EUR\nprices:\n  a10:\n    - {from: 2025-01-01, held: "1"}\n    - {from: 2026-01-01, held: "2"}\n'
    rows = table(focus([Charge(one) for one in export(journal_of(world.entries))], book(tmp_path, text)))
    assert [(row["ChargePeriodStart"], row["ChargePeriodEnd"], row["ListUnitPrice"]) for row in rows] == [
        ("2025-12-31T23:59:50Z", "2026-01-01T00:00:00Z", "1.0"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z", "2.0"),
    ]
    assert [row["BillingPeriodEnd"] for row in rows] == ["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]


def test_u3_a_month_is_a_calendar_month() -> None:
    assert month_of(1_767_225_600_000) == (1_767_225_600_000, 1_767_225_600_000 + 31 * 86_400_000)
    assert month_of(1_767_225_599_999)[1] == 1_767_225_600_000


# Closed periods and corrections


def test_u3_a_closed_period_is_exported_byte_equal_and_late_facts_are_corrections() -> None:
    """U3: the end nobody saw becomes known after the period has closed."""
    world = story()
    world.order("d1")
    world.wait(600)
    seen = world.at - 300_000
    first = (FIRST, FIRST + 600_000)
    world.at = closes_at(first[1]) + 1000
    world.tell(events.TimeReached())
    closed = _statement(world, first)
    world.at += 10_000
    world.tell(events.ControllerStarted("binder-0", "test"))
    item = world.objects.pop((DEVICE.name, NS, "d1"))
    world.tell(events.ObjectDeleted(DEVICE.name, NS, "d1", item.uid, seen=False, last_seen=seen))
    for kind in KINDS:
        world.tell(events.KindListed(kind))
    world.at = closes_at(first[1] + 600_000) + 1000
    world.tell(events.TimeReached())
    assert _statement(world, first) == closed
    (row,) = table(closed)
    assert (row["ConsumedQuantity"], row["ChargeClass"]) == ("600.0", "")
    (late,) = table(_statement(world, (first[1], first[1] + 600_000)))
    assert (late["ConsumedQuantity"], late["ChargeClass"]) == ("-300.0", "Correction")
    assert late["ChargePeriodEnd"] == row["ChargePeriodEnd"]


def _statement(world: Story, period: tuple[int, int]) -> str:
    journal = journal_of(world.entries)
    charges = statement([journal], cluster="c1", start=period[0], end=period[1])
    return focus(charges, start=period[0])


@given(seed=st.integers(0, 2**32), steps=st.integers(5, 25))
@settings(max_examples=25, deadline=None)
def test_u3_all_statements_together_are_all_there_was(seed: int, steps: int) -> None:
    """U2, U3: periods and their corrections sum to the unit-seconds of the whole, as known when the last closed."""
    world = play(seed, steps)
    journal = journal_of(world.entries)
    journal.mark(world.at + 2 * CLOSE_AFTER_MILLISECONDS)
    end = FIRST + -(-(world.at - FIRST) // 600_000) * 600_000
    total = 0
    for start in range(FIRST, end, 600_000):
        for charge in statement([journal], cluster="c1", start=start, end=start + 600_000):
            total += charge.sign * charge.record.unit_milliseconds
    whole = export(journal, start=FIRST, end=end)
    assert total == sum(one.unit_milliseconds for one in whole)


def test_u3_corrections_give_back_and_charge_after() -> None:
    """U3: taken back, told anew, longer, shorter; what is the same is not told."""
    world = story()
    world.pod("raw", "n1", 1)
    world.order("d1")
    world.wait(100)
    held, raw = export(journal_of(world.entries))
    shorter = held.cut(end=held.start + 40_000)
    found = list(corrections([held, raw], [shorter]))
    assert [(one.sign, one.record.kind, one.record.start, one.record.end) for one in found] == [
        (-1, "GPUDevice", held.start + 40_000, held.end),
        (-1, "Pod", raw.start, raw.end),
    ]
    assert [one.sign for one in corrections([shorter], [held, raw])] == [1, 1]
    assert list(corrections([held, raw], [held, raw])) == []
    assert all(one.correction for one in found)


# Price books


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "Expected `object`, got `array`; a price book has `currency` and `prices`"),
        (
            "currency: EUR\nprices: {a: [{from: 2026-01-01, held: x}]}",
            r"a\[0\].held: Invalid decimal string; write a price",
        ),
        ("currency: EUR\nprices: {a: [{from: 2026-01-01, held: -1}]}", r"a\[0\].held: -1 is no price; write a price"),
        (
            "currency: EUR\nprices: {a: [{from: soon, held: 1}]}",
            r"a\[0\].from: .* write a date such as",
        ),
        (
            "currency: EUR\nprices: {a: [{from: 2026-01-01, idle: 1}]}",
            "unknown field `idle`; an entry has `from` and prices for held, bound",
        ),
        ("currency: EUR\nprices: {a: [{from: 2026-01-01}]}", "states no price"),
        ("currency: EUR\nprices: {a: 3}", r"prices.a: .*; write a list of dated entries"),
        ("currency: euro\nprices: {}", "currency: .*; write a three-letter code such as EUR"),
        ("currency: EUR\nprices: {}\ndiscount: 3", "unknown field `discount`; a price book has"),
        ("a: [", "is no YAML"),
    ],
)
def test_u3_a_price_book_that_cannot_be_read_says_where(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(PriceBookError, match=says):
        book(tmp_path, text)


def test_u3_a_missing_file_and_a_missing_price_are_told(tmp_path: Path) -> None:
    """U3: no charge goes out for nothing because its price is missing."""
    with pytest.raises(PriceBookError, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    late = book(tmp_path, "currency: EUR\nprices: {a10: [{from: 2026-01-01, held: 1}]}")
    world = story()
    world.order("d1")
    world.wait(10)
    charges = [Charge(one) for one in export(journal_of(world.entries))]
    with pytest.raises(PriceBookError, match=r"no price for 'a10' held on 1970-01-01; add `held` under prices.a10"):
        focus(charges, late)


def test_u3_a_price_never_passes_through_a_float(tmp_path: Path) -> None:
    """U3: as written in the file, quoted or not."""
    found = book(tmp_path, "currency: EUR\nprices: {a: [{from: 2026-01-01, held: 0.1000000000000000055511151231}]}")
    ((_, _, price),) = found.spans("a", UsageState.HELD, 1_767_225_600_000, 1_767_225_600_001)
    assert price.per_unit_hour == Decimal("0.1000000000000000055511151231")


def test_u3_a_statement_of_an_empty_journal_is_a_header() -> None:
    charges: Any = statement([MemoryJournal()], cluster="c1", start=0, end=1000)
    assert focus(charges).count("\r\n") == 1


def test_u1b_raw_use_that_becomes_a_fact_after_midnight_is_in_its_own_period() -> None:
    """U1b, U3: a period closes late enough for what settles after its end."""
    world = story()
    world.wait(590)
    world.pod("raw", "n1", 1)
    world.wait(100)
    world.change(POD, NS, "raw", phase="Succeeded", finished=world.at)
    first = (FIRST, FIRST + 600_000)
    world.at = closes_at(first[1])
    world.tell(events.TimeReached())
    (row,) = table(_statement(world, first))
    assert (row["ConsumedQuantity"], row["ChargeClass"]) == ("10.0", "")
