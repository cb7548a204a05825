"""Record what the report shows while the journal is folded.

Owns bars (who holds which units, from when to when) and series (what each node has). Neighbours: `incidents` (what
was decided and why), `build` (feeds the entries).

The nodes and devices an entry changed are exact: the state's own dicts of accounts and devices are tracked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from journal import events
from journal.events import Entry
from reconciler.core.capacity.node_units import Units
from reconciler.core.fold import fold
from reconciler.core.model.device_state import accepted
from reconciler.core.model.objects import DEVICE, Device
from reconciler.core.model.vocabulary import Phase
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging import replay
from reconciler.debugging.report.incidents import Incidents
from reconciler.debugging.report.page_data import BARS, Bar, Bounds, ReportData
from reconciler.debugging.report.series import Noted, Series, Value

UNKNOWN = -1
"""Served units of a silent node (R5)."""


class TimelineBuilder:
    """Folds entries into its own state and records what changes."""

    def __init__(self, state: PlacementState, start: int, bounds: Bounds, explained: frozenset[int]) -> None:
        """`explained`: the entries whose decisions are explained."""
        self._state = state
        self._start = start
        self._entry: Entry | None = None
        self._accounts = state.accounts = Noted(state.accounts)
        self._devices = state.objects[DEVICE.name] = Noted(state.objects[DEVICE.name])
        self._series: Series[tuple[str, str]] = Series(bounds.points)
        self._current: dict[tuple[str, str], Value] = {}
        self._of_node: dict[str, set[str]] = {}
        self._totals: dict[str, list[int]] = {}
        self._open: dict[str, Bar] = {}
        self._raw_on: dict[str, dict[tuple[str, str], Bar]] = {}
        self._began: dict[str, int] = {}
        self._bars: deque[Bar] = deque(maxlen=bounds.bars)
        self._closed = 0
        self._incidents = Incidents(bounds, explained)
        self._note(start)

    def take(self, entry: Entry) -> None:
        """One entry: explain it if it is a decision, fold it, record what changed."""
        self._entry = entry
        if isinstance(entry.event, events.Decided):
            decision = replay.decision_of(entry.event)
            if decision.action in BARS:
                self._began.update((write.uid, entry.seq) for write in decision.writes)
            self._incidents.decided(self._state, entry, decision)
        elif isinstance(entry.event, events.AdmissionRefused):
            self._incidents.refused(self._state, entry, entry.event)
        fold(self._state, entry)
        self._note(max(self._start, self._state.now))

    # Changes

    def _note(self, at: int) -> None:
        devices, nodes = self._devices.take(), self._accounts.take()
        names: set[str] = set()
        for namespace, name in devices:
            device = self._state.device(namespace, name)
            self._bar(f"{namespace}/{name}", device, at)
            if device is not None:
                names.add(self._state.resource_of(device))
        for node in nodes:
            names |= self._node(node, at)
            self._raw(node, at)
        if devices:
            names.update(self._totals)
        for name in sorted(names - {""}):
            total = self._totals.setdefault(name, [0, 0, 0, 0, 0, 0])
            served, placed, raw, free, unknown, beyond = total
            self._series.put(("", name), at, (served, placed, raw, free, self._state.held(name), unknown, beyond))

    def _node(self, node: str, at: int) -> set[str]:
        """Note a node's units; the names whose numbers changed."""
        account = self._state.accounts.get(node, {})
        known = self._of_node.setdefault(node, set())
        known.update(account)
        changed = set()
        for name in known:
            value, before = _value(account.get(name)), self._current.get((node, name), (0, 0, 0, 0))
            if value == before:
                continue
            changed.add(name)
            self._current[(node, name)] = value
            self._series.put((node, name), at, value)
            total = self._totals.setdefault(name, [0, 0, 0, 0, 0, 0])
            for index in range(4):
                total[index] += max(0, value[index]) - max(0, before[index])
            total[4] += (value[0] == UNKNOWN) - (before[0] == UNKNOWN)
            total[5] += _beyond(value) - _beyond(before)
        return changed

    def _bar(self, key: str, device: Device | None, at: int) -> None:
        bar, view = self._open.get(key), self._view(device, at)
        if bar is not None and view is not None and _same(bar, view):
            return
        if bar is not None:
            self._close(self._open.pop(key), at)
        if view is not None:
            self._open[key] = view
        entry = self._entry
        if entry is None or isinstance(entry.event, events.Decided) or device is None:
            return
        if bar is not None and view is not None and bar.kind != view.kind:
            self._incidents.seen(entry, view, device)

    def _view(self, device: Device | None, at: int) -> Bar | None:
        """The bar of a device that is on a node, as if it began now."""
        if device is None or device.placement is None or not accepted(device):
            return None
        return Bar(
            start=at,
            end=at,
            units=device.placement.units,
            node=device.placement.node,
            kind="lost" if device.phase == Phase.LOST else "bound",
            namespace=device.namespace,
            name=device.name,
            vmi=device.attachment.vmi_name if device.attachment is not None else "",
            resource=self._state.resource_of(device),
            seq=self._began.get(device.uid, 0),
        )

    def _raw(self, node: str, at: int) -> None:
        known = self._raw_on.get(node, {})
        found = dict(self._raw_users(node))
        if not known and not found:
            return
        for key in sorted(known.keys() | found.keys()):
            bar, units = known.get(key), found.get(key, 0)
            if bar is not None and bar.units != units:
                del known[key]
                if not self._covered(key[0], bar):
                    self._close(bar, at)
                bar = None
            if bar is None and units:
                known[key] = self._raw_bar(key, node, units, at)
        self._raw_on[node] = known
        if not known:
            del self._raw_on[node]

    def _raw_users(self, node: str) -> Iterator[tuple[tuple[str, str], int]]:
        """((pod uid, resource name), units) of everything no device covers on a node (R8)."""
        for uid in self._state.gpu_pods_on.get(node, ()):
            for name, units in self._state.raw_capacity.get(uid, {}).items():
                if units:
                    yield (uid, name), units

    def _raw_bar(self, key: tuple[str, str], node: str, units: int, at: int) -> Bar:
        pod = self._state.pod(key[0])
        assert pod is not None
        return Bar(
            start=at,
            end=at,
            units=units,
            node=node,
            kind="raw",
            namespace=pod.namespace,
            name=pod.name,
            vmi=pod.vmi_name,
            resource=key[1],
        )

    def _covered(self, uid: str, bar: Bar) -> bool:
        """Not raw use: a live pod that its VMI lists was its launcher from the start (U1b); one with a Lost device is
        shown as lost."""
        pod = self._state.pod(uid)
        vmi = self._state.vmi(pod.namespace, pod.vmi_name) if pod is not None and pod.vmi_name else None
        if pod is not None and vmi is not None and uid in vmi.active_pods and not pod.terminal:
            return True
        return self._lost_beside(bar)

    def _lost_beside(self, bar: Bar) -> bool:
        lost = (found for found in self._open.values() if found.kind == "lost" and found.node == bar.node)
        return any((found.namespace, found.vmi) == (bar.namespace, bar.vmi) for found in lost)

    def _close(self, bar: Bar, at: int) -> None:
        bar.end = at
        if bar.end > bar.start:
            self._bars.append(bar)
            self._closed += 1

    # The end

    def data(self, first_seq: int, last_seq: int, end: int | None) -> ReportData:
        """Everything recorded; what is still going on is open and ends at `end`, the last entry's time where None."""
        end = max(self._start, self._state.now if end is None else end)
        raw = (bar for bars in self._raw_on.values() for bar in bars.values())
        still = [*self._open.values(), *(bar for bar in raw if not self._lost_beside(bar))]
        for bar in sorted(still, key=lambda bar: (bar.start, bar.node, bar.namespace, bar.name)):
            bar.end, bar.open = end, True
            self._bars.append(bar)
        points = self._series.points
        return ReportData(
            start=self._start,
            end=end,
            first_seq=first_seq,
            last_seq=last_seq,
            series={key: found for key, found in sorted(points.items()) if key[0]},
            totals={key[1]: found for key, found in sorted(points.items()) if not key[0]},
            step=self._series.step,
            classes=self._classes(),
            bars=list(self._bars),
            dropped_bars=self._closed + len(still) - len(self._bars),
            incidents=self._incidents.in_order(),
            counts=self._incidents.counts,
            explained=list(self._incidents.explained),
        )

    def _classes(self) -> dict[str, list[str]]:
        """Resource name to the classes that sell it."""
        found: dict[str, list[str]] = {}
        for class_name, resource in sorted(self._state.class_resources.items()):
            found.setdefault(resource, []).append(class_name)
        return found


def _value(units: Units | None) -> Value:
    if units is None:
        return (0, 0, 0, 0)
    return (UNKNOWN if units.served is None else units.served, units.placed, units.raw, units.free)


def _beyond(value: Value) -> int:
    """Units in use beyond what the node serves; on a silent node all that are in use."""
    served, placed, raw, _ = value
    return max(0, placed + raw - max(0, served))


def _same(bar: Bar, view: Bar) -> bool:
    fields: Iterable[str] = ("node", "kind", "units", "vmi", "resource")
    return all(getattr(bar, field) == getattr(view, field) for field in fields)
