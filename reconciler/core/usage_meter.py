"""The meter: what every device and pod uses right now, kept beside the state it is read from (U1, U1b, U2).

`fold` steps it with every entry; it looks only at what the entry touched, and only at confirmed values: an assumed
write counts when its outcome is known, so a leader's journal and a follower's tell the same. What has ended since
the last step stands in `closed` and is forgotten with the next; a snapshot carries the rest (J6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from journal import events
from journal.events import Entry
from reconciler.core import tenants, usage_devices, usage_pods
from reconciler.core.coverage import Named
from reconciler.core.objects import CLASS, DEVICE, POD, RELEASE, VMI, Device, Model, Pod
from reconciler.core.usage_devices import Attributes
from reconciler.core.usage_pods import PodMark
from reconciler.core.usage_spans import Interval, Moment, Span, Timeline, What, between, closed
from reconciler.core.vocabulary import ROOT_TENANT

if TYPE_CHECKING:
    from reconciler.core.state import PlacementState

Touched: TypeAlias = tuple[str, str, str, str]
"""(kind, namespace, name, uid)."""
Owner: TypeAlias = tuple[str, str]
"""(namespace, VMI name)."""

METERED = frozenset({CLASS.name, DEVICE.name, POD.name, RELEASE.name, VMI.name})


class DeviceMark(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A device that uses something: its last confirmed value and what it has."""

    seen: Device
    span: Span


class Memory(Model, frozen=True, kw_only=True):
    """What the meter knows and the state does not, for a snapshot."""

    ready: bool
    began: int
    gap: int
    last_at: int
    devices: list[DeviceMark]
    pods: list[PodMark]
    parked: list[Interval]


class Meter:
    """`closed`: what ended with the last entry. One per state."""

    def __init__(self) -> None:
        self.closed: list[Interval] = []
        self.ready = False
        """Every kind has been listed once: tenants, classes and launchers are known (R9)."""
        self._began = self._gap = self._last_at = 0
        self._parked: list[Interval] = []
        self._devices: dict[str, DeviceMark] = {}
        self._pods: dict[str, PodMark] = {}
        self._devices_of: dict[Owner, dict[str, None]] = {}
        self._pods_of: dict[Owner, dict[str, None]] = {}
        self._in_namespace: dict[str, dict[str, None]] = {}
        self._tenants: dict[str, tuple[str, ...]] = {}
        self._resources: dict[str, str] = {}
        self._names: frozenset[str] = frozenset()

    # The step

    def step(self, state: PlacementState, entry: Entry) -> None:
        """Follow the state over one folded entry. Drains `state.touched` and `state.landed`."""
        self.closed = []
        if isinstance(entry.event, events.ControllerStarted):
            self._gap = self._last_at
        self._began = self._began or entry.at
        self._last_at = entry.at
        for device in state.landed:
            self._confirm(state, device)
        state.landed.clear()
        for kind, namespace, name, uid in state.touched:
            if kind == RELEASE.name:
                self._release(state, namespace, name)
            elif kind == CLASS.name:
                self._class(state, name)
            elif kind == DEVICE.name:
                self._device(state, uid, entry.event)
            elif kind == POD.name:
                self._pod(state, uid, entry.event)
            elif kind == VMI.name:
                self._judge_all(state, self._pods_of.get((namespace, name), {}))
        state.touched.clear()
        if not self.ready and state.synced:
            self._begin(state)
        elif state.effective_names is not self._names:
            changed, self._names = state.effective_names != self._names, state.effective_names
            if changed:
                self._judge_all(state, self._pods)

    def open(self, state: PlacementState, now: int) -> Iterator[Interval | Span]:
        """What is in use at `now` (ms, not before the last entry); of a pod that still runs also the intervals
        that are over, once they are facts (U1b)."""
        for uid in sorted(self._devices):
            yield self._devices[uid].span
        for uid in sorted(self._pods):
            mark = self._pods[uid]
            for name in sorted(mark.lines):
                past, span = mark.lines[name].facts(state.settings.settle, now)
                yield from past
                if span is not None:
                    yield span

    def _begin(self, state: PlacementState) -> None:
        """Everything has been listed: what was seen before is filed as we know it now, and pods are judged."""
        self.ready = True
        self._names = state.effective_names
        self._tenants.clear()
        self._resources.clear()
        for mark in self._devices.values():
            mark.span = Span(self._refiled(state, mark.span), mark.span.start)
        for one in self._parked:
            self.closed.append(Interval(self._refiled(state, one), one.start, one.end))
        self._parked = []
        self._judge_all(state, self._pods)

    def _emit(self, found: Iterable[Interval | None]) -> None:
        kept = [one for one in found if one is not None]
        (self.closed if self.ready else self._parked).extend(kept)

    # What a subject is filed under

    def _refiled(self, state: PlacementState, one: Span | Interval) -> What:
        filed = self._filed(state, one.what.class_name, one.what.namespace)
        return msgspec.structs.replace(one.what, resource_name=filed.resource_name, tenants=filed.tenants)

    def _filed(self, state: PlacementState, class_name: str, namespace: str) -> Attributes:
        resource = self._resources.setdefault(class_name, state.class_resources.get(class_name, ""))
        return Attributes(resource, self._tenants_of(state, namespace))

    def _tenants_of(self, state: PlacementState, namespace: str) -> tuple[str, ...]:
        """The nearest tenant and those above it (R2). Without any release only the root is known by name."""
        found = self._tenants.get(namespace)
        if found is None:
            found = self._tenants[namespace] = _tenants_above(state, namespace)
        return found

    def _release(self, state: PlacementState, namespace: str, name: str) -> None:
        """A tenant came, moved or went: what is in its namespace and below its name may be another's now."""
        owned = tenants.owned_namespace(namespace, name)
        if owned is None:
            return
        below = f"{owned}-"
        for known in sorted(self._tenants):
            if known != owned and not known.startswith(below):
                continue
            before = self._tenants[known]
            after = self._tenants[known] = _tenants_above(state, known)
            if self.ready and before != after:
                release = state.tenant_release(known) if known == owned else None
                self._refile(
                    state, sorted(self._in_namespace.get(known, {})), release.created if release else 0
                )

    def _class(self, state: PlacementState, name: str) -> None:
        resource = state.class_resources.get(name, "")
        if self._resources.get(name, resource) == resource:
            return
        self._resources[name] = resource
        uids = [found.uid for found in state.devices_of_class(name)]
        if self.ready:
            self._refile(state, uids, 0)

    def _refile(self, state: PlacementState, uids: Iterable[str], since: int) -> None:
        """These subjects belong elsewhere since `since` (ms; 0: nobody says, so since now)."""
        for uid in uids:
            if uid in self._pods:
                mark = self._pods[uid]
                self._judge(state, mark, Moment(since) if since else self._about(state, mark.start))
            elif uid in self._devices:
                device = self._devices[uid]
                what = self._refiled(state, device.span)
                if what == device.span.what:
                    continue
                moment = Moment(since) if since else self._about(state, device.span.start)
                if not device.span.what.resource_name:
                    moment = device.span.start
                self._advance(device, what, moment)
                if device.seen.attachment is not None:
                    self._judge_launchers(state, device.seen, moment)

    def _about(self, state: PlacementState, start: Moment | None) -> Moment:
        return between(state.now, start.at if start is not None else state.now, state.now)

    # Devices

    def _device(self, state: PlacementState, uid: str, event: events.Event) -> None:
        if uid in state.pending:
            return
        found = state.device_by_uid(uid)
        if found is not None:
            self._confirm(state, found)
            return
        mark = self._devices.get(uid)
        if mark is None:
            return
        start = mark.span.start.at
        if isinstance(event, events.ObjectDeleted) and event.uid == uid and event.seen:
            end = between(state.now, max(start, min(mark.seen.deleting or 0, state.now)), state.now)
        else:
            end = usage_pods.unseen_end(mark.seen.deleting, self._last_seen(event, uid), state.now, start)
        self._emit([closed(mark.span, end)])
        self._forget_device(mark)
        self._judge_launchers(state, mark.seen, end)

    def _last_seen(self, event: events.Event, uid: str) -> int:
        if isinstance(event, events.ObjectDeleted) and event.uid == uid and event.last_seen:
            return event.last_seen
        return self._gap

    def _confirm(self, state: PlacementState, device: Device) -> None:
        """A value the API server has (never an assumed one)."""
        mark = self._devices.get(device.uid)
        seen = usage_devices.slim(device)
        if mark is not None and mark.seen == seen:
            return
        before = None if mark is None else mark.seen
        filed = self._filed(state, device.class_name, device.namespace)
        span = None if mark is None else mark.span
        for step in usage_devices.steps(before, span, seen, filed, state.now, self._gap):
            if mark is None and step.what is not None:
                mark = DeviceMark(seen=seen, span=Span(step.what, step.moment))
            elif mark is not None and step.what is not None:
                self._advance(mark, step.what, step.moment)
            elif mark is not None:
                self._emit([closed(mark.span, step.moment.not_before(mark.span.start.at))])
                self._forget_device(mark)
                mark = None
        if mark is not None:
            self._remember_device(mark, before, seen)
        since = usage_devices.covers_since(before, seen, state.now)
        if since is not None:
            for one in (before, seen):
                if one is not None:
                    self._judge_launchers(state, one, since)

    def _advance(self, mark: DeviceMark, what: What, moment: Moment) -> None:
        moment = moment.not_before(mark.span.start.at)
        self._emit([closed(mark.span, moment)])
        mark.span = Span(what, moment)

    def _remember_device(self, mark: DeviceMark, before: Device | None, seen: Device) -> None:
        if before is not None and (owner := _owner(before)) is not None:
            _drop(self._devices_of, owner, seen.uid)
        mark.seen = seen
        self._devices[seen.uid] = mark
        self._in_namespace.setdefault(seen.namespace, {})[seen.uid] = None
        if (owner := _owner(seen)) is not None:
            self._devices_of.setdefault(owner, {})[seen.uid] = None

    def _forget_device(self, mark: DeviceMark) -> None:
        seen = mark.seen
        self._devices.pop(seen.uid, None)
        if (owner := _owner(seen)) is not None:
            _drop(self._devices_of, owner, seen.uid)
        self._leave(seen.namespace, seen.uid)

    def _leave(self, namespace: str, uid: str) -> None:
        _drop(self._in_namespace, namespace, uid)
        if namespace not in self._in_namespace:
            self._tenants.pop(namespace, None)

    # Pods

    def _pod(self, state: PlacementState, uid: str, event: events.Event) -> None:
        pod, mark = state.pod(uid), self._pods.get(uid)
        if pod is not None:
            self._observe(state, pod, mark)
        elif mark is not None:
            self._vanish(state, mark, event)

    def _observe(self, state: PlacementState, pod: Pod, mark: PodMark | None) -> None:
        if not pod.requests or (mark is not None and mark.over):
            return
        if mark is None:
            unproven = pod.terminal and (pod.vmi_name != "" or pod.finished <= self._began)
            mark = PodMark(seen=usage_pods.slim(pod), over=unproven)
            self._remember_pod(mark)
            if unproven:
                return
        mark.seen = usage_pods.slim(pod)
        start = usage_pods.began(pod)
        if mark.start is not None and start is not None and start != mark.start:
            for line in mark.lines.values():
                line.restart(mark.start, start)
        mark.start = start
        if pod.terminal and start is not None:
            mark.end = usage_pods.finished(pod, state.now, start.at)
        self._judge(state, mark, self._about(state, start))
        if pod.terminal and start is None:
            mark.over = True

    def _vanish(self, state: PlacementState, mark: PodMark, event: events.Event) -> None:
        uid = mark.seen.uid
        if mark.start is not None and mark.end is None and not mark.over:
            start, deleting = mark.start.at, mark.seen.deleting
            if isinstance(event, events.ObjectDeleted) and event.uid == uid and event.seen:
                mark.end = usage_pods.vanished(mark.seen, state.now, start, state.settings.settle)
            else:
                mark.end = usage_pods.unseen_end(deleting, self._last_seen(event, uid), state.now, start)
            self._judge(state, mark, mark.end)
        if self.ready or mark.start is None or mark.over:
            self._forget_pod(mark)

    def _judge_all(self, state: PlacementState, uids: Iterable[str]) -> None:
        for uid in sorted(uids):
            mark = self._pods[uid]
            self._judge(state, mark, self._about(state, mark.start))
            if mark.over and state.pod(uid) is None:
                self._forget_pod(mark)

    def _judge_launchers(self, state: PlacementState, device: Device, moment: Moment) -> None:
        owner = _owner(device)
        for uid in sorted(self._pods_of.get(owner, {})) if owner is not None else ():
            self._judge(state, self._pods[uid], moment)

    def _judge(self, state: PlacementState, mark: PodMark, moment: Moment) -> None:
        """What no device covers of the pod since `moment`; the first time, and when it turns out to be a launcher,
        since its start (U1b)."""
        if not self.ready or mark.start is None or mark.over:
            return
        attached = self._attached(mark.seen)
        if self._proven(state, mark, bool(attached)):
            mark.lines.clear()
            mark.judged = False
        if not mark.judged:
            mark.judged, moment = True, mark.start
        moment = moment.not_before(mark.start.at)
        units = usage_pods.raw_units(mark, attached, state.effective_names)
        above = self._tenants_of(state, mark.seen.namespace)
        for name in sorted({*units, *mark.lines}):
            what = usage_pods.raw_what(mark, name, units[name], above) if name in units else None
            mark.lines.setdefault(name, Timeline()).put(what, moment)
        if mark.end is not None:
            self._end(state, mark, mark.end.not_before(mark.start.at))

    def _end(self, state: PlacementState, mark: PodMark, end: Moment) -> None:
        for name in sorted(mark.lines):
            mark.lines[name].put(None, end)
            facts, _ = mark.lines[name].facts(state.settings.settle)
            self._emit(facts)
        mark.lines = {}
        mark.over = True

    def _attached(self, pod: Pod) -> list[Named]:
        found = self._devices_of.get((pod.namespace, pod.vmi_name), {}) if pod.vmi_name else {}
        marks = [self._devices[uid] for uid in sorted(found)]
        return [(mark.seen, mark.span.what.resource_name) for mark in marks]

    def _proven(self, state: PlacementState, mark: PodMark, attached: bool) -> bool:
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

    def _remember_pod(self, mark: PodMark) -> None:
        pod = mark.seen
        self._pods[pod.uid] = mark
        self._in_namespace.setdefault(pod.namespace, {})[pod.uid] = None
        if pod.vmi_name:
            self._pods_of.setdefault((pod.namespace, pod.vmi_name), {})[pod.uid] = None

    def _forget_pod(self, mark: PodMark) -> None:
        pod = mark.seen
        self._pods.pop(pod.uid, None)
        if pod.vmi_name:
            _drop(self._pods_of, (pod.namespace, pod.vmi_name), pod.uid)
        self._leave(pod.namespace, pod.uid)

    # Snapshots

    def export(self) -> Memory:
        """What the state does not know (J6)."""
        return Memory(
            ready=self.ready,
            began=self._began,
            gap=self._gap,
            last_at=self._last_at,
            devices=[self._devices[uid] for uid in sorted(self._devices)],
            pods=[self._pods[uid] for uid in sorted(self._pods)],
            parked=self._parked,
        )

    def restore(self, state: PlacementState, memory: Memory) -> None:
        """As exported, beside the restored state."""
        self.ready = memory.ready
        self._began, self._gap, self._last_at = memory.began, memory.gap, memory.last_at
        self._parked = list(memory.parked)
        for mark in memory.devices:
            self._remember_device(mark, None, mark.seen)
        for pod in memory.pods:
            self._remember_pod(pod)
        for namespace in self._in_namespace:
            self._tenants_of(state, namespace)
        for mark in memory.devices:
            self._filed(state, mark.seen.class_name, mark.seen.namespace)
        self._names = state.effective_names
        state.touched.clear()
        state.landed.clear()


def _tenants_above(state: PlacementState, namespace: str) -> tuple[str, ...]:
    path = state.charges.path(namespace)
    known = tuple(tenant for tenant in path if state.claims.owner(tenant) is not None)
    if known or ROOT_TENANT not in path:
        return known
    return (ROOT_TENANT,)


def _owner(device: Device) -> Owner | None:
    return None if device.attachment is None else (device.namespace, device.attachment.vmi_name)


def _drop(index: dict, key: object, uid: str) -> None:  # type: ignore[type-arg]
    found = index.get(key)
    if found is not None:
        found.pop(uid, None)
        if not found:
            del index[key]
