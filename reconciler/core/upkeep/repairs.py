"""Reactions to facts: fencing after a change of leader, releases, losses and returns (P4, P5, J5).

Owns when an attachment ends, what a deleted device waits for, and which device loses its units on a shortage.
Recomputed from facts each time (does the VMI exist, does a launcher live), never from condition history.
"""

from __future__ import annotations

import msgspec

from reconciler.core.admission.binds import ACCEPTED, held, moved, status_write, subject
from reconciler.core.model.device_state import accepted, holds_units
from reconciler.core.model.objects import DEVICE, Device
from reconciler.core.model.vocabulary import DEVICE_FINALIZER, EPOCH_ANNOTATION, Outcome, Phase
from reconciler.core.state.decisions import Action, Decision, Verb, write
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.state.work_queue import ItemKind, WorkItem


def fence(state: PlacementState, item: WorkItem) -> Decision | None:
    """Touch a device once under this leadership, so that an older leader's grant conflicts (J5)."""
    device = state.device_by_uid(item.name)
    if device is None or not state.needs_fence(device.uid):
        return None
    if not state.writable(device.uid) or not state.readable(device):
        return None
    after = msgspec.structs.replace(device, epoch=state.mark)
    return Decision(
        action=Action.FENCE,
        kind=DEVICE.name,
        subject=subject(device),
        message=f"under leadership {state.epoch}",
        writes=(
            write(
                DEVICE,
                device,
                after,
                Verb.PATCH,
                {"metadata": {"annotations": {EPOCH_ANNOTATION: after.epoch}}},
            ),
        ),
    )


# One device


def device(state: PlacementState, item: WorkItem) -> Decision | None:
    """Finalize, release or undo a device according to its own facts."""
    found = state.device(item.namespace, item.name)
    if found is None or not state.settled(found):
        return None
    if found.deleting is not None:
        return _deleted(state, found)
    if found.attachment is None:
        return _unattached(state, found, item)
    return _attached(state, found)


def _deleted(state: PlacementState, found: Device) -> Decision | None:
    """Releasing while its VMI uses the units; then the units are returned in a status every replica sees; then our
    finalizer is removed (O2, U1). observedGeneration follows where somebody can still read it: on a device that waits
    or that other finalizers keep."""
    if DEVICE_FINALIZER not in found.finalizers:
        return None
    if holds_units(found) and _vmi_lives(state, found):
        if found.phase == Phase.RELEASING and found.observed_generation == found.generation:
            return None
        vmi = found.attachment.vmi_name if found.attachment is not None else ""
        message = f"deleted; it goes when VMI {vmi} has ended"
        after = moved(
            found,
            Phase.RELEASING,
            state.now,
            observed_generation=found.generation,
            conditions=held(found, True, "Releasing", message, state.now),
        )
        return _releasing(found, after, Action.AWAIT, message)
    released = found.phase == Phase.RELEASING and found.attachment is None and found.placement is None
    if accepted(found) and not released:
        stays = found.phase == Phase.RELEASING or found.finalizers != (DEVICE_FINALIZER,)
        after = msgspec.structs.replace(
            found,
            phase=Phase.RELEASING.value,
            phase_since=state.now,
            observed_generation=found.generation if stays else found.observed_generation,
            attachment=None,
            bind_request=None,
            bind_answer=None,
            placement=None,
        )
        return _releasing(found, after, Action.RELEASE, "deleted")
    rest = tuple(name for name in found.finalizers if name != DEVICE_FINALIZER)
    after = msgspec.structs.replace(found, finalizers=rest)
    return Decision(
        action=Action.FINALIZE,
        kind=DEVICE.name,
        subject=subject(found),
        message="its units are released",
        writes=(write(DEVICE, found, after, Verb.PATCH, {"metadata": {"finalizers": list(rest)}}),),
    )


def _releasing(found: Device, after: Device, action: Action, message: str) -> Decision:
    return Decision(
        action=action,
        kind=DEVICE.name,
        subject=subject(found),
        node=found.placement.node if found.placement is not None else "",
        message=message,
        writes=(status_write(found, after),),
    )


def _vmi_lives(state: PlacementState, found: Device) -> bool:
    """The attachment's VMI exists and is not finished, or has not had its time to appear (P5)."""
    return _ending(state, found) == ""


def _ending(state: PlacementState, found: Device) -> str:
    """Why the attachment has ended, "" while it has not; a VMI yet to appear is checked again at its deadline."""
    attachment = found.attachment
    if attachment is None:
        return "no VMI is attached"
    vmi = state.vmi(found.namespace, attachment.vmi_name)
    request, _, uid = state.seen_vmis.get(found.uid, "").partition("/")
    seen = uid if request == attachment.request_id else ""
    if vmi is not None and seen and vmi.uid != seen:
        return f"VMI {vmi.name} is another one than the device was attached for"
    if vmi is not None:
        return f"VMI {vmi.name} has finished ({vmi.phase})" if vmi.final else ""
    if seen:
        return f"VMI {attachment.vmi_name} is gone"
    due = state.attached_since[found.uid][1] + state.settings.attach_grace
    if state.now >= due:
        return f"VMI {attachment.vmi_name} never appeared"
    state.work_queue.add_at(due, WorkItem(ItemKind.DEVICE, 0, found.name, found.namespace))
    return ""


def _unattached(state: PlacementState, found: Device, item: WorkItem) -> Decision | None:
    if found.template:
        due = state.attached_since[found.uid][1] + state.settings.attach_grace
        if accepted(found) or found.placement is not None or state.now >= due:
            return _delete(state, found, "it has no VMI")
        state.work_queue.add_at(due, item)
        return None
    leftover = found.placement is not None or found.bind_request is not None or found.bind_answer is not None
    if leftover or found.phase in (Phase.ATTACHED, Phase.BOUND, Phase.LOST):
        return _release(state, found, "no VMI is attached")
    return None


def _attached(state: PlacementState, found: Device) -> Decision | None:
    ending = _ending(state, found)
    if not ending:
        return _unbroken(state, found)
    if found.template:
        return _delete(state, found, ending)
    return _release(state, found, ending)


def _unbroken(state: PlacementState, found: Device) -> Decision | None:
    """Release a placement whose set never completed: the webhook undid its writes on one device (B3)."""
    if found.placement is None or found.bind_request is None or found.bind_answer is None:
        return None
    if found.bind_answer.outcome == Outcome.BOUND and found.bind_answer.request_id == found.bind_request.id:
        return None
    state.enqueue_request(found)
    return None


def _release(state: PlacementState, found: Device, why: str) -> Decision:
    after = moved(
        found,
        Phase.HELD if accepted(found) else Phase.PENDING,
        state.now,
        attachment=None,
        bind_request=None,
        bind_answer=None,
        placement=None,
        conditions=held(found, True, "Accepted", ACCEPTED, state.now) if accepted(found) else found.conditions,
    )
    return Decision(
        action=Action.RELEASE,
        kind=DEVICE.name,
        subject=subject(found),
        node=found.placement.node if found.placement is not None else "",
        message=why,
        writes=(status_write(found, after),),
    )


def _delete(state: PlacementState, found: Device, why: str) -> Decision:
    after = msgspec.structs.replace(found, deleting=state.now)
    return Decision(
        action=Action.DELETE,
        kind=DEVICE.name,
        subject=subject(found),
        node=found.placement.node if found.placement is not None else "",
        message=why,
        writes=(write(DEVICE, found, after, Verb.DELETE, {}),),
    )


# One node


def node(state: PlacementState, item: WorkItem) -> Decision | None:
    """Mark devices Lost on a node that has been short for too long, or restore them (P4)."""
    for name in sorted({state.resource_of(found) for found in state.devices_on(item.name)}):
        decision = _lose(state, item.name, name) or _restore(state, item.name, name)
        if decision is not None:
            state.work_queue.add(WorkItem(ItemKind.NODE, 0, item.name))
            return decision
    return None


def _lose(state: PlacementState, node_name: str, name: str) -> Decision | None:
    served = state.provable_served(node_name, name)
    since = state.short_since.get((node_name, name))
    if served is None or since is None or state.now < since + state.settings.lost_grace:
        return None
    holders = [found for found in _on(state, node_name, name) if holds_units(found)]
    placed = sum(found.placement.units for found in holders if found.placement is not None)
    candidates = sorted(holders, key=lambda found: _loses_first(state, found))
    loser = next((found for found in candidates if state.settled(found) or state.awaited(found.uid)), None)
    if placed <= served or loser is None or state.awaited(loser.uid):
        return None
    assert loser.placement is not None
    message = f"node {node_name} serves {served} {name} and {placed} are placed there"
    public = state.settings.public(f"its node serves fewer {name} than are placed there")
    after = moved(
        loser,
        Phase.LOST,
        state.now,
        conditions=held(loser, False, "NodeServesFewer", public or message, state.now),
    )
    return Decision(
        action=Action.LOSE,
        kind=DEVICE.name,
        subject=subject(loser),
        node=node_name,
        message=message,
        missing=placed - served,
        public=public,
        writes=(status_write(loser, after),),
    )


def _on(state: PlacementState, node_name: str, name: str) -> list[Device]:
    return [found for found in state.devices_on(node_name) if state.resource_of(found) == name]


def _loses_first(state: PlacementState, found: Device) -> tuple[bool, int, str]:
    """Without a live launcher first, then the youngest placement, then by uid (P4)."""
    since = found.placement.since if found.placement is not None else 0
    return state.has_live_launcher(found), -since, found.uid


def _restore(state: PlacementState, node_name: str, name: str) -> Decision | None:
    served = _served_again(state, node_name, name)
    if not served:
        return None
    lost = [
        found
        for found in _on(state, node_name, name)
        if found.phase == Phase.LOST and found.deleting is None and _vmi_lives(state, found)
    ]
    for found in sorted(lost, key=_oldest_first):
        if state.awaited(found.uid):
            return None
        if not state.settled(found) or found.placement is None:
            continue
        if not _room_again(state, found, node_name, name):
            continue
        after = moved(
            found,
            Phase.BOUND,
            state.now,
            conditions=held(found, True, "Bound", f"the units are on node {node_name}", state.now),
        )
        return Decision(
            action=Action.RESTORE,
            kind=DEVICE.name,
            subject=subject(found),
            node=node_name,
            message=f"node {node_name} serves {served} {name} again",
            public=state.settings.public("its node serves its units again"),
            writes=(status_write(found, after),),
        )
    return None


def _served_again(state: PlacementState, node_name: str, name: str) -> int | None:
    """Units a node serves for devices that return: whatever lowered the number, so the kubelet's count serves where
    the agent is silent (R5, P4)."""
    found = state.node(node_name)
    if found is None or not found.ready or not state.settings.report_margin:
        return state.known_served(node_name, name)
    return state.units_on(node_name, name).served


def _oldest_first(found: Device) -> tuple[int, str]:
    return (found.placement.since if found.placement is not None else 0), found.uid


def _room_again(state: PlacementState, found: Device, node_name: str, name: str) -> bool:
    """Whether the node has the units again; those requested by the device's own live launcher count as its own."""
    units = state.units_on(node_name, name)
    assert found.placement is not None and found.attachment is not None
    vmi = state.vmi(found.namespace, found.attachment.vmi_name)
    launchers = state.launchers(vmi) if vmi is not None else []
    own = sum(state.raw_capacity.get(pod.uid, {}).get(name, 0) for pod in launchers if pod.node == node_name)
    need = found.placement.units
    served = (units.served or 0) - units.placed - units.raw + min(own, need)
    kubelet = (units.allocatable or 0) - units.requests - units.absent
    return served >= need and (min(own, need) == need or kubelet >= need - min(own, need))
