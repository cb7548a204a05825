"""Usage records: who had what, where, in which state, from when to when, folded from the journal (U1, U1b, U2).

Owns the record and its identity. The timelines behind it are the meter's (`meter`), which every fold steps;
merging journals, windows and formats are `reconciler.billing.export`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import msgspec

from journal.events import Entry
from reconciler.core.metering.intervals import Interval, Moment, Span, UsageState, What
from reconciler.core.metering.meter import Meter
from reconciler.core.metering.state_view import Facts
from reconciler.core.model.objects import Model

__all__ = ["Record", "UsageFold", "UsageState"]

_ID_CHARACTERS = 32
"""128 bits of the content's SHA-256: no collisions within a fleet."""


class Record(Model, frozen=True, kw_only=True):
    """One interval of one subject. Times are ms since the epoch.

    `tenants`: the nearest tenant namespace and those above it. `open`: still going on, `end` is how far it is
    known. `start` and `end` are exact unless their bounds (`…_earliest`, `…_latest`) are set (U2). `interval`
    names the whole interval, `id` this piece of it: they differ if a window cut off the start.
    """

    id: str = ""
    interval: str = ""
    cluster: str
    tenants: tuple[str, ...] = ()
    namespace: str
    kind: str
    name: str
    uid: str
    state: UsageState
    class_name: str = ""
    resource_name: str
    units: int
    vmi: str = ""
    node: str = ""
    start: int
    end: int
    start_earliest: int | None = None
    start_latest: int | None = None
    end_earliest: int | None = None
    end_latest: int | None = None
    open: bool = False

    @property
    def tenant(self) -> str:
        """The nearest tenant namespace, "" outside every tenant."""
        return self.tenants[0] if self.tenants else ""

    @property
    def unit_milliseconds(self) -> int:
        return self.units * (self.end - self.start)

    @property
    def exact(self) -> bool:
        """Both ends were observed or reported by the object itself."""
        return self.start_earliest is None and self.end_earliest is None

    def cut(self, start: int | None = None, end: int | None = None) -> Record:
        """The piece within a window (ms); an end set by the window is exact."""
        piece = self
        if start is not None and piece.start < start:
            piece = msgspec.structs.replace(piece, start=start, start_earliest=None, start_latest=None)
        if end is not None and piece.end > end:
            piece = msgspec.structs.replace(piece, end=end, end_earliest=None, end_latest=None, open=False)
        return piece if piece is self else msgspec.structs.replace(piece, id=identity(piece))


def identity(record: Record) -> str:
    """Derived from what is counted and since when, not from how it ended: the same interval has the same id in
    every replica's export, open or closed (U1)."""
    content = (
        record.cluster,
        record.kind,
        record.uid,
        record.namespace,
        record.name,
        record.state,
        record.class_name,
        record.resource_name,
        record.units,
        record.vmi,
        record.node,
        record.tenants,
        record.start,
    )
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:_ID_CHARACTERS]


class MeteredState(Facts, Protocol):
    """The part of the placement state that records are made from."""

    seq: int
    meter: Meter


class UsageFold:
    """Runs beside `fold`: `fold(state, entry)`, then `step(state, entry)`. Closed intervals are not kept;
    open ones are in the state and its snapshots, so a journal pruned at a snapshot continues from there."""

    def __init__(self, cluster: str) -> None:
        """`cluster`: name written to every record, to tell a fleet's exports apart (U3)."""
        self._cluster = cluster

    def step(self, state: MeteredState, entry: Entry) -> Iterator[Record]:
        """The intervals closed by the entry just folded."""
        if state.seq != entry.seq:
            raise ValueError(f"entry {entry.seq} has not been folded: the state is at entry {state.seq}")
        for one in state.meter.closed:
            yield self._record(one.what, one.start, one.end)

    def open(self, state: MeteredState, now: int) -> Iterator[Record]:
        """Open intervals at `now` (ms), and closed ones of running pods (a later fact may change them, U1b)."""
        for one in state.meter.open(state, now):
            if isinstance(one, Interval):
                yield self._record(one.what, one.start, one.end)
            elif now >= one.start.at:
                yield self._open(one, now)

    def _open(self, span: Span, now: int) -> Record:
        return self._record(span.what, span.start, Moment(now), open=True)

    def _record(self, what: What, start: Moment, end: Moment, *, open: bool = False) -> Record:
        record = Record(
            cluster=self._cluster,
            tenants=what.tenants,
            namespace=what.namespace,
            kind=what.kind,
            name=what.name,
            uid=what.uid,
            state=what.state,
            class_name=what.class_name,
            resource_name=what.resource_name,
            units=what.units,
            vmi=what.vmi,
            node=what.node,
            start=start.at,
            end=end.at,
            start_earliest=start.earliest,
            start_latest=start.latest,
            end_earliest=end.earliest,
            end_latest=end.latest,
            open=open,
        )
        named = identity(record)
        return msgspec.structs.replace(record, id=named, interval=named)
