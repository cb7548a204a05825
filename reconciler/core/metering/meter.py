"""The meter: current usage of every device and pod, kept in step with the placement state (U1, U1b, U2).

`fold` steps it with every entry; it reads only what the entry touched, and only confirmed values: an assumed
write counts once its outcome is known, so that leader and follower journals agree. Intervals that the last entry closed
are in `closed` until the next; a snapshot carries the rest (J6). Owns the
devices' spans; pods are `raw_usage`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from journal import events
from journal.events import Entry
from reconciler.core.capacity.coverage import Named
from reconciler.core.metering import device_usage, pod_usage
from reconciler.core.metering.attribution import Filing
from reconciler.core.metering.intervals import Interval, Moment, Span, What, between, closed
from reconciler.core.metering.pod_usage import PodUsage
from reconciler.core.metering.raw_usage import Owner, RawMeter, Removal, drop
from reconciler.core.metering.state_view import Facts, Touched
from reconciler.core.model.objects import CLASS, DEVICE, POD, RELEASE, VMI, Device, Model

METERED = frozenset({CLASS.name, DEVICE.name, POD.name, RELEASE.name, VMI.name})


class DeviceUsage(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A device with usage: its last confirmed value and open span."""

    seen: Device
    span: Span


class Memory(Model, frozen=True, kw_only=True):
    """The meter's own state, for a snapshot. `began`: time of the journal's first entry;
    `gap`: until when it was unbroken before this process or the server's data was replaced (ms). `seam`: that data is
    being read; whatever it says of the time before `gap` was metered as it was seen then."""

    ready: bool
    began: int
    gap: int
    seam: bool = False
    last_at: int
    devices: list[DeviceUsage]
    pods: list[PodUsage]
    parked: list[Interval]


class Meter:
    """`closed`: intervals closed by the last entry. One per state."""

    def __init__(self) -> None:
        self.closed: list[Interval] = []
        self._began = self._gap = self._last_at = 0
        self._seam = self._was_synced = False
        self._parked: list[Interval] = []
        self._devices: dict[str, DeviceUsage] = {}
        self._devices_of: dict[Owner, dict[str, None]] = {}
        self._in_namespace: dict[str, dict[str, None]] = {}
        self._names: frozenset[str] = frozenset()
        self._filing = Filing()
        self._raw = RawMeter(self._filing, self._attached, self._emit)

    @property
    def ready(self) -> bool:
        """Every kind has been listed once: tenants, classes and launchers are known (R9)."""
        return self._raw.ready

    def step(self, state: Facts, entry: Entry) -> None:
        """Advance over one folded entry. Drains `state.touched` and `state.landed`."""
        self.closed = []
        if isinstance(entry.event, events.HistoryReplaced):
            self._seam = True
            self._gap = self._last_at if self._was_synced else self._gap
        elif isinstance(entry.event, events.ControllerStarted):
            self._gap = self._last_at
        self._began = self._began or entry.at
        for device in state.landed:
            self._confirm(state, device)
        state.landed.clear()
        for touched in state.touched:
            self._follow(state, touched, entry.event)
        state.touched.clear()
        if not self.ready and state.synced:
            self._begin(state)
        elif state.effective_names is not self._names:
            changed, self._names = state.effective_names != self._names, state.effective_names
            if changed:
                self._raw.judge_all(state)
        self._last_at = entry.at
        self._was_synced = state.synced
        self._seam = self._seam and not state.synced

    def open(self, state: Facts, now: int) -> Iterator[Interval | Span]:
        """What is in use at `now` (ms, not before the last entry); of a pod that still runs also the intervals
        that are over, once they are facts (U1b)."""
        for uid in sorted(self._devices):
            yield self._devices[uid].span
        yield from self._raw.open(state, now)

    def _follow(self, state: Facts, touched: Touched, event: events.Event) -> None:
        kind, namespace, name, uid = touched
        if kind == RELEASE.name:
            observed = state.now if isinstance(event, events.ObjectDeleted) and event.seen else 0
            for moved, since in self._filing.moved_tenants(state, namespace, name) if self.ready else ():
                self._refile(state, sorted(self._in_namespace.get(moved, {})), since or observed)
                self._raw.judge_namespace(state, moved, since or observed)
        elif kind == CLASS.name:
            if self.ready and self._filing.moved_class(state, name):
                self._refile(state, [found.uid for found in state.devices_of_class(name)], 0)
        elif kind == DEVICE.name:
            self._device(state, uid, event)
        elif kind == POD.name:
            pod = state.pod(uid)
            if pod is not None:
                listed = isinstance(event, events.ObjectObserved) and event.source == "list"
                proven = (self._last_at if state.synced else self._gap) if listed else None
                floor = self._seamed(Moment(0), state.now) if self._seam else None
                self._raw.observe(state, pod, self._began, proven, floor)
            else:
                self._raw.vanish(state, uid, self._removal(state, event, uid))
        elif kind == VMI.name:
            self._raw.judge_launchers(state, (namespace, name))
            for device in state.devices_of_vmi(namespace, name):
                if device.uid not in state.pending:
                    self._confirm(state, device, again=True)

    def _begin(self, state: Facts) -> None:
        """All kinds are listed: attribute earlier observations and evaluate pods."""
        self._raw.ready = True
        self._names = state.effective_names
        self._filing.clear()
        for mark in self._devices.values():
            mark.span = Span(self._refiled(state, mark.span.what), mark.span.start)
        for one in self._parked:
            self.closed.append(Interval(self._refiled(state, one.what), one.start, one.end))
        self._parked = []
        self._raw.judge_all(state)

    def _emit(self, found: Iterable[Interval]) -> None:
        (self.closed if self.ready else self._parked).extend(found)

    def _refiled(self, state: Facts, what: What) -> What:
        filed = self._filing.of(state, what.class_name, what.namespace)
        return msgspec.structs.replace(what, resource_name=filed.resource_name, tenants=filed.tenants)

    def _refile(self, state: Facts, uids: Iterable[str], since: int) -> None:
        """Reattribute these devices from `since` (ms; 0: unknown, so from now)."""
        for uid in uids:
            mark = self._devices.get(uid)
            what = None if mark is None else self._refiled(state, mark.span.what)
            if mark is None or what is None or what == mark.span.what:
                continue
            start = mark.span.start
            moment = Moment(since) if since else between(state.now, start.at, state.now)
            if not mark.span.what.resource_name:
                moment = start
            self._advance(mark, what, moment)
            self._judge_launchers(state, mark.seen, moment)

    # Devices

    def _device(self, state: Facts, uid: str, event: events.Event) -> None:
        if uid in state.pending:
            return
        found = state.device_by_uid(uid)
        mark = self._devices.get(uid)
        if found is not None:
            self._confirm(state, found)
        elif mark is not None:
            start, deleting = mark.span.start.at, mark.seen.deleting
            removal = self._removal(state, event, uid)
            if removal.seen:
                end = between(state.now, max(start, min(deleting or 0, state.now)), state.now)
            else:
                end = pod_usage.unseen_end(deleting, removal.last_seen, state.now, start)
            self._close(mark, end)
            self._judge_launchers(state, mark.seen, end)

    def _removal(self, state: Facts, event: events.Event, uid: str) -> Removal:
        """A subject that is gone, known from its deletion, a list, or a successor of the same name. Otherwise it was
        last proven before the process began or, once everything was listed, by the previous entry.
        """
        proven = self._last_at if state.synced else self._gap
        if isinstance(event, events.ObjectDeleted) and event.uid == uid:
            return Removal((event.seen, event.last_seen or proven))
        return Removal((False, proven))

    def _confirm(self, state: Facts, device: Device, *, again: bool = False) -> None:
        """Record a value the API server holds (never an assumed one). `again`: its VMI may have appeared."""
        mark = self._devices.get(device.uid)
        seen = device_usage.slim(device)
        if mark is not None and mark.seen == seen and not again:
            return
        before, span = (None, None) if mark is None else (mark.seen, mark.span)
        filed = self._filing.of(state, device.class_name, device.namespace)
        for step in device_usage.steps(before, span, seen, filed, state.now, self._gap, _start_of(state, device)):
            moment = self._seamed(step.moment, state.now)
            if step.what is None:
                assert mark is not None
                self._close(mark, moment.not_before(mark.span.start.at))
                mark = None
            elif mark is None:
                mark = DeviceUsage(seen=seen, span=Span(step.what, moment))
            else:
                self._advance(mark, step.what, moment)
        if mark is not None:
            self._remember(mark, before, seen)
        since = device_usage.covers_since(before, seen, state.now)
        if since is not None:
            for one in (before, seen):
                if one is not None:
                    self._judge_launchers(state, one, self._seamed(since, state.now))

    def _seamed(self, moment: Moment, now: int) -> Moment:
        """A moment that replaced data reports: not before the time until which the data before it was seen."""
        return between(now, self._gap, now) if self._seam and moment.at < self._gap else moment

    def _advance(self, mark: DeviceUsage, what: What, moment: Moment) -> None:
        moment = moment.not_before(mark.span.start.at)
        self._emit(closed(mark.span, moment))
        mark.span = Span(what, moment)

    def _close(self, mark: DeviceUsage, end: Moment) -> None:
        self._emit(closed(mark.span, end))
        seen = mark.seen
        self._devices.pop(seen.uid, None)
        if (owner := _owner(seen)) is not None:
            drop(self._devices_of, owner, seen.uid)
        drop(self._in_namespace, seen.namespace, seen.uid)

    def _remember(self, mark: DeviceUsage, before: Device | None, seen: Device) -> None:
        if before is not None and (owner := _owner(before)) is not None:
            drop(self._devices_of, owner, seen.uid)
        mark.seen = seen
        self._devices[seen.uid] = mark
        self._in_namespace.setdefault(seen.namespace, {})[seen.uid] = None
        if (owner := _owner(seen)) is not None:
            self._devices_of.setdefault(owner, {})[seen.uid] = None

    def _judge_launchers(self, state: Facts, device: Device, moment: Moment) -> None:
        owner = _owner(device)
        if owner is not None:
            self._raw.judge_launchers(state, owner, moment)

    def _attached(self, owner: Owner) -> list[Named]:
        marks = [self._devices[uid] for uid in sorted(self._devices_of.get(owner, {}))]
        return [(mark.seen, mark.span.what.resource_name) for mark in marks]

    # Snapshots

    def export(self) -> Memory:
        """The meter's own state (J6)."""
        return Memory(
            ready=self.ready,
            began=self._began,
            gap=self._gap,
            seam=self._seam,
            last_at=self._last_at,
            devices=[self._devices[uid] for uid in sorted(self._devices)],
            pods=self._raw.marks(),
            parked=self._parked,
        )

    def restore(self, state: Facts, memory: Memory) -> None:
        """Load an export for the restored state."""
        self._raw.ready = memory.ready
        self._began, self._gap, self._last_at = memory.began, memory.gap, memory.last_at
        self._seam, self._was_synced = memory.seam, state.synced
        self._parked = list(memory.parked)
        for mark in memory.devices:
            self._remember(mark, None, mark.seen)
            self._filing.of(state, mark.seen.class_name, mark.seen.namespace)
        for pod in memory.pods:
            self._raw.remember(pod)
            self._filing.tenants(state, pod.seen.namespace)
        self._names = state.effective_names
        state.touched.clear()
        state.landed.clear()


def _start_of(state: Facts, device: Device) -> device_usage.Start:
    """The start a device is attached for, and whether its VMI has appeared."""
    if device.attachment is None:
        return device_usage.Start(claimed=True, template=device.template)
    claimed = state.seen_vmis.get(device.uid, "").startswith(f"{device.attachment.request_id}/")
    return device_usage.Start(claimed=claimed, template=device.template)


def _owner(device: Device) -> Owner | None:
    return None if device.attachment is None else (device.namespace, device.attachment.vmi_name)
