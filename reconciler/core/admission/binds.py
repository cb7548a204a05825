"""Answers to bind requests and orders: the only place where units are given (P1b, B2).

Owns the writes of acceptance and refusal. The checks are `checks`', the node is `placement`'s.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reconciler.core.admission import checks
from reconciler.core.admission.checks import Refusal, Start
from reconciler.core.model import status_patches
from reconciler.core.model.device_state import accepted, answered, holds_units, pending_order
from reconciler.core.model.objects import DEVICE, BindAnswer, Condition, Device, Placement
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.text import are, counted
from reconciler.core.model.vocabulary import CONDITION_HELD, DEVICE_FINALIZER, Outcome, Phase
from reconciler.core.model.wire_base import from_ms
from reconciler.core.state.decisions import Action, Decision, Verb, Write, write
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.state.work_queue import WorkItem

ACCEPTED = "the units are held for this order"


def subject(device: Device) -> str:
    return f"{device.namespace}/{device.name}"


def status_write(before: Device, after: Device) -> Write:
    """The status patch from one device value to another: only what differs, null for removed fields."""
    body: dict[str, object] = {}
    if after.phase != before.phase:
        body["phase"] = after.phase
    if after.phase_since != before.phase_since:
        body["phaseSince"] = from_ms(after.phase_since)
    if after.observed_generation != before.observed_generation:
        body["observedGeneration"] = after.observed_generation
    if after.attachment != before.attachment:
        body["attachment"] = status_patches.attachment_body(after.attachment)
    if after.bind_request != before.bind_request:
        body["bindRequest"] = status_patches.request_body(after.bind_request, before.bind_request)
    if after.bind_answer != before.bind_answer:
        body["bindAnswer"] = status_patches.answer_body(after.bind_answer)
    if after.placement != before.placement:
        body["placement"] = status_patches.placement_body(after.placement)
    if after.conditions != before.conditions:
        body["conditions"] = [status_patches.condition_body(condition) for condition in after.conditions]
    return write(DEVICE, before, after, Verb.STATUS, {"status": body})


def moved(device: Device, phase: Phase, now: int, **fields: Any) -> Device:
    """The device in another phase with its transition time; other fields as given."""
    since = device.phase_since if device.phase == phase and device.phase_since else now
    return msgspec.structs.replace(device, phase=phase.value, phase_since=since, **fields)


def with_condition(
    conditions: tuple[Condition, ...],
    type_: str,
    status: bool,
    reason: str,
    message: str,
    generation: int,
    now: int,
) -> tuple[Condition, ...]:
    """The conditions with one of them set; the transition time moves only when the status does."""
    value = "True" if status else "False"
    before = next((found for found in conditions if found.type == type_), None)
    since = before.last_transition_time if before is not None and before.status == value else now
    new = Condition(
        type=type_,
        status=value,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=since,
    )
    return tuple(sorted((*(c for c in conditions if c.type != type_), new), key=lambda c: c.type))


def held(device: Device, status: bool, reason: str, message: str, now: int) -> tuple[Condition, ...]:
    return with_condition(device.conditions, CONDITION_HELD, status, reason, message, device.generation, now)


# Orders


def order(state: PlacementState, item: WorkItem) -> Decision | None:
    """Accept a pending order, or record why it stays Pending (P1b)."""
    device = state.device_by_uid(item.name)
    if device is None or not pending_order(device) or not state.settled(device):
        return None
    refusal = checks.check_order(state, device.namespace, device.class_name, device.count)
    if refusal is not None:
        return _refuse_order(state, device, refusal)
    if DEVICE_FINALIZER not in device.finalizers:
        return guard(device)
    after = moved(
        device,
        Phase.HELD,
        state.now,
        observed_generation=device.generation,
        conditions=held(device, True, "Accepted", ACCEPTED, state.now),
    )
    return Decision(
        action=Action.HOLD,
        kind=DEVICE.name,
        subject=subject(device),
        message=f"{counted(device.count, 'unit')} of {device.class_name} {are(device.count)} held",
        writes=(status_write(device, after),),
    )


def guard(device: Device) -> Decision:
    """Put our finalizer on a device before its units count (O2)."""
    after = msgspec.structs.replace(device, finalizers=(*device.finalizers, DEVICE_FINALIZER))
    return Decision(
        action=Action.GUARD,
        kind=DEVICE.name,
        subject=subject(device),
        message="the device stays until its units are released",
        writes=(write(DEVICE, device, after, Verb.PATCH, {"metadata": {"finalizers": list(after.finalizers)}}),),
    )


def _refuse_order(state: PlacementState, device: Device, refusal: Refusal) -> Decision | None:
    public = state.settings.public(refusal.public)
    after = moved(
        device,
        Phase.PENDING,
        state.now,
        observed_generation=device.generation,
        conditions=held(device, False, refusal.reason.value, public or refusal.message, state.now),
    )
    if after == device:
        return None
    return Decision(
        action=Action.REFUSE_ORDER,
        kind=DEVICE.name,
        subject=subject(device),
        reason=refusal.reason.value,
        message=refusal.message,
        missing=refusal.missing,
        public=public,
        writes=(status_write(device, after),),
    )


# Bind requests


def request(state: PlacementState, item: WorkItem) -> Decision | None:
    """Answer a request whose whole set carries it; an incomplete one waits (B2)."""
    devices = state.devices_of_request(item.name)
    if not complete(devices) or settled_set(devices):
        return None
    if not all(state.settled(device) for device in devices):
        return None
    start = start_of(devices)
    verdict = checks.judge_start(state, start)
    if isinstance(verdict, Refusal):
        return _refuse_bind(state, devices, verdict)
    if any(DEVICE_FINALIZER not in device.finalizers for device in devices):
        return guard(next(device for device in devices if DEVICE_FINALIZER not in device.finalizers))
    elsewhere = [d for d in devices if d.placement is not None and d.placement.node != verdict.node]
    if elsewhere:
        return _unplace(elsewhere[0])
    return _bind(state, devices, verdict.node)


def complete(devices: list[Device]) -> bool:
    """Every device of the set carries the request, attached to its VMI and to no other (B2)."""
    if not devices or devices[0].bind_request is None:
        return False
    first = devices[0].bind_request
    return len(devices) == first.set_size and all(
        device.bind_request == first
        and device.attachment is not None
        and device.attachment.vmi_name == first.vmi_name
        and device.namespace == devices[0].namespace
        for device in devices
    )


def agree(devices: list[Device]) -> bool:
    """All refused, or all bound and still on the node of the answers."""
    answers = [device.bind_answer for device in devices if device.bind_answer is not None]
    if any(answer.outcome != answers[0].outcome or answer.node != answers[0].node for answer in answers):
        return False
    if answers[0].outcome == Outcome.REFUSED:
        return True
    return all(device.placement is not None for device in devices)


def settled_set(devices: list[Device]) -> bool:
    """The set has been answered and no leader would decide it again."""
    return complete(devices) and all(answered(device) for device in devices) and agree(devices)


def start_of(devices: list[Device]) -> Start:
    """The start a set of devices asks for: those accepted before are holds, the others are templates."""
    first = devices[0]
    assert first.bind_request is not None
    made = tuple(device for device in devices if device.template and not accepted(device))
    return Start(
        namespace=first.namespace,
        vmi_name=first.bind_request.vmi_name,
        devices=tuple(device for device in devices if device not in made),
        templates=tuple(TemplateReference(device.class_name, device.count) for device in made),
        constraints=first.bind_request.constraints,
        made=made,
    )


def _bind(state: PlacementState, devices: list[Device], node: str) -> Decision:
    writes = []
    for device in devices:
        assert device.bind_request is not None
        after = moved(
            device,
            Phase.BOUND,
            state.now,
            observed_generation=device.generation,
            placement=_placement(device, node, state.now),
            bind_answer=BindAnswer(
                request_id=device.bind_request.id,
                outcome=Outcome.BOUND.value,
                node=node,
                answered_at=state.now,
            ),
            conditions=held(device, True, "Bound", f"the units are on node {node}", state.now),
        )
        writes.append(status_write(device, after))
    return Decision(
        action=Action.BIND,
        kind=DEVICE.name,
        subject=f"{devices[0].namespace}/{_vmi_name(devices)}",
        request_id=_request_id(devices),
        node=node,
        message=f"{counted(sum(device.count for device in devices), 'unit')} on node {node}",
        writes=tuple(writes),
    )


def _unplace(device: Device) -> Decision:
    """Half of a set that was placed before goes from its node first, then the set is decided: no device ever moves
    from node to node in one write (J5)."""
    assert device.placement is not None
    after = msgspec.structs.replace(device, placement=None, bind_answer=None)
    if holds_units(device):
        after = msgspec.structs.replace(after, phase=Phase.ATTACHED.value)
    return Decision(
        action=Action.RELEASE,
        kind=DEVICE.name,
        subject=subject(device),
        node=device.placement.node,
        message="its set is placed anew",
        writes=(status_write(device, after),),
    )


def _placement(device: Device, node: str, now: int) -> Placement:
    if device.placement is not None and device.placement.node == node and holds_units(device):
        return device.placement
    return Placement(node=node, units=device.count, since=now)


def _refuse_bind(state: PlacementState, devices: list[Device], refusal: Refusal) -> Decision:
    public = state.settings.public(refusal.public)
    writes = []
    for device in devices:
        assert device.bind_request is not None
        kept = device.placement if device.phase == Phase.LOST else None
        phase = Phase.ATTACHED if device.phase == Phase.BOUND else Phase(device.phase or Phase.PENDING)
        after = moved(
            device,
            phase,
            state.now,
            placement=kept,
            conditions=held(device, True, "Accepted", ACCEPTED, state.now)
            if device.phase == Phase.BOUND
            else device.conditions,
            bind_answer=BindAnswer(
                request_id=device.bind_request.id,
                outcome=Outcome.REFUSED.value,
                reason=refusal.reason.value,
                message=public or refusal.message,
                answered_at=state.now,
            ),
        )
        writes.append(status_write(device, after))
    return Decision(
        action=Action.REFUSE_BIND,
        kind=DEVICE.name,
        subject=f"{devices[0].namespace}/{_vmi_name(devices)}",
        request_id=_request_id(devices),
        reason=refusal.reason.value,
        message=refusal.message,
        missing=refusal.missing,
        public=public,
        writes=tuple(writes),
    )


def _vmi_name(devices: list[Device]) -> str:
    return devices[0].bind_request.vmi_name if devices[0].bind_request is not None else ""


def _request_id(devices: list[Device]) -> str:
    return devices[0].bind_request.id if devices[0].bind_request is not None else ""
