"""Decodes nodes, pods and VMIs into the model's structs.

Owns which of their fields are read at all: a field that no struct here declares is never decoded, so environment
values and cloud-init data cannot reach the journal (J3). Decoding raises `ShapeError` for invalid values
(R10). Neighbours: `decode_platform`, `decode_gpu` (the other kinds), `wire` (watch lines and lists).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from msgspec import field

from reconciler.core.model import objects, quantities
from reconciler.core.model.vocabulary import (
    CREATED_BY_LABEL,
    DOMAIN_ANNOTATION,
    KUBEVIRT_LABEL,
    LAUNCHER,
)
from reconciler.core.model.wire_base import Meta, ShapeError, Time, Wire, common, ms

Amount: TypeAlias = str | int | float
"""A quantity; the API server writes strings."""

_SIDECAR = "Always"
_OWNER_KIND = objects.VMI.name


def extended(name: str) -> bool:
    """Whether Kubernetes treats the name as an extended resource: it has a domain, and not one of Kubernetes' own."""
    return "/" in name and "kubernetes.io/" not in name


@lru_cache(maxsize=4096, typed=True)
def _units(value: Amount) -> int:
    return quantities.whole_units(value)


@lru_cache(maxsize=4096, typed=True)
def _bytes(value: Amount) -> int:
    return quantities.whole_bytes(value)


def _amounts(resources: Mapping[str, Amount], where: str) -> dict[str, int]:
    found = {}
    for name, value in resources.items():
        try:
            if name == "memory":
                found[name] = _bytes(value)
            elif extended(name):
                found[name] = _units(value)
        except quantities.QuantityError as error:
            raise ShapeError(f"{where}[{name}]: {error}") from None
    return found


class NodeMeta(Meta, frozen=True):
    labels: dict[str, str] | None = None


class NodeSpec(Wire, frozen=True):
    unschedulable: bool = False
    taints: tuple[objects.Taint, ...] | None = None


class StatusCondition(Wire, frozen=True):
    type: str = ""
    status: str = ""


class NodeStatus(Wire, frozen=True):
    allocatable: dict[str, Amount] | None = None
    conditions: tuple[StatusCondition, ...] | None = None


class NodeWire(Wire, frozen=True):
    metadata: NodeMeta | None = None
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


def node(wire: NodeWire) -> objects.Node:
    meta, spec, status = wire.metadata or NodeMeta(), wire.spec or NodeSpec(), wire.status or NodeStatus()
    amounts = None
    if status.allocatable is not None:
        amounts = _amounts(status.allocatable, "status.allocatable")
    memory = amounts.pop("memory", 0) if amounts else 0
    ready = any(found.type == "Ready" and found.status == "True" for found in status.conditions or ())
    return objects.Node(
        **common(meta),
        labels=meta.labels or {},
        unschedulable=spec.unschedulable,
        taints=spec.taints or (),
        ready=ready,
        allocatable=amounts,
        memory=memory,
    )


class PodLabels(Wire, frozen=True):
    kubevirt: str = field(default="", name=KUBEVIRT_LABEL)
    created_by: str = field(default="", name=CREATED_BY_LABEL)


class PodAnnotations(Wire, frozen=True):
    domain: str = field(default="", name=DOMAIN_ANNOTATION)


class OwnerReference(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class PodMeta(Meta, frozen=True):
    labels: PodLabels | None = None
    annotations: PodAnnotations | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class Resources(Wire, frozen=True):
    requests: dict[str, Amount] | None = None
    limits: dict[str, Amount] | None = None


class Container(Wire, frozen=True):
    resources: Resources | None = None
    restart_policy: str = ""


class PodSpec(Wire, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, Amount] | None = None
    resources: Resources | None = None


class Terminated(Wire, frozen=True):
    finished_at: Time | None = None


class ContainerState(Wire, frozen=True):
    terminated: Terminated | None = None


class ContainerStatus(Wire, frozen=True):
    state: ContainerState | None = None


class PodStatus(Wire, frozen=True):
    phase: str = ""
    start_time: Time | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class PodWire(Wire, frozen=True):
    metadata: PodMeta | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


def pod(wire: PodWire) -> objects.Pod:
    meta, spec, status = wire.metadata or PodMeta(), wire.spec or PodSpec(), wire.status or PodStatus()
    labels = meta.labels or PodLabels()
    owner = next((owner for owner in meta.owner_references or () if owner.kind == _OWNER_KIND), OwnerReference())
    requests = pod_requests(spec)
    memory = requests.pop("memory", 0)
    return objects.Pod(
        **common(meta),
        node=spec.node_name,
        phase=status.phase,
        requests=requests,
        memory=memory,
        started=ms(status.start_time),
        finished=_finished(status),
        launcher=labels.kubevirt == LAUNCHER,
        vmi_name=(meta.annotations or PodAnnotations()).domain or owner.name,
        vmi_uid=labels.created_by or owner.uid,
    )


def _finished(status: PodStatus) -> int:
    """When the last container of a finished pod ended; 0 if not reported."""
    if status.phase not in ("Succeeded", "Failed"):
        return 0
    states = [found.state.terminated for found in status.container_statuses or () if found.state is not None]
    return max((ms(state.finished_at) for state in states if state is not None), default=0)


def pod_requests(spec: PodSpec) -> dict[str, int]:
    """The effective request of memory and extended resources (R6); a pod-level memory request replaces the
    containers' sum, as in kube-scheduler."""
    total = quantities.effective_request(
        [_requests(one.resources, "spec.containers.resources") for one in spec.containers or ()],
        [
            quantities.InitRequest(
                _requests(one.resources, "spec.initContainers.resources"), one.restart_policy == _SIDECAR
            )
            for one in spec.init_containers or ()
        ],
    )
    whole = _requests(spec.resources, "spec.resources")
    if "memory" in whole:
        total["memory"] = whole["memory"]
    overhead = _amounts(spec.overhead or {}, "spec.overhead")
    return quantities.effective_request([total, overhead])


def _requests(resources: Resources | None, where: str) -> dict[str, int]:
    """A limit without a request is taken as the request, which is the API server's default."""
    if resources is None:
        return {}
    return _amounts((resources.limits or {}) | (resources.requests or {}), where)


class VmiStatus(Wire, frozen=True):
    phase: str = ""
    node_name: str = ""
    active_pods: dict[str, str] | None = None


class VmiMeta(Meta, frozen=True):
    owner_references: tuple[OwnerReference, ...] | None = None


class VmiWire(Wire, frozen=True):
    """Declares none of the spec, which carries cloud-init data and secrets."""

    metadata: VmiMeta | None = None
    status: VmiStatus | None = None


def vmi(wire: VmiWire) -> objects.Vmi:
    meta, status = wire.metadata or VmiMeta(), wire.status or VmiStatus()
    return objects.Vmi(
        **common(meta),
        phase=status.phase,
        node=status.node_name,
        active_pods=status.active_pods or {},
        owner=virtual_machine(meta.owner_references or ()),
    )


def virtual_machine(owners: Iterable[OwnerReference]) -> objects.Owner | None:
    """The VirtualMachine that controls a VMI with these owner references; None if there is none."""
    for found in owners:
        ours = found.kind == objects.VM.name and found.api_version.partition("/")[0] == objects.VM.group
        if ours and found.controller and found.name:
            return objects.Owner(name=found.name, uid=found.uid)
    return None
