"""Export usage records from the journals of all replicas, by window and tenant, as JSON Lines or CSV (U3).

Owns the sorted stream of records and the two plain formats. Neighbours: `merge` (reconciles journals),
`external_sort` (sorting on disk), `focus`, `parquet` (other formats). Times are ms since the epoch; output is RFC
3339 in UTC and exact decimals.
"""

from __future__ import annotations

import csv as csv_module
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import IO

import msgspec

from journal import store
from journal.store import Journal, JournalPruned
from reconciler.billing.external_sort import ExternalSort
from reconciler.billing.merge import Knowledge, SourcedRecord, merge, order
from reconciler.core import snapshot
from reconciler.core.fold import fold
from reconciler.core.metering.usage_records import Record, UsageFold
from reconciler.core.state.placement_state import PlacementState

Progress = Callable[[int, int], None]
"""Called with (entries read, entries to read) over all journals."""

PROGRESS_ENTRIES = 1000
"""A bar that moves more often only costs."""

COLUMNS = (
    "id",
    "interval",
    "cluster",
    "tenant",
    "namespace",
    "class",
    "resourceName",
    "units",
    "kind",
    "name",
    "uid",
    "vmi",
    "node",
    "state",
    "from",
    "to",
    "unitSeconds",
    "open",
    "exact",
    "fromNotBefore",
    "fromNotAfter",
    "toNotBefore",
    "toNotAfter",
)
"""What is written of a record, in this order, by every plain format."""


class Coverage(msgspec.Struct):
    """How far journals know usage. `until`: ms. `in_use`: number of the window's intervals still in use then, of which
    one that began just then has no record yet. `tenants`: every tenant with usage in the window, selected or not."""

    until: int = 0
    in_use: int = 0
    tenants: set[str] = msgspec.field(default_factory=set)


def usage(
    journals: Sequence[Journal],
    *,
    cluster: str,
    start: int | None = None,
    end: int | None = None,
    tenant: str = "",
    as_of: int | None = None,
    coverage: Coverage | None = None,
    progress: Progress | None = None,
) -> Iterator[Record]:
    """Records of one cluster from one or more of its replicas' journals, without doubles, ordered by start.

    `start`, `end` (ms, half open): intervals are cut to the window; an id is that of the piece. `tenant`: only this
    tenant and its descendants. An interval that continues past `end` is complete for the window; one still in use where
    the journals end (`complete_until`) is counted up to there and `open`. `as_of`: as known at that time (ms); later
    entries are not read. `coverage` is filled in before the first record.

    Raises `JournalPruned` for a pruned journal without a snapshot, ValueError for a window that ends before it
    starts, `SnapshotError` if this build cannot read a pruned journal's snapshot.
    """
    if start is not None and end is not None and end < start:
        raise ValueError(f"the window ends ({rfc3339(end)}) before it begins ({rfc3339(start)})")
    with ExternalSort(SourcedRecord, order) as sourced, ExternalSort(Record, by_beginning) as kept:
        knowledge = []
        report = _Report(journals, progress)
        for number, journal in enumerate(journals):
            reader = _Reader(journal, UsageFold(cluster), start, as_of)
            for record, provisional in reader.records(report):
                if _within(record, start, end):
                    sourced.add(SourcedRecord(record, number, provisional))
            knowledge.append(reader.knowledge)
        known = max((one.until for one in knowledge), default=0)
        coverage = coverage or Coverage()
        coverage.until = known
        for record in merge(sourced, knowledge):
            piece = _piece(record, start, end, known)
            coverage.tenants.update(piece.tenants)
            if tenant and tenant not in piece.tenants:
                continue
            coverage.in_use += piece.open
            if piece.end > piece.start:
                kept.add(piece)
        report.done()
        yield from kept


def complete_until(journals: Sequence[Journal]) -> int:
    """Time (ms) up to which the journals together know all usage (J3); 0 without entries."""
    return max(map(store.complete_until, journals), default=0)


def complete_since(journals: Sequence[Journal]) -> int:
    """Time (ms) from which the journals together know all usage: 0, or where each was pruned to."""
    return min((_pruned_to(journal) for journal in journals), default=0)


def _pruned_to(journal: Journal) -> int:
    if journal.first_seq <= 1:
        return 0
    found = journal.nearest_snapshot(seq=journal.first_seq - 1)
    if found is None:
        raise JournalPruned(1, journal.first_seq)
    return found.at


def rfc3339(time: int) -> str:
    """Milliseconds since the Unix epoch as RFC 3339 in UTC, with three decimals."""
    moment = datetime.fromtimestamp(time // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time % 1000:03d}Z"


def by_beginning(record: Record) -> tuple[object, ...]:
    """The order of the export; total, because an id names the subject and its start."""
    return (
        record.start,
        record.namespace,
        record.kind,
        record.name,
        record.uid,
        record.resource_name,
        record.state,
        record.id,
    )


def _within(record: Record, start: int | None, end: int | None) -> bool:
    return (start is None or record.end > start or record.open) and (end is None or record.start < end)


def _piece(record: Record, start: int | None, end: int | None, known: int) -> Record:
    complete = end is not None and known >= end
    piece = record.cut(start, end)
    if complete and piece.open:
        piece = msgspec.structs.replace(piece, open=False)
    return piece


class _Report:
    """Adds up how far several journals have been read."""

    def __init__(self, journals: Sequence[Journal], progress: Progress | None) -> None:
        self._total = sum(journal.last_seq - journal.first_seq + 1 for journal in journals)
        self._progress = progress
        self._read = 0

    def step(self) -> None:
        self._read += 1
        if self._progress is not None and self._read % PROGRESS_ENTRIES == 0:
            self._progress(self._read, self._total)

    def done(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)


class _Reader:
    """One journal's records; `knowledge` once they have been read."""

    def __init__(self, journal: Journal, usage_fold: UsageFold, start: int | None, as_of: int | None) -> None:
        self._journal = journal
        self._usage = usage_fold
        self._as_of = as_of
        self._state = _begin(journal, start if start is None or as_of is None else min(start, as_of))
        self.knowledge = Knowledge(0)

    def records(self, report: _Report) -> Iterator[tuple[Record, bool]]:
        """Each record, and whether a later entry may still change it."""
        state = self._state
        watched: list[tuple[int, int]] = []
        since = state.now if state.synced else None
        before = state.now
        went_on = False
        for entry in self._journal.read(after=state.seq):
            if self._as_of is not None and entry.at > self._as_of:
                went_on = True
                break
            fold(state, entry)
            report.step()
            if since is not None and not state.synced:
                watched.append((since, before))
                since = None
            elif since is None and state.synced:
                since = entry.at
            before = entry.at
            for record in self._usage.step(state, entry):
                yield record, False
        watched_until = self._journal.watched_until if state.synced else 0
        until = max(state.now, watched_until)
        if self._as_of is not None:
            until = self._as_of if went_on else min(until, max(self._as_of, state.now))
        if since is not None:
            watched.append((since, until))
        self.knowledge = Knowledge(until, tuple(watched))
        for record in self._usage.open(state, until):
            yield record, True


def _begin(journal: Journal, start: int | None) -> PlacementState:
    """The state to continue from: the last snapshot before the window, else the oldest, else None."""
    first = journal.first_seq
    found = None if start is None else journal.nearest_snapshot(at=start)
    if found is None and first > 1:
        found = journal.nearest_snapshot(seq=first - 1)
        if found is None:
            raise JournalPruned(1, first)
    if found is None:
        return PlacementState()
    try:
        return snapshot.restore(found.payload)
    except snapshot.SnapshotError:
        if first > 1:
            raise
        return PlacementState()


# Plain formats


def unit_seconds(record: Record) -> str:
    """Units times seconds as an exact decimal with millisecond resolution."""
    return plain(Decimal(record.unit_milliseconds).scaleb(-3))


def plain(number: Decimal) -> str:
    """A decimal without exponent and without trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def row(record: Record) -> dict[str, str | int | bool | None]:
    """A record under its public names (`COLUMNS`); bounds are null where an end is exact (U2)."""
    return {
        "id": record.id,
        "interval": record.interval,
        "cluster": record.cluster,
        "tenant": record.tenant,
        "namespace": record.namespace,
        "class": record.class_name,
        "resourceName": record.resource_name,
        "units": record.units,
        "kind": record.kind,
        "name": record.name,
        "uid": record.uid,
        "vmi": record.vmi,
        "node": record.node,
        "state": record.state.value,
        "from": rfc3339(record.start),
        "to": rfc3339(record.end),
        "unitSeconds": unit_seconds(record),
        "open": record.open,
        "exact": record.exact,
        "fromNotBefore": _optional(record.start_earliest),
        "fromNotAfter": _optional(record.start_latest),
        "toNotBefore": _optional(record.end_earliest),
        "toNotAfter": _optional(record.end_latest),
    }


def _optional(time: int | None) -> str | None:
    return None if time is None else rfc3339(time)


def write_jsonl(records: Iterable[Record], out: IO[str]) -> int:
    """Write one JSON object per line; returns the number of records."""
    count = 0
    for record in records:
        out.write(msgspec.json.encode(row(record)).decode())
        out.write("\n")
        count += 1
    return count


def write_csv(records: Iterable[Record], out: IO[str]) -> int:
    """Write CSV (RFC 4180) with a header; an empty field is null. Returns the number of records."""
    writer = csv_module.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    count = 0
    for record in records:
        writer.writerow([_cell(value) for value in row(record).values()])
        count += 1
    return count


def _cell(value: str | int | bool | None) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
