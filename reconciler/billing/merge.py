"""Merges several replicas' journals into one timeline per subject (U1, U2).

Owns the rules where two journals differ: the replica that kept watching wins; gaps no replica observed are marked
inexact; duplicate intervals collapse into one, and no two intervals of a subject overlap. The result does not depend
on the order of the journals.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from reconciler.core.metering.usage_records import Record, identity


class Knowledge(msgspec.Struct, frozen=True):
    """When one journal observed the whole cluster: (start, end) of each unbroken span, in ms. The journal ends at
    `until`."""

    until: int
    watched: tuple[tuple[int, int], ...] = ()

    def watching(self, at: int) -> bool:
        """It observed everything at `at` and kept watching."""
        return any(since <= at < until for since, until in self.watched)

    def unbroken(self, start: int, end: int) -> bool:
        """It observed everything from `start` to `end`."""
        return any(since <= start and end <= until for since, until in self.watched)

    def next_look(self, at: int) -> int | None:
        """When it next observed everything after `at`; None: never."""
        return next((since for since, _ in self.watched if since >= at), None)


class SourcedRecord(msgspec.Struct, frozen=True):
    """A record and the index of its journal. `provisional`: a later fact may retract it."""

    record: Record
    journal: int
    provisional: bool = False


def order(sourced: SourcedRecord) -> tuple[object, ...]:
    """Sort key: by subject, then by time."""
    record = sourced.record
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


def merge(sourced: Iterable[SourcedRecord], knowledge: list[Knowledge]) -> Iterator[Record]:
    """Records of all journals, sorted by `order`, deduplicated. Holds one subject at a time."""
    for _, found in groupby(sourced, key=lambda one: (one.record.uid, one.record.resource_name)):
        yield from _subject(list(found), knowledge)


def _subject(sourced: list[SourcedRecord], knowledge: list[Knowledge]) -> list[Record]:
    line: list[Record] = []
    queue: list[tuple[int, bool, int, Record]] = []
    for number, (_, group) in enumerate(groupby(sourced, key=lambda one: (one.record.start, one.record.interval))):
        found = list(group)
        record = _best(found, knowledge)
        if record is not None:
            unwatched = not any(knowledge[one.journal].watching(record.end) for one in found)
            queue.append((record.start, unwatched, number, record))
    heapq.heapify(queue)
    while queue:
        _, unwatched, number, record = heapq.heappop(queue)
        if line and line[-1].end > record.start:
            before, after = _apart(line.pop(), record)
            if before is not None:
                line.append(before)
            if after is not None:
                heapq.heappush(queue, (after.start, unwatched, number, after))
        else:
            line.append(record)
    return line


def _best(sourced: list[SourcedRecord], knowledge: list[Knowledge]) -> Record | None:
    """The best version of an interval recorded by one or more journals; None if another journal refutes it."""
    holders = {one.journal for one in sourced}
    silent = [one for number, one in enumerate(knowledge) if number not in holders]
    holding = [knowledge[number] for number in sorted(holders)]
    sure = [one.record for one in sourced if not one.provisional]
    if sure:
        best = _most_certain(sure)
        return None if _refuted(best, holding, silent) else best
    known = max(one.until for one in holding)
    others = [one for one in silent if one.until > known]
    last = max((one.record for one in sourced), key=lambda one: one.end)
    if any(one.watching(known) for one in others) or _refuted(last, holding, silent):
        return None
    ended = [one.record for one in sourced if not one.record.open]
    if ended:
        return _most_certain(ended)
    looks = [look for one in others if (look := one.next_look(known)) is not None]
    if not looks:
        return last
    return msgspec.structs.replace(last, open=False, end_earliest=last.end, end_latest=min(looks))


def _refuted(record: Record, holding: list[Knowledge], silent: list[Knowledge]) -> bool:
    """Whether a journal that lacks the interval was watching while none that has it was: at its end, or
    throughout."""
    moment = record.end - 1
    if not any(one.watching(moment) for one in holding) and any(one.watching(moment) for one in silent):
        return True
    holding_all = any(one.unbroken(record.start - 1, record.end) for one in holding)
    return not holding_all and any(one.unbroken(record.start, record.end) for one in silent)


def _most_certain(ended: list[Record]) -> Record:
    """The observed end, the earlier of two: the later one missed it. If none was observed, the last proven moment with
    the narrowest bounds."""
    exact = [one for one in ended if one.end_earliest is None]
    if exact:
        return min(exact, key=lambda one: one.end)
    last = max(ended, key=lambda one: one.end)
    latest = max(last.end, min(one.end_latest or one.end for one in ended))
    return msgspec.structs.replace(last, end_latest=latest)


def _apart(first: Record, second: Record) -> tuple[Record | None, Record | None]:
    """Cuts two overlapping intervals of one subject so that they do not overlap. `first` starts first; if both start
    together, it is the one whose replica kept watching."""
    if _same(first, second):
        ends = [one for one in (first, second) if not one.open] or [first, second]
        sure = _most_certain(ends) if not ends[0].open else max(ends, key=lambda one: one.end)
        return None, msgspec.structs.replace(
            first,
            end=sure.end,
            end_earliest=sure.end_earliest,
            end_latest=sure.end_latest,
            open=sure.open,
        )
    if second.start == first.start:
        return None, max((first, second), key=lambda one: (one.end_earliest is None, one.end))
    if first.open or first.end_earliest is not None:
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
    """The same use, recorded with two start times."""
    return identity(msgspec.structs.replace(second, start=first.start)) == first.interval
