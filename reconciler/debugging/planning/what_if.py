"""Apply hypothetical changes to a copy of the placement state.

Owns the effects of a hold, a start, a stop and a cordon, expressed as the binder's own writes. Decides nothing: `plan`
runs the binder's checks and applies their result here. A copy is never written anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reconciler.core import index_updates, snapshot
from reconciler.core.admission.binds import moved
from reconciler.core.admission.checks import Start
from reconciler.core.model.device_state import accepted
from reconciler.core.model.objects import (
    DEVICE,
    NODE,
    POD,
    VMI,
    Attachment,
    BindAnswer,
    BindRequest,
    Constraints,
    Device,
    Placement,
)
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.vocabulary import DEVICE_FINALIZER, Outcome, Phase
from reconciler.core.state.placement_state import PlacementState


def copy(state: PlacementState) -> PlacementState:
    """An independent copy of the state."""
    return snapshot.restore(snapshot.export(state))


def hold(state: PlacementState, namespace: str, name: str, class_name: str, count: int) -> None:
    """Create and accept an order (P1b); a Pending one of this name becomes Held."""
    known = state.device(namespace, name)
    ordered = known or Device(
        name=name,
        namespace=namespace,
        uid=f"{DEVICE.name}/{namespace}/{name}",
        created=state.now,
        finalizers=(DEVICE_FINALIZER,),
        class_name=class_name,
        count=count,
    )
    index_updates.replace(state, DEVICE.name, known, moved(ordered, Phase.HELD, state.now))


def cordon(state: PlacementState, node: str) -> None:
    """Mark the node unschedulable. Raises `LookupError` for an unknown node."""
    known = state.node(node)
    if known is None:
        raise LookupError(node)
    index_updates.replace(state, NODE.name, known, msgspec.structs.replace(known, unschedulable=True))


def restart_of(state: PlacementState, namespace: str, vmi_name: str) -> Start:
    """What a VMI would request after a stop and start: its held devices and its templates (P5), with
    the constraints of its last request. The devices are those before the stop."""
    devices = state.devices_of_vmi(namespace, vmi_name)
    request = next((device.bind_request for device in devices if device.bind_request is not None), None)
    templates = [device for device in devices if device.template]
    return Start(
        namespace=namespace,
        vmi_name=vmi_name,
        devices=tuple(device for device in devices if not device.template),
        templates=tuple(TemplateReference(device.class_name, device.count) for device in templates),
        constraints=request.constraints if request is not None else Constraints(),
    )


def stop(state: PlacementState, namespace: str, vmi_name: str) -> None:
    """Remove the VMI and its launchers: held devices are Held, template devices go (P5). Deleted ones lose everything
    they hold and stay as deleted, so that a start that refers to one is told so."""
    vmi = state.vmi(namespace, vmi_name)
    if vmi is not None:
        for pod in state.launchers(vmi):
            index_updates.replace(state, POD.name, pod, None)
        index_updates.replace(state, VMI.name, vmi, None)
    for device in state.devices_of_vmi(namespace, vmi_name):
        index_updates.replace(state, DEVICE.name, device, _released(state, device))


def _released(state: PlacementState, device: Device) -> Device | None:
    if device.template:
        return None
    return moved(
        device,
        Phase.HELD if accepted(device) and device.deleting is None else Phase.PENDING,
        state.now,
        attachment=None,
        bind_request=None,
        bind_answer=None,
        placement=None,
    )


def current(state: PlacementState, start: Start) -> Start:
    """The start with the current values of its devices; deleted ones stay as they were."""
    devices = [state.device(device.namespace, device.name) or device for device in start.devices]
    return msgspec.structs.replace(start, devices=tuple(devices))


def place(state: PlacementState, start: Start, node: str) -> None:
    """Place the set on the node with its launcher still to come, as the binder does on acceptance (B2)."""
    request = BindRequest(
        id=f"{start.namespace}/{start.vmi_name}",
        vmi_name=start.vmi_name,
        set_size=len(start.devices) + len(start.templates),
        constraints=start.constraints,
        requested_at=state.now,
    )
    for device in (*start.devices, *_made(state, start)):
        bound = moved(
            device,
            Phase.BOUND,
            state.now,
            attachment=Attachment(vmi_name=start.vmi_name, request_id=request.id, since=state.now),
            bind_request=request,
            bind_answer=BindAnswer(
                request_id=request.id, outcome=Outcome.BOUND.value, node=node, answered_at=state.now
            ),
            placement=Placement(node=node, units=device.count, since=state.now),
        )
        index_updates.replace(state, DEVICE.name, state.device(device.namespace, device.name), bound)


def _made(state: PlacementState, start: Start) -> Sequence[Device]:
    """The template devices of a start. A "/" in their names rules out collisions."""
    return [
        Device(
            name=f"{start.vmi_name}/{index}",
            namespace=start.namespace,
            uid=f"{DEVICE.name}/{start.namespace}/{start.vmi_name}/{index}",
            created=state.now,
            template=True,
            finalizers=(DEVICE_FINALIZER,),
            class_name=template.class_name,
            count=template.count,
        )
        for index, template in enumerate(start.templates)
    ]
