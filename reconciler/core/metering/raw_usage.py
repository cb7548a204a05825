"""Meters raw GPU usage of pods (R8, U1b).

Owns the pods' timelines. A running pod's past may be revised: its VMI may list it later, or a device may be observed
late. Pods of one VMI share its devices, so a launcher that starts or ends moves the timelines of the others. The meter
that owns this one supplies the covering devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from reconciler.core.capacity.coverage import Named
from reconciler.core.metering import pod_usage
from reconciler.core.metering.attribution import Filing
from reconciler.core.metering.intervals import Interval, Moment, Span, Timeline, between
from reconciler.core.metering.pod_usage import PodUsage
from reconciler.core.metering.state_view import Facts
from reconciler.core.model.objects import Pod

Owner: TypeAlias = tuple[str, str]
"""(namespace, VMI name)."""


class Removal(tuple[bool, int]):
    """(whether it was seen, until when the subject is known to have been there in ms) of an object that is gone."""

    __slots__ = ()

    @property
    def seen(self) -> bool:
        return self[0]

    @property
    def last_seen(self) -> int:
        return self[1]


class RawMeter:
    """`attached(owner)`: confirmed devices of a VMI's name. `emit`: receives facts. Nothing is evaluated before
    `ready`: arrival order has no effect (R9)."""

    def __init__(
        self,
        filing: Filing,
        attached: Callable[[Owner], list[Named]],
        emit: Callable[[Iterable[Interval]], None],
    ) -> None:
        self.ready = False
        self._filing = filing
        self._attached_to = attached
        self._emit = emit
        self._pods: dict[str, PodUsage] = {}
        self._pods_of: dict[Owner, dict[str, None]] = {}
        self._in_namespace: dict[str, dict[str, None]] = {}

    def marks(self) -> list[PodUsage]:
        return [self._pods[uid] for uid in sorted(self._pods)]

    def open(self, state: Facts, now: int) -> Iterator[Interval | Span]:
        """Raw use at `now`, with the settled closed intervals of the same pods (U1b)."""
        for mark in self.marks():
            for name in sorted(mark.lines):
                past, span = mark.lines[name].facts(state.settings.settle, now)
                yield from past
                if span is not None:
                    yield span

    # What happens to a pod

    def observe(self, state: Facts, pod: Pod, began: int, proven: int | None, floor: Moment | None = None) -> None:
        """A pod's new value. `began`: when the journal did (ms): what had finished by then is not metered, and whether
        a finished pod was a launcher cannot be determined. `proven`: ms until which a listed pod was observed; anything
        later is inexact (U1b). `floor`: when a pod that is new to the meter began at the earliest."""
        mark = self._pods.get(pod.uid)
        if not pod.requests or (mark is not None and mark.over):
            return
        if mark is None:
            unproven = pod.terminal and (pod.vmi_name != "" or pod.finished <= began)
            mark = PodUsage(seen=pod_usage.slim(pod), over=unproven, floor=floor)
            self.remember(mark)
        elif mark.seen.vmi_name != pod.vmi_name:
            self._forget(mark)
            mark.seen = pod_usage.slim(pod)
            self.remember(mark)
        mark.seen = pod_usage.slim(pod)
        start = pod_usage.began(pod)
        if start is not None and mark.floor is not None and start.at < mark.floor.at:
            start = mark.floor
        moved = None
        if mark.start is not None and start is not None and start != mark.start:
            moved = _earlier(mark.start, start)
            for line in mark.lines.values():
                line.restart(mark.start, start)
        mark.start = start
        if pod.terminal and start is not None:
            mark.end = pod_usage.finished(pod, state.now, start.at)
            if proven is not None and pod.vmi_name and not mark.vmi_uid:
                mark.over = proven - start.at < state.settings.settle
        self._judge(state, {pod.uid: _about(state, start)}, moved)
        mark.over = mark.over or (pod.terminal and start is None)

    def vanish(self, state: Facts, uid: str, removal: Removal) -> None:
        """The pod is gone."""
        mark = self._pods.get(uid)
        if mark is None:
            return
        if mark.start is not None and mark.end is None and not mark.over:
            start, deleting = mark.start.at, mark.seen.deleting
            if removal.seen:
                mark.end = pod_usage.vanished(mark.seen, state.now, start, state.settings.settle)
            else:
                mark.end = pod_usage.unseen_end(deleting, removal.last_seen, state.now, start)
            self._judge(state, {uid: mark.end})
        if self.ready or mark.start is None or mark.over:
            self._forget(mark)

    # Judging

    def judge_all(self, state: Facts) -> None:
        self._judge(state, {uid: _about(state, mark.start) for uid, mark in self._pods.items()})
        for mark in self.marks():
            if mark.over and state.pod(mark.seen.uid) is None:
                self._forget(mark)

    def judge_namespace(self, state: Facts, namespace: str, since: int) -> None:
        """Reattribute pods from `since` (ms; 0: unknown, so from now)."""
        pods = self._in_namespace.get(namespace, {})
        self._judge(state, {uid: Moment(since) if since else _about(state, self._pods[uid].start) for uid in pods})

    def judge_launchers(self, state: Facts, owner: Owner, moment: Moment | None = None) -> None:
        """A VMI of a name, or what is attached to it, changed at `moment` (None: now)."""
        pods = self._pods_of.get(owner, {})
        self._judge(state, {uid: moment or _about(state, self._pods[uid].start) for uid in pods})

    def _judge(self, state: Facts, moments: dict[str, Moment], moved: Moment | None = None) -> None:
        """What no device covers of these pods, each since its moment. `moved`: from when the start of a pod was
        corrected, which changes what is left for the others."""
        if not self.ready:
            return
        groups: dict[tuple[str, ...], dict[str, Moment]] = {}
        for uid in sorted(moments):
            pod = self._pods[uid].seen
            group = (pod.namespace, pod.vmi_name) if pod.vmi_name else (pod.namespace, "", uid)
            groups.setdefault(group, {})[uid] = moments[uid]
        for (namespace, vmi_name, *_), group_moments in groups.items():
            uids = self._pods_of[(namespace, vmi_name)] if vmi_name else group_moments
            self._judge_group(state, [self._pods[uid] for uid in sorted(uids)], group_moments, moved)

    def _judge_group(
        self, state: Facts, marks: list[PodUsage], moments: dict[str, Moment], moved: Moment | None
    ) -> None:
        """The pods of one VMI's name, or one pod of none. A pod is judged since its moment; the first time, and when
        it turns out to be a launcher, since its start (U1b); and since another launcher of the VMI began or ended."""
        owner = (marks[0].seen.namespace, marks[0].seen.vmi_name)
        attached = self._attached_to(owner) if owner[1] else []
        since: dict[str, Moment] = {}
        for mark in marks:
            moment = moments.get(mark.seen.uid)
            if moment is None or mark.start is None or mark.over:
                continue
            if self._proven(state, mark, bool(attached)):
                mark.lines.clear()
                mark.judged = False
            begins = not mark.judged
            mark.judged = True
            since[mark.seen.uid] = mark.start if begins else moment.not_before(mark.start.at)
            if pod_usage.covered(mark):
                for turn in (mark.start if begins else None, mark.end):
                    moved = _earlier(moved, turn) if moved and turn else turn or moved
        self._write_lines(state, marks, attached, since, moved)
        for uid in since:
            mark = self._pods[uid]
            if mark.end is not None and mark.start is not None:
                self._end(state, mark, mark.end.not_before(mark.start.at))

    def _write_lines(
        self,
        state: Facts,
        marks: list[PodUsage],
        attached: list[Named],
        since: dict[str, Moment],
        moved: Moment | None,
    ) -> None:
        """Write each pod's line since its moment, and those of covered pods since `moved`: once for every launcher
        that begins or ends from there on."""
        turns = {turn.at: turn for mark in marks if pod_usage.covered(mark) for turn in (mark.start, mark.end) if turn}
        units: dict[int, dict[str, dict[str, int]]] = {}
        for mark in marks:
            first = since.get(mark.seen.uid)
            if mark.start is None or mark.over or not mark.judged:
                continue
            if moved is not None and pod_usage.covered(mark):
                earlier = moved.not_before(mark.start.at)
                first = _earlier(first, earlier) if first is not None else earlier
            if first is None:
                continue
            for moment in (first, *(turns[at] for at in sorted(turns) if at > first.at)):
                if moment.at not in units:
                    running = [one for one in marks if pod_usage.ran(one, moment.at)]
                    units[moment.at] = pod_usage.raw_units(running, attached, state.effective_names)
                if mark.seen.uid in units[moment.at]:
                    self._put(state, mark, units[moment.at][mark.seen.uid], moment)

    def _put(self, state: Facts, mark: PodUsage, units: dict[str, int], moment: Moment) -> None:
        above = self._filing.tenants(state, mark.seen.namespace)
        for name in sorted({*units, *mark.lines}):
            what = pod_usage.raw_what(mark, name, units[name], above) if name in units else None
            mark.lines.setdefault(name, Timeline()).put(what, moment)

    def _end(self, state: Facts, mark: PodUsage, end: Moment) -> None:
        for name in sorted(mark.lines):
            mark.lines[name].put(None, end)
            facts, _ = mark.lines[name].facts(state.settings.settle)
            self._emit(facts)
        mark.lines = {}
        mark.over = True

    def _proven(self, state: Facts, mark: PodUsage, attached: bool) -> bool:
        """Whether the pod's VMI lists it for the first time (R7). Once listed it stays that VMI's launcher; when
        another VMI stands under the name, or none and no device is attached, nothing covers it any more."""
        pod = mark.seen
        vmi = state.vmi(pod.namespace, pod.vmi_name) if pod.vmi_name else None
        if not mark.vmi_uid:
            if vmi is None or pod.uid not in vmi.active_pods:
                return False
            mark.vmi_uid = vmi.uid
            return True
        if vmi is None:
            mark.orphan = mark.orphan or not attached
        elif vmi.uid != mark.vmi_uid:
            mark.orphan = True
        return False

    # Index

    def remember(self, mark: PodUsage) -> None:
        pod = mark.seen
        self._pods[pod.uid] = mark
        self._in_namespace.setdefault(pod.namespace, {})[pod.uid] = None
        if pod.vmi_name:
            self._pods_of.setdefault((pod.namespace, pod.vmi_name), {})[pod.uid] = None

    def _forget(self, mark: PodUsage) -> None:
        pod = mark.seen
        self._pods.pop(pod.uid, None)
        drop(self._in_namespace, pod.namespace, pod.uid)
        if pod.vmi_name:
            drop(self._pods_of, (pod.namespace, pod.vmi_name), pod.uid)


def _about(state: Facts, start: Moment | None) -> Moment:
    """An inexact moment between the start of the subject and now."""
    return between(state.now, start.at if start is not None else state.now, state.now)


def _earlier(one: Moment, other: Moment) -> Moment:
    return other if other.at < one.at else one


def drop(index: dict, key: object, uid: str) -> None:  # type: ignore[type-arg]
    """Remove a uid from an index of uids, and an entry left empty."""
    found = index.get(key)
    if found is not None:
        found.pop(uid, None)
        if not found:
            del index[key]
