"""Keep one node's account current: its units in use, its shortage, and since when.

Owns the recount of a node after a change, departed cards (gone from the agent's report while the node still
advertises them, C27) and the start of the grace period for missing units (P4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from reconciler.core.capacity import coverage, node_units, supply
from reconciler.core.capacity.node_units import NameTotals, Units, Usage
from reconciler.core.model import resource_names
from reconciler.core.model.device_state import holds_units
from reconciler.core.model.objects import Device, Function, GpuNode
from reconciler.core.state import requeue
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.state.work_queue import ItemKind, WorkItem


def note_report(state: PlacementState, node: str, old: GpuNode | None, new: GpuNode | None) -> None:
    """Remember which names the node's agent has spoken of, and count the cards that left its report; `refresh`
    forgets those ghosts once the node's own number follows (C27)."""
    if new is None:
        state.vanished.pop(node, None)
        state.spoken.pop(node, None)
        return
    state.spoken.setdefault(node, set()).update(resource_names.reported_names(new))
    if old is None:
        return
    vanished = state.vanished.setdefault(node, {})
    for before, after, sign in ((old, new, 1), (new, old, -1)):
        for function in before.functions:
            if function.healthy and not any(
                other.healthy and supply.same_function(function, other) for other in after.functions
            ):
                for name, count in _serves(function).items():
                    vanished[name] = max(0, vanished.get(name, 0) + sign * count)


def _serves(function: Function) -> dict[str, int]:
    """Units per name that one function serves."""
    found = {profile.resource_name: profile.used + profile.remaining for profile in function.profiles}
    if function.resource_name:
        found[function.resource_name] = 1
    return found


def refresh(state: PlacementState, node: str) -> None:
    """Recount one node, update the free index and enqueue the items that follow."""
    usage = usage_on(state, node)
    wanted = {*usage.placed, *usage.raw}
    found, report = state.node(node), state.report(node)
    if found is not None and found.allocatable is not None:
        wanted.update(name for name in found.allocatable if name in state.effective_names)
    if report is not None:
        wanted.update(resource_names.reported_names(report))
    _cap_vanished(state, node)
    before = state.accounts.get(node, {})
    after = account(state, node, usage, wanted)
    if found is None and not any(entry.placed or entry.raw for entry in after.values()):
        after = {}
    state.usage[node] = usage
    state.accounts[node] = after
    if not after:
        del state.accounts[node], state.usage[node]
    for name in sorted({*before, *after}):
        _publish(state, node, name, before.get(name, Units()), after.get(name, Units()))
    _check_served(state, node, {name: after.get(name, Units()) for name in (*before, *after)})


def _publish(state: PlacementState, node: str, name: str, before: Units, after: Units) -> None:
    totals = state.totals.get(name)
    if totals is None:
        totals = state.totals[name] = NameTotals()
    if before != after:
        totals.change(node, before, after)
        for class_name in state.classes_of(name):
            state.enqueue_class_soon(class_name)
        if state.free.set(node, name, after.free) > 0:
            requeue.units_returned(state, name)
    totals.mark(
        node,
        silent=state.known_served(node, name) is None,
        disagreeing=_disagrees(state, node, name, after),
    )


def _disagrees(state: PlacementState, node: str, name: str, entry: Units) -> bool:
    """Types that share a card's memory are excluded: their count drops as siblings are used."""
    if entry.allocatable is None or entry.served is None or entry.allocatable == entry.served:
        return False
    report = state.report(node)
    shares = report is not None and any(p.resource_name == name for f in report.functions for p in f.profiles)
    return state.report_fresh(node) and not shares


def _check_served(state: PlacementState, node: str, account: Mapping[str, Units]) -> None:
    item = WorkItem(ItemKind.NODE, 0, node)
    for name, entry in account.items():
        served = state.provable_served(node, name) if state.synced else None
        short = served is not None and entry.placed > served
        if not short:
            _end_shortage(state, node, name)
        elif (node, name) not in state.short_since:
            state.short_since[(node, name)] = state.now
            state.work_queue.add_at(state.now + state.settings.lost_grace, item)
    if node in state.devices.by_node:
        state.work_queue.add(item)


def _end_shortage(state: PlacementState, node: str, name: str) -> None:
    """The shortage is over; not yet where a loss that ends it is only assumed, or its conflict would begin a second
    grace time."""
    if (node, name) in state.short_since and not any(state.awaited(d.uid) for d in state.devices_on(node)):
        del state.short_since[(node, name)]


def _cap_vanished(state: PlacementState, node: str) -> None:
    vanished = state.vanished.get(node)
    if not vanished:
        return
    found, report = state.node(node), state.report(node)
    for name in sorted(vanished):
        spoken: Collection[str] = state.spoken.get(node, frozenset())
        served = node_units.served(found, report, state.report_fresh(node), spoken, name) if found else None
        allocatable = (found.allocatable or {}).get(name, 0) if found else 0
        vanished[name] = min(vanished[name], max(0, allocatable - (served or 0)))
        if not vanished[name]:
            del vanished[name]
    if not vanished:
        del state.vanished[node]


def account(state: PlacementState, node: str, usage: Usage, wanted: Iterable[str]) -> dict[str, Units]:
    """The account of the wanted names on a node, assuming `usage` (R9)."""
    return node_units.account(
        state.node(node),
        state.report(node),
        state.report_fresh(node),
        usage,
        state.vanished.get(node, {}),
        state.spoken.get(node, frozenset()),
        sorted(set(wanted)),
    )


def usage_on(state: PlacementState, node: str, without: frozenset[str] = frozenset()) -> Usage:
    """Units in use on a node, excluding the devices whose uid is in `without` (R8, R9)."""
    usage = Usage(placed={}, raw={}, requests={}, absent={})
    by_vmi: dict[tuple[str, str], list[tuple[Device, str]]] = {}
    for device in state.devices_on(node):
        if not holds_units(device) or device.uid in without:
            continue
        name = state.resource_of(device)
        if not name or device.placement is None:
            continue
        usage.placed[name] = usage.placed.get(name, 0) + device.placement.units
        vmi_name = device.attachment.vmi_name if device.attachment is not None else ""
        by_vmi.setdefault((device.namespace, vmi_name), []).append((device, name))
    for uid in sorted(state.gpu_pods_on.get(node, ())):
        pod = state.pod(uid)
        if pod is None or pod.terminal:
            continue
        for name, amount in pod.requests.items():
            if name in state.effective_names:
                usage.requests[name] = usage.requests.get(name, 0) + amount
        for name, amount in state.raw_capacity.get(uid, {}).items():
            usage.raw[name] = usage.raw.get(name, 0) + amount
    for (namespace, vmi_name), devices in sorted(by_vmi.items()):
        vmi = state.vmi(namespace, vmi_name) if vmi_name else None
        pods = state.launchers(vmi) if vmi is not None else []
        for name, amount in coverage.absent_launcher_units(vmi, node, pods, devices).items():
            usage.absent[name] = usage.absent.get(name, 0) + amount
    return usage
