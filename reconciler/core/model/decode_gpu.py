"""Decodes this product's own kinds, GPUDevice, GPUClass and GPUNode, into the model's structs.

Owns what makes one of them unreadable (R10): bounds and enums are checked again here, since a status may have
been written before the CRD bounded it. `status_patches` encodes them; neighbours: `wire_base`, `wire`.
"""

from __future__ import annotations

from msgspec import field

from reconciler.core.model import objects
from reconciler.core.model.vocabulary import EPOCH_ANNOTATION, TEMPLATE_LABEL, TRUE, FunctionKind, Mode, Outcome, Phase
from reconciler.core.model.wire_base import Meta, Natural, Positive, ShapeError, Time, Wire, common, ms


class ConditionWire(Wire, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: Time | None = None


def _conditions(wires: tuple[ConditionWire, ...] | None) -> tuple[objects.Condition, ...]:
    return tuple(
        objects.Condition(
            wire.type,
            wire.status,
            wire.reason,
            wire.message,
            wire.observed_generation,
            ms(wire.last_transition_time),
        )
        for wire in wires or ()
    )


class AttachmentWire(Wire, frozen=True):
    vmi_name: str
    request_id: str = field(default="", name="requestID")
    since: Time | None = None


class NodeAffinityWire(Wire, frozen=True):
    node_selector_terms: tuple[objects.Term, ...] | None = None


class ConstraintsWire(Wire, frozen=True):
    node_selector: dict[str, str] | None = None
    node_affinity: NodeAffinityWire | None = None
    tolerations: tuple[objects.Toleration, ...] | None = None
    memory_bytes: Natural = 0


class BindRequestWire(Wire, frozen=True):
    id: str
    vmi_name: str
    set_size: Positive
    constraints: ConstraintsWire | None = None
    requested_at: Time | None = None


class BindAnswerWire(Wire, frozen=True):
    request_id: str = field(name="requestID")
    outcome: Outcome
    reason: str = ""
    message: str = ""
    node: str = ""
    answered_at: Time | None = None


class PlacementWire(Wire, frozen=True):
    node: str
    units: Positive
    since: Time | None = None


class DeviceLabels(Wire, frozen=True):
    template: str = field(default="", name=TEMPLATE_LABEL)


class DeviceAnnotations(Wire, frozen=True):
    epoch: str = field(default="", name=EPOCH_ANNOTATION)


class OwnMeta(Meta, frozen=True):
    generation: int = 0
    finalizers: tuple[str, ...] | None = None


class DeviceMeta(OwnMeta, frozen=True):
    labels: DeviceLabels | None = None
    annotations: DeviceAnnotations | None = None


class DeviceSpec(Wire, frozen=True):
    class_name: str = ""
    count: Positive = 1


class DeviceStatus(Wire, frozen=True):
    observed_generation: int = 0
    phase: Phase | None = None
    phase_since: Time | None = None
    attachment: AttachmentWire | None = None
    bind_request: BindRequestWire | None = None
    bind_answer: BindAnswerWire | None = None
    placement: PlacementWire | None = None
    conditions: tuple[ConditionWire, ...] | None = None


class DeviceWire(Wire, frozen=True):
    metadata: DeviceMeta | None = None
    spec: DeviceSpec | None = None
    status: DeviceStatus | None = None


def device(wire: DeviceWire) -> objects.Device:
    meta, spec, status = wire.metadata or DeviceMeta(), wire.spec or DeviceSpec(), wire.status or DeviceStatus()
    base = common(meta)
    if not spec.class_name:
        raise ShapeError("spec.className is missing")
    return objects.Device(
        **base,
        generation=meta.generation,
        finalizers=meta.finalizers or (),
        template=(meta.labels or DeviceLabels()).template == TRUE,
        epoch=(meta.annotations or DeviceAnnotations()).epoch,
        class_name=spec.class_name,
        count=spec.count,
        observed_generation=status.observed_generation,
        phase=str(status.phase or ""),
        phase_since=ms(status.phase_since),
        attachment=_attachment(status.attachment),
        bind_request=_request(status.bind_request),
        bind_answer=_answer(status.bind_answer),
        placement=_placement(status.placement),
        conditions=_conditions(status.conditions),
    )


def _attachment(wire: AttachmentWire | None) -> objects.Attachment | None:
    if wire is None:
        return None
    return objects.Attachment(wire.vmi_name, wire.request_id, ms(wire.since))


def _request(wire: BindRequestWire | None) -> objects.BindRequest | None:
    if wire is None:
        return None
    asked = wire.constraints or ConstraintsWire()
    constraints = objects.Constraints(
        asked.node_selector or {},
        None if asked.node_affinity is None else asked.node_affinity.node_selector_terms,
        asked.tolerations or (),
        asked.memory_bytes,
    )
    return objects.BindRequest(wire.id, wire.vmi_name, wire.set_size, constraints, ms(wire.requested_at))


def _answer(wire: BindAnswerWire | None) -> objects.BindAnswer | None:
    if wire is None:
        return None
    return objects.BindAnswer(
        wire.request_id, str(wire.outcome), wire.reason, wire.message, wire.node, ms(wire.answered_at)
    )


def _placement(wire: PlacementWire | None) -> objects.Placement | None:
    if wire is None:
        return None
    return objects.Placement(wire.node, wire.units, ms(wire.since))


class ClassSpec(Wire, frozen=True):
    resource_name: str = ""
    mode: Mode | None = None
    max_count: Positive | None = None
    display_name: str = ""
    description: str = ""


class ClassStatus(Wire, frozen=True):
    observed_generation: int = 0
    units: objects.ClassUnits | None = None
    largest_free: objects.LargestFree | None = None
    conditions: tuple[ConditionWire, ...] | None = None


class ClassWire(Wire, frozen=True):
    metadata: OwnMeta | None = None
    spec: ClassSpec | None = None
    status: ClassStatus | None = None


def gpu_class(wire: ClassWire) -> objects.GpuClass:
    meta, spec, status = wire.metadata or OwnMeta(), wire.spec or ClassSpec(), wire.status or ClassStatus()
    base = common(meta)
    if not spec.resource_name:
        raise ShapeError("spec.resourceName is missing")
    if spec.mode is None:
        raise ShapeError("spec.mode is missing")
    return objects.GpuClass(
        **base,
        generation=meta.generation,
        finalizers=meta.finalizers or (),
        resource_name=spec.resource_name,
        mode=spec.mode,
        max_count=spec.max_count,
        display_name=spec.display_name,
        description=spec.description,
        observed_generation=status.observed_generation,
        units=status.units,
        largest_free=status.largest_free,
        conditions=_conditions(status.conditions),
    )


class ProfileWire(Wire, frozen=True):
    resource_name: str
    used: Natural = 0
    remaining: Natural = 0


class FunctionWire(Wire, frozen=True):
    id: str
    kind: FunctionKind
    stable_id: str = field(default="", name="stableID")
    parent: str = ""
    resource_name: str = ""
    healthy: bool = True
    message: str = ""
    profiles: tuple[ProfileWire, ...] | None = None


class ReportStatus(Wire, frozen=True):
    reported_at: Time | None = None
    functions: tuple[FunctionWire, ...] | None = None


class ReportWire(Wire, frozen=True):
    metadata: Meta | None = None
    status: ReportStatus | None = None


def gpu_node(wire: ReportWire) -> objects.GpuNode:
    status = wire.status or ReportStatus()
    return objects.GpuNode(
        **common(wire.metadata),
        reported_at=ms(status.reported_at),
        functions=tuple(_function(one) for one in status.functions or ()),
    )


def _function(wire: FunctionWire) -> objects.Function:
    return objects.Function(
        wire.id,
        wire.stable_id,
        wire.parent,
        str(wire.kind),
        wire.resource_name,
        wire.healthy,
        wire.message,
        tuple(
            objects.Profile(profile.resource_name, profile.used, profile.remaining) for profile in wire.profiles or ()
        ),
    )
