"""Statements of billing periods: a closed period's charges are final, later knowledge becomes corrections (U3).

A period's statement is made of what was known `CLOSE_AFTER` its end, so that it comes out the same whenever it is
made. What was learned later about earlier periods stands in the statement of the period that closed next, as
corrections with the sign of the difference. Neighbours: `export` (records), `focus` (the format).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from journal.store import Journal
from reconciler.billing.export import Progress, by_beginning, usage
from reconciler.core.metering.usage_records import Record

CLOSE_AFTER_MILLISECONDS = 3_600_000
"""A period stays open this long: the settling time, a replica's restart and its catching up fit in; more only
delays the invoice."""


class Charge(msgspec.Struct, frozen=True):
    """A record to be billed. `sign` -1: a credit. `correction`: belongs to an earlier period."""

    record: Record
    sign: int = 1
    correction: bool = False


def closes_at(end: int) -> int:
    """Time (ms) from which the statement of a period ending at `end` (ms) is final."""
    return end + CLOSE_AFTER_MILLISECONDS


def statement(
    journals: Sequence[Journal],
    *,
    cluster: str,
    start: int,
    end: int,
    tenant: str = "",
    now: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Charge]:
    """The charges of a period (ms, half open), then the corrections of everything before it. Periods follow one
    another without gaps: each correction appears in one statement. Before `closes_at(end)` it is provisional.
    Parameters and errors as in `export.usage`.
    """

    def records(begin: int | None, until: int, as_of: int, bar: Progress | None = None) -> Iterator[Record]:
        return usage(
            journals,
            cluster=cluster,
            start=begin,
            end=until,
            tenant=tenant,
            include_open=True,
            now=now,
            as_of=as_of,
            progress=bar,
        )

    for record in records(start, end, closes_at(end), progress):
        yield Charge(record)
    yield from corrections(records(None, start, closes_at(start)), records(None, start, closes_at(end)))


def corrections(before: Iterable[Record], after: Iterable[Record]) -> Iterator[Charge]:
    """The charges and credits that turn what was billed (`before`) into what is right (`after`); both in the order of
    `export.usage`."""
    tagged = heapq.merge(
        ((by_beginning(record), 0, record) for record in before),
        ((by_beginning(record), 1, record) for record in after),
        key=lambda one: (one[0], one[1]),
    )
    for _, found in groupby(tagged, key=lambda one: one[0]):
        sides: list[Record | None] = [None, None]
        for _, side, record in found:
            sides[side] = record
        yield from _difference(sides[0], sides[1])


def _difference(billed: Record | None, right: Record | None) -> Iterator[Charge]:
    if billed is None:
        assert right is not None
        yield Charge(right, 1, correction=True)
    elif right is None:
        yield Charge(billed, -1, correction=True)
    elif right.end > billed.end:
        yield Charge(right.cut(start=billed.end), 1, correction=True)
    elif right.end < billed.end:
        yield Charge(billed.cut(start=right.end), -1, correction=True)
