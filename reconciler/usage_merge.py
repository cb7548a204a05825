"""One timeline per subject out of several replicas' journals (U1, U2).

Owns what is believed where two journals differ: who saw an end is believed before who did not, an interval told
twice is one, and no two intervals of a subject overlap. The answer does not depend on the journals' order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from reconciler.core.usage import Record, identity


class Knowledge(msgspec.Struct, frozen=True):
    """What one journal can speak of, in ms: it knew the whole cluster since `since` and ends at `until`."""

    since: int
    until: int


class Told(msgspec.Struct, frozen=True):
    """A record and the number of the journal that tells it."""

    record: Record
    journal: int


def order(told: Told) -> tuple[object, ...]:
    """Subject by subject, each in time."""
    record = told.record
    return (
        record.uid,
        record.resource_name,
        record.start,
        record.interval,
        record.end,
        record.open,
        not record.exact,
        record.end_latest or 0,
        record.end_earliest or 0,
    )


def merge(told: Iterable[Told], knowledge: list[Knowledge]) -> Iterator[Record]:
    """Records of all journals, sorted by `order`, as one set without doubles. Holds one subject at a time."""
    for _, found in groupby(told, key=lambda one: (one.record.uid, one.record.resource_name)):
        yield from _subject(list(found), knowledge)


def _subject(told: list[Told], knowledge: list[Knowledge]) -> list[Record]:
    best = [
        _best(list(found), knowledge)
        for _, found in groupby(told, key=lambda one: (one.record.start, one.record.interval))
    ]
    line: list[Record] = []
    queue = [(record.start, number, record) for number, record in enumerate(best)]
    heapq.heapify(queue)
    while queue:
        _, number, record = heapq.heappop(queue)
        if line and line[-1].end > record.start:
            before, after = _apart(line.pop(), record)
            if before is not None:
                line.append(before)
            if after is not None:
                heapq.heappush(queue, (after.start, number, after))
        else:
            line.append(record)
    return line


def _best(told: list[Told], knowledge: list[Knowledge]) -> Record:
    """One interval as several journals tell it."""
    ended = [one.record for one in told if not one.record.open]
    if ended:
        return _surest(ended)
    until = max(one.record.end for one in told)
    record = next(one.record for one in told if one.record.end == until)
    known = max(knowledge[one.journal].until for one in told)
    tellers = {one.journal for one in told}
    others = [one for number, one in enumerate(knowledge) if number not in tellers and one.until > known]
    if not others:
        return record
    latest = min(max(until, one.since) for one in others)
    return msgspec.structs.replace(record, open=False, end_earliest=until, end_latest=latest)


def _surest(ended: list[Record]) -> Record:
    """The end that was seen; of ends nobody saw the last proven moment, with the narrowest bounds."""
    exact = [one for one in ended if one.end_earliest is None]
    if exact:
        return max(exact, key=lambda one: one.end)
    last = max(ended, key=lambda one: one.end)
    latest = max(last.end, min(one.end_latest or one.end for one in ended))
    return msgspec.structs.replace(last, end_latest=latest)


def _apart(first: Record, second: Record) -> tuple[Record | None, Record | None]:
    """Two intervals of one subject that overlap, `first` not starting later, cut so that they do not."""
    if _same(first, second):
        ends = [one for one in (first, second) if not one.open] or [first, second]
        sure = _surest(ends) if not ends[0].open else max(ends, key=lambda one: one.end)
        return None, msgspec.structs.replace(
            first,
            end=sure.end,
            end_earliest=sure.end_earliest,
            end_latest=sure.end_latest,
            open=sure.open,
        )
    if first.open or first.end_earliest is not None:
        if second.start <= first.start:
            return None, second
        cut = msgspec.structs.replace(
            first,
            end=second.start,
            end_earliest=second.start_earliest,
            end_latest=second.start_latest,
            open=False,
        )
        return cut, second
    if second.end <= first.end:
        return first, None
    moved = msgspec.structs.replace(
        second, start=first.end, start_earliest=first.end_earliest, start_latest=first.end_latest
    )
    named = identity(moved)
    return first, msgspec.structs.replace(moved, id=named, interval=named)


def _same(first: Record, second: Record) -> bool:
    """The same use, told with two beginnings."""
    return identity(msgspec.structs.replace(second, start=first.start)) == first.interval
