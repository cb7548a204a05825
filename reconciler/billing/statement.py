"""Statements of billing periods: a closed period's charges are final, later knowledge becomes corrections (U3).

A statement contains what was known `CLOSE_AFTER_MILLISECONDS` after the period's end, so that making it again gives
the same charges. Knowledge gained later about earlier periods becomes corrections in the statement of the period that
closes next. Journals that do not reach that far make a provisional statement, and only on request. Neighbours:
`export` (records), `focus` and `summary` (formats).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from journal.store import Journal
from reconciler.billing.export import Coverage, Progress, by_beginning, complete_since, rfc3339, usage
from reconciler.core.metering.usage_records import Record

CLOSE_AFTER_MILLISECONDS = 3_600_000
"""A period stays open this long: the settling time, a replica's restart and its catching up fit in; more only
delays the invoice."""


class Charge(msgspec.Struct, frozen=True):
    """A record to be billed. `sign` -1: a credit. `correction`: belongs to an earlier period."""

    record: Record
    sign: int = 1
    correction: bool = False


class NotCoveredError(Exception):
    """The journals do not know a billing period's usage completely; the message says what is missing and the remedy."""


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
    provisional: bool = False,
    billed_until: int | None = None,
    coverage: Coverage | None = None,
    progress: Progress | None = None,
) -> Iterator[Charge]:
    """The charges of a period (ms, half open), then the corrections of everything before it. Periods follow one
    another without gaps: each correction appears in one statement.

    `provisional`: charge what is known where the journals do not cover the period; otherwise raises
    `NotCoveredError`, before the first charge or after the last. `billed_until`: the previous period was invoiced from
    a provisional statement, complete up to that time (ms); what was missing from it is among the corrections. Other
    parameters and errors as in `export.usage`.
    """

    def records(
        begin: int | None, until: int, as_of: int, coverage: Coverage | None = None, bar: Progress | None = None
    ) -> Iterator[Record]:
        return usage(
            journals,
            cluster=cluster,
            start=begin,
            end=until,
            tenant=tenant,
            as_of=as_of,
            coverage=coverage,
            progress=bar,
        )

    if not provisional:
        _check_beginning(journals, start)
    coverage = coverage or Coverage()
    for record in records(start, end, closes_at(end), coverage, progress):
        yield Charge(record)
    if not provisional:
        _check_end(coverage, end)
    billed_as_of = closes_at(start) if billed_until is None else min(billed_until, closes_at(start))
    yield from corrections(records(None, start, billed_as_of), records(None, start, closes_at(end)))


def _check_beginning(journals: Sequence[Journal], start: int) -> None:
    since = complete_since(journals)
    if since > start:
        raise NotCoveredError(
            f"the journals were pruned up to {rfc3339(since)}: usage that ended before is missing from a statement "
            f"from {rfc3339(start)}; add a copy of a journal from before it was pruned, or bill what is left with "
            "--provisional"
        )


def _check_end(coverage: Coverage, end: int) -> None:
    until = coverage.until
    if until >= closes_at(end) or (not coverage.in_use and until < end):
        return
    if until >= end:
        lacks = "facts that may still come in"
    else:
        lacks = "the rest of an interval" if coverage.in_use == 1 else f"the rest of {coverage.in_use} intervals"
    raise NotCoveredError(
        f"the journals are complete only until {rfc3339(until)}: a statement until {rfc3339(end)} would lack {lacks}; "
        f"copy the journals of running replicas after {rfc3339(closes_at(end))}, or bill what is known with "
        "--provisional"
    )


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
