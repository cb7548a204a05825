"""Usage intervals: points in time with their uncertainty, metered attributes, open spans and timelines (U1, U2).

Owns how one subject's timeline is split. Knows nothing of devices and pods; `device_usage` and `pod_usage` do.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from reconciler.core.model.objects import Model


class UsageState(StrEnum):
    """What a subject's units were doing."""

    HELD = "held"
    """Accepted and kept for the order, on no node."""
    BOUND = "bound"
    """Placed on a node."""
    LOST = "lost"
    """Placed on a node that no longer serves them: no units, the budget charge stays (P4)."""
    RAW = "raw"
    """Requested by a pod and covered by no device (R8)."""


class Moment(Model, frozen=True):
    """A time in ms. If not observed, it lies between `earliest` and `latest`; both None: exact (U2)."""

    at: int
    earliest: int | None = None
    latest: int | None = None

    @property
    def exact(self) -> bool:
        return self.earliest is None and self.latest is None

    def not_before(self, floor: int) -> Moment:
        """The moment, at least `floor`: clock differences never make an interval negative."""
        if self.at >= floor:
            return self
        if self.exact:
            return Moment(floor)
        return between(floor, floor, max(floor, self.latest or floor))


def between(at: int, earliest: int, latest: int) -> Moment:
    """An inexact moment within the given bounds."""
    return Moment(at, min(earliest, at), max(latest, at))


class What(Model, frozen=True, kw_only=True):
    """What is metered: an interval ends when any field changes (U1). `tenants`: the nearest tenant namespace
    and those above it; empty outside every tenant."""

    kind: str
    namespace: str
    name: str
    uid: str
    state: UsageState
    resource_name: str
    units: int
    class_name: str = ""
    vmi: str = ""
    node: str = ""
    tenants: tuple[str, ...] = ()


class Span(Model, frozen=True):
    """Units in use since a moment."""

    what: What
    start: Moment


class Interval(Model, frozen=True):
    """Units that were in use, from and to."""

    what: What
    start: Moment
    end: Moment


def closed(span: Span, end: Moment) -> list[Interval]:
    """The span closed at `end`; empty if it would have no duration."""
    return [] if end.at <= span.start.at else [Interval(span.what, span.start, end)]


class Timeline(msgspec.Struct, kw_only=True):
    """One subject's raw units of one name while its pod lives: closed spans in order, and the open one. A later fact
    may revise all of them (U1b)."""

    past: list[Interval] = msgspec.field(default_factory=list)
    now: Span | None = None

    def put(self, what: What | None, moment: Moment) -> None:
        """Set `what` from `moment` on (None: nothing), discarding anything later."""
        if self.now is not None and self.now.what == what and moment.at >= self.now.start.at:
            return
        while self.past and self.past[-1].end.at > moment.at:
            last = self.past.pop()
            self.now = Span(last.what, last.start)
        if self.now is not None:
            if self.now.what == what and moment.at >= self.now.start.at:
                return
            self.past += closed(self.now, moment)
        self.now = None if what is None else Span(what, moment)

    def restart(self, old: Moment, new: Moment) -> None:
        """Correct the start of the subject's usage."""
        if self.now is not None and self.now.start == old:
            self.now = Span(self.now.what, new)
        if self.past and self.past[0].start == old:
            first = self.past[0]
            self.past[0] = Interval(first.what, new, first.end)

    def facts(self, settle: int, until: int | None = None) -> tuple[list[Interval], Span | None]:
        """(intervals, open span) of the runs that lasted for the settling time (ms): shorter ones are no facts
        (U1b). `until`: how far the open span has come by now (ms); None: nothing is open."""
        pieces = list(self.past)
        if self.now is not None and until is not None:
            pieces.append(Interval(self.now.what, self.now.start, Moment(until).not_before(self.now.start.at)))
        runs: list[list[Interval]] = []
        for one in pieces:
            if runs and runs[-1][-1].end.at == one.start.at:
                runs[-1].append(one)
            else:
                runs.append([one])
        found = [one for run in runs if run[-1].end.at - run[0].start.at >= settle for one in run]
        if found and found[-1] is pieces[-1] and len(pieces) > len(self.past):
            return found[:-1], self.now
        return found, None
