"""Apply one object's change to the indexes and add the work items that follow.

`replace(state, kind, old, new)` is the only way an object enters or leaves the state. One function per kind,
each symmetrical in old and new, so that the order in which objects arrive changes nothing (R9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from reconciler.core.admission import attachments
from reconciler.core.capacity import coverage
from reconciler.core.metering.meter import METERED
from reconciler.core.model import resource_names
from reconciler.core.model.device_state import accepted, pending_order, unplaced_hold
from reconciler.core.model.objects import (
    CLASS,
    DEVICE,
    GPU_NODE,
    KUBEVIRT,
    NAMESPACE,
    NODE,
    POD,
    RELEASE,
    SETTINGS,
    VMI,
    Device,
    GpuClass,
    GpuNode,
    KubeVirt,
    Namespace,
    Node,
    Object,
    Pod,
    Release,
    Vmi,
)
from reconciler.core.state import node_accounts, requeue
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.state.work_queue import ItemKind, WorkItem
from reconciler.core.tenancy import tenants


class Dirty(msgspec.Struct):
    """What has to be recounted after one event."""

    pods: set[str] = msgspec.field(default_factory=set)
    nodes: set[str] = msgspec.field(default_factory=set)
    names: bool = False
    """The set of effective names may have changed."""
    budgets: bool = False
    """Budgets have to be reparsed: a class or the effective names changed."""
    unheld: set[str] = msgspec.field(default_factory=set)
    """Resource names of which a hold ended."""
    uncharged: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """(namespace, resource name) whose charge fell."""


def replace(state: PlacementState, kind: str, old: Object | None, new: Object | None) -> None:
    """Replace `old` with `new` (None: absent) and update every index."""
    objects = state.objects[kind]
    if new is not None:
        objects[(new.namespace, new.name)] = new
    elif old is not None:
        objects.pop((old.namespace, old.name), None)
    item = new or old
    if item is not None and kind in METERED:
        state.touched[(kind, item.namespace, item.name, item.uid)] = None
    dirty = Dirty()
    _UPDATES[kind](state, old, new, dirty)
    flush(state, dirty)


def load(state: PlacementState, kind: str, new: Object) -> None:
    """Insert an object without updating sums; the caller runs `refresh_all` afterwards."""
    state.objects[kind][(new.namespace, new.name)] = new
    _UPDATES[kind](state, None, new, Dirty())


def flush(state: PlacementState, dirty: Dirty) -> None:
    """Recount what is dirty: names first, then pods, then their nodes."""
    if dirty.names and _refresh_names(state):
        dirty.pods.update(state.raw_budget)
        dirty.pods.update(uid for uids in state.gpu_pods_on.values() for uid in uids)
        dirty.nodes.update(name for _, name in state.objects[NODE.name])
        dirty.budgets = True
        state.work_queue.add(WorkItem(ItemKind.SETTINGS, 0, ""))
    if dirty.budgets:
        for tenant in state.charges.tenants():
            _set_budgets(state, tenant)
        state.enqueue_orders(state.devices.waiting.class_names())
    raw_use: dict[str, _RawUse] = {}
    for uid in sorted(dirty.pods):
        _refresh_pod(state, uid, raw_use, dirty)
    for node in sorted(dirty.nodes):
        node_accounts.refresh(state, node)
    for name in sorted(dirty.unheld):
        requeue.units_returned(state, name)
    for namespace, name in sorted(dirty.uncharged):
        requeue.charge_fell(state, namespace, name)


def refresh_all(state: PlacementState) -> None:
    """Recount everything and enqueue every item: after the first lists, new settings or a snapshot."""
    dirty = Dirty(names=True, budgets=True)
    dirty.pods.update(pod.uid for pod in state.objects[POD.name].values() if _requesting(pod))  # type: ignore[arg-type]
    dirty.nodes.update(name for _, name in state.objects[NODE.name])
    dirty.nodes.update(state.devices.by_node)
    flush(state, dirty)
    for device in state.all_devices():
        state.enqueue_for(device)
    for gpu_class in state.classes():
        state.work_queue.add(WorkItem(ItemKind.CLASS, 0, gpu_class.name))
    state.work_queue.add(WorkItem(ItemKind.SETTINGS, 0, ""))


def _refresh_names(state: PlacementState) -> bool:
    effective = frozenset(
        resource_names.effective_names(
            state.settings.resource_names,
            [found.resource_name for found in state.classes()],
            sorted(name for name, count in state.reported_names.items() if count),
            state.permitted or (),
        )
    )
    changed = effective != state.effective_names
    state.effective_names = effective
    return changed


_RawUse: TypeAlias = tuple[dict[str, int], dict[str, int]]
"""A pod's raw units per name: for budgets and for its node (R8)."""


def _refresh_pod(state: PlacementState, uid: str, raw_use: dict[str, _RawUse], dirty: Dirty) -> None:
    """`raw_use`: what is already counted in this flush, by pod UID; launchers of one VMI are counted together."""
    pod = state.pod(uid)
    before = state.raw_budget.pop(uid, {})
    for name, amount in sorted(before.items()):
        state.charges.add_usage(_namespace_of(state, uid, pod), tenants.raw_key(name), -amount)
    state.raw_capacity.pop(uid, None)
    if pod is None or pod.terminal:
        namespace = state.pod_namespaces.pop(uid, "")
        dirty.uncharged.update((namespace, name) for name in before)
        return
    if uid not in raw_use:
        raw_use.update(_raw_use(state, pod))
    budget, state.raw_capacity[uid] = raw_use[uid]
    state.pod_namespaces[uid] = pod.namespace
    dirty.uncharged.update((pod.namespace, name) for name in before if budget.get(name, 0) < before[name])
    if budget:
        state.raw_budget[uid] = budget
        for name, amount in sorted(budget.items()):
            state.charges.add_usage(pod.namespace, tenants.raw_key(name), amount)
    if pod.node:
        dirty.nodes.add(pod.node)


def _raw_use(state: PlacementState, pod: Pod) -> dict[str, _RawUse]:
    """Raw use of a pod and, where it is a launcher, of every launcher of its VMI, by UID."""
    vmi = state.vmi(pod.namespace, pod.vmi_name) if pod.vmi_name else None
    pods, attached = {pod.uid: pod}, []
    if vmi is not None and coverage.is_launcher(pod, vmi):
        pods.update((found.uid, found) for found in state.launchers(vmi))
        attached = [(d, state.resource_of(d)) for d in state.devices_of_vmi(vmi.namespace, vmi.name) if accepted(d)]
    budget = coverage.raw_for_budget(pods.values(), vmi, attached, state.effective_names)
    capacity = coverage.raw_for_capacity(pods.values(), vmi, attached, state.effective_names)
    return {uid: (budget[uid], capacity[uid]) for uid in pods}


def _namespace_of(state: PlacementState, uid: str, pod: Pod | None) -> str:
    return pod.namespace if pod is not None else state.pod_namespaces[uid]


def _touch_vmi(state: PlacementState, namespace: str, name: str, dirty: Dirty) -> None:
    vmi = state.vmi(namespace, name)
    if vmi is not None:
        dirty.pods.update(vmi.active_pods)


def _node(state: PlacementState, old: Node | None, new: Node | None, dirty: Dirty) -> None:
    item = new or old
    assert item is not None
    state.labels.update(old, new)
    dirty.nodes.add(item.name)


def _pod(state: PlacementState, old: Pod | None, new: Pod | None, dirty: Dirty) -> None:
    counts_alike = old is not None and new is not None and _counted(old) == _counted(new)
    for pod, sign in ((old, -1), (new, 1)):
        if pod is None:
            continue
        if pod.node and not pod.terminal:
            state.memory_on[pod.node] += sign * pod.memory
            if not state.memory_on[pod.node]:
                del state.memory_on[pod.node]
        if _requesting(pod) and not counts_alike:
            dirty.pods.add(pod.uid)
            if pod.node:
                on_node = state.gpu_pods_on.setdefault(pod.node, set())
                (on_node.add if sign > 0 else on_node.discard)(pod.uid)
                if not on_node:
                    del state.gpu_pods_on[pod.node]
                dirty.nodes.add(pod.node)
            if pod.vmi_name:
                _touch_vmi(state, pod.namespace, pod.vmi_name, dirty)
        if sign < 0:
            state.pod_by_uid.pop(pod.uid, None)
        else:
            state.pod_by_uid[pod.uid] = (pod.namespace, pod.name)
    vmi_pod = new or old
    if vmi_pod is not None and vmi_pod.vmi_name:
        _enqueue_devices(state, vmi_pod.namespace, vmi_pod.vmi_name)


def _requesting(pod: Pod) -> bool:
    """Whether the pod is in the account of its node; a finished one leaves it (R6)."""
    return bool(pod.requests) and not pod.terminal


def _counted(pod: Pod) -> tuple[object, ...]:
    """The fields of a pod that the sums depend on; going from Pending to Running changes none."""
    return pod.uid, pod.node, pod.terminal, pod.requests, pod.vmi_name


def _vmi(state: PlacementState, old: Vmi | None, new: Vmi | None, dirty: Dirty) -> None:
    """The sums depend on the pods a VMI lists, not on its phase."""
    counts_alike = old is not None and new is not None and old.active_pods == new.active_pods
    for vmi in (old, new):
        if vmi is not None and not counts_alike:
            dirty.pods.update(vmi.active_pods)
    vmi = new or old
    assert vmi is not None
    for device in state.devices_of_vmi(vmi.namespace, vmi.name):
        if new is not None:
            attachments.note_vmi(state, device, new)
        state.enqueue_device(device)
        if device.placement is not None and not counts_alike:
            dirty.nodes.add(device.placement.node)


def _enqueue_devices(state: PlacementState, namespace: str, vmi_name: str) -> None:
    for device in state.devices_of_vmi(namespace, vmi_name):
        state.enqueue_device(device)


def _device(state: PlacementState, old: Device | None, new: Device | None, dirty: Dirty) -> None:
    state.devices.update(old, new)
    for device, sign in ((old, -1), (new, 1)):
        if device is None:
            continue
        if accepted(device):
            _charge(state, device, sign)
        if device.attachment is not None:
            _touch_vmi(state, device.namespace, device.attachment.vmi_name, dirty)
        if device.placement is not None:
            dirty.nodes.add(device.placement.node)
        if sign < 0:
            state.enqueue_request(device)
        state.enqueue_class_soon(device.class_name)
    if new is None and old is not None:
        state.seen_vmis.pop(old.uid, None)
        state.unfenced.discard(old.uid)
        state.unfenceable.discard(old.uid)
        state.attached_since.pop(old.uid, None)
        _forget_class(state, old.class_name, dirty)
    if new is not None:
        attachments.note_attachment(state, new)
        if new.attachment is not None:
            vmi = state.vmi(new.namespace, new.attachment.vmi_name)
            if vmi is not None:
                attachments.note_vmi(state, new, vmi)
        state.enqueue_for(new)
    if old is not None:
        _note_freed(state, old, new, dirty)


def _note_freed(state: PlacementState, old: Device, new: Device | None, dirty: Dirty) -> None:
    """Mark what a changed device frees for others: its hold, its charge, its place among equal orders."""
    name = state.resource_of(old)
    if unplaced_hold(old) and not (new is not None and unplaced_hold(new)):
        dirty.unheld.add(name)
    if accepted(old) and not (new is not None and accepted(new)):
        dirty.uncharged.add((old.namespace, name))
    if pending_order(old) and not (new is not None and pending_order(new)):
        for ticket in state.devices.waiting.alike(old)[:1]:
            state.enqueue_order(*ticket)


def _charge(state: PlacementState, device: Device, sign: int) -> None:
    state.charges.add_usage(device.namespace, tenants.class_key(device.class_name), sign * device.count)
    resource = state.class_resources.get(device.class_name)
    if resource:
        state.charges.add_usage(device.namespace, tenants.raw_key(resource), sign * device.count)


def _class(state: PlacementState, old: GpuClass | None, new: GpuClass | None, dirty: Dirty) -> None:
    item = new or old
    assert item is not None
    dirty.names = True
    if new is not None and state.class_resources.get(new.name) != new.resource_name:
        charged = [device for device in state.devices_of_class(new.name) if accepted(device)]
        for device in charged:
            _charge(state, device, -1)
        state.class_resources[new.name] = new.resource_name
        for device in charged:
            _charge(state, device, 1)
            if device.placement is not None:
                dirty.nodes.add(device.placement.node)
            if device.attachment is not None:
                _touch_vmi(state, device.namespace, device.attachment.vmi_name, dirty)
    if (old is None) != (new is None) or (old and new and old.uid != new.uid):
        dirty.budgets = True
    _forget_class(state, item.name, dirty)
    if old is None or new is None or _judged(old) != _judged(new):
        state.enqueue_orders([item.name])
    state.work_queue.add(WorkItem(ItemKind.CLASS, 0, item.name))


def _forget_class(state: PlacementState, name: str, dirty: Dirty) -> None:
    """Drop a deleted class with its last device: no budget key refers to it any more (K3)."""
    if name in state.class_resources and state.gpu_class(name) is None and not state.devices.by_class.get(name):
        del state.class_resources[name]
        dirty.budgets = True


def _judged(found: GpuClass) -> tuple[object, ...]:
    """The fields of a class that decide orders; its status does not."""
    return found.uid, found.resource_name, found.mode, found.max_count, found.deleting


def _gpu_node(state: PlacementState, old: GpuNode | None, new: GpuNode | None, dirty: Dirty) -> None:
    item = new or old
    assert item is not None
    state.silent.discard(item.name)
    node_accounts.note_report(state, item.name, old, new)
    for report, sign in ((old, -1), (new, 1)):
        if report is not None:
            for name in resource_names.reported_names(report):
                state.reported_names[name] += sign
    dirty.names = True
    dirty.nodes.add(item.name)


def _release(state: PlacementState, old: Release | None, new: Release | None, dirty: Dirty) -> None:
    touched = {state.claims.drop(old) if old is not None else None}
    touched.add(state.claims.put(new) if new is not None else None)
    for namespace in sorted(filter(None, touched)):
        owner = state.claims.owner(namespace)
        if owner is None:
            state.charges.remove_tenant(namespace)
        else:
            state.charges.add_tenant(namespace, tenants.parent_of(*owner))
            _set_budgets(state, namespace)
        requeue.tenant_changed(state, namespace)


def _set_budgets(state: PlacementState, namespace: str) -> None:
    """Set a tenant's budgets from the release that owns its namespace."""
    release = state.tenant_release(namespace)
    if release is not None:
        state.charges.set_budgets(namespace, state.budgets_of(release))


def _kubevirt(state: PlacementState, old: KubeVirt | None, new: KubeVirt | None, dirty: Dirty) -> None:
    if new is None:
        return
    state.permitted = new.permitted
    dirty.names = True
    state.enqueue_orders(state.devices.waiting.class_names())
    for gpu_class in state.classes():
        state.work_queue.add(WorkItem(ItemKind.CLASS, 0, gpu_class.name))


def _namespace(state: PlacementState, old: Namespace | None, new: Namespace | None, dirty: Dirty) -> None:
    item = new or old
    assert item is not None
    if (old.entitlement if old else None) != (new.entitlement if new else None):
        requeue.entitlement_changed(state, item.name)


def _settings(state: PlacementState, old: Object | None, new: Object | None, dirty: Dirty) -> None:
    state.work_queue.add(WorkItem(ItemKind.SETTINGS, 0, ""))


_UPDATES: dict[str, Callable[[PlacementState, Any, Any, Dirty], None]] = {
    NODE.name: _node,
    POD.name: _pod,
    VMI.name: _vmi,
    DEVICE.name: _device,
    CLASS.name: _class,
    GPU_NODE.name: _gpu_node,
    RELEASE.name: _release,
    KUBEVIRT.name: _kubevirt,
    NAMESPACE.name: _namespace,
    SETTINGS.name: _settings,
}
