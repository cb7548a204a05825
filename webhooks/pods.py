"""W3: mutating webhook that pins a virt-launcher pod to the node of its VMI's devices.

Owns the detection of launchers of VMIs with devices and the merge of a required node affinity into the pod's own. The
affinity is set on the pod because KubeVirt overwrites the VMI's affinity from the VM template. Does not know how the
node was chosen.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from reconciler.core.model.objects import Device
from reconciler.core.model.vocabulary import (
    DEVICES_LABEL,
    DOMAIN_ANNOTATION,
    KUBEVIRT_LABEL,
    LAUNCHER,
    MIGRATION_LABEL,
    Phase,
    Reason,
)
from webhooks.reader import DeviceReader
from webhooks.review import ALLOWED, Answer, Denied, Request, read_object

_VMI_KIND = "VirtualMachineInstance"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class _Owner(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[_Owner, ...] | None = None


class _NodeSelector(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: list[dict[str, Any]] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    required: _NodeSelector | None = msgspec.field(default=None, name=_REQUIRED)


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    affinity: msgspec.Raw = msgspec.Raw(b"null")


class _Pod(msgspec.Struct, frozen=True):
    spec: _Spec
    metadata: _Metadata = _Metadata()


class PodWebhook:
    """Pins launchers at CREATE (W3). Raises `Denied`."""

    def __init__(self, devices: DeviceReader) -> None:
        self._devices = devices

    async def __call__(self, request: Request, seconds: float) -> Answer:
        if request.operation != "CREATE":
            return ALLOWED
        pod = read_object(request.object, _Pod)
        if not _is_launcher(pod):
            return ALLOWED
        vmi_name = vmi_of(pod)
        if MIGRATION_LABEL in (pod.metadata.labels or {}):
            raise Denied(
                Reason.MIGRATION_UNSUPPORTED,
                f"VMI {request.namespace}/{vmi_name} has GPUs on the node it runs on, and they cannot move to "
                "another node with it; stop the VM and start it again to move it",
            )
        node = node_of(request.namespace, vmi_name, await self._devices.attached(request.namespace, vmi_name))
        if pod.spec.node_name not in ("", node):
            raise Denied(
                Reason.NOT_PLACED,
                f"the launcher names node {pod.spec.node_name}, the GPUs of VMI {request.namespace}/{vmi_name} "
                f"are on node {node}; let the scheduler choose",
            )
        return Answer(patch=pin(pod.spec.affinity, node))


def _is_launcher(pod: _Pod) -> bool:
    """Helper pods carry a different value of KubeVirt's label, or are owned by the launcher instead of the VMI
    (C25)."""
    labels = pod.metadata.labels or {}
    if labels.get(KUBEVIRT_LABEL) != LAUNCHER or DEVICES_LABEL not in labels:
        return False
    owner = _owner(pod)
    return owner is None or owner.kind == _VMI_KIND


def _owner(pod: _Pod) -> _Owner | None:
    owners = pod.metadata.owner_references or ()
    return next((owner for owner in owners if owner.controller), owners[0] if owners else None)


def vmi_of(pod: _Pod) -> str:
    """The VMI the launcher claims as its owner. The claim is not trusted (R7): the name only selects devices that the
    binder placed for that VMI in the pod's own namespace."""
    owner = _owner(pod)
    name = owner.name if owner is not None else (pod.metadata.annotations or {}).get(DOMAIN_ANNOTATION, "")
    if not name:
        raise Denied(
            Reason.NOT_PLACED,
            f"the pod carries the labels of a launcher with GPUs, but neither an owner reference nor annotation "
            f"{DOMAIN_ANNOTATION} names its VMI; only KubeVirt makes launchers",
        )
    return name


def node_of(namespace: str, vmi_name: str, devices: list[Device]) -> str:
    """The single node of a VMI's devices. Raises `Denied` if there is none, or more than one."""
    vmi = f"VMI {namespace}/{vmi_name}"
    if not devices:
        raise Denied(Reason.NOT_PLACED, f"{vmi} has no GPU devices attached; restart the VM")
    for device in devices:
        if device.phase == Phase.LOST:
            raise Denied(
                Reason.DEVICE_LOST,
                f"{vmi}: device {device.name} is Lost, its node no longer serves it; the VM can start again "
                "when the node does, or with another device",
            )
        if device.placement is None or device.phase != Phase.BOUND:
            raise Denied(
                Reason.NOT_PLACED,
                f"{vmi}: device {device.name} is {device.phase or Phase.PENDING} and on no node yet; if this "
                "stays, restart the VM",
            )
    nodes = sorted({device.placement.node for device in devices if device.placement is not None})
    if len(nodes) > 1:
        raise Denied(
            Reason.NOT_PLACED,
            f"{vmi}: its devices are on the nodes {', '.join(nodes)}, a VM runs on one; restart the VM and "
            "tell the hoster",
        )
    return nodes[0]


def pin(affinity: msgspec.Raw, node: str) -> tuple[dict[str, Any], ...]:
    """JSON patch that requires `node` in every term, () if every term already does (C22).

    Terms are ORed, so every term needs the pin. A term without expressions and fields matches nothing and is left as
    is; adding the pin would make it match. Preferred terms, pod affinity and the node selector are kept.
    """
    read = read_object(affinity, _Affinity | None, "object.spec.affinity")  # type: ignore[arg-type]
    required = read.node_affinity.required if read is not None and read.node_affinity is not None else None
    fields = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [fields]}] if required is None else _pinned(required, fields)
    if required is not None and terms == (required.node_selector_terms or []):
        return ()
    changed = copy.deepcopy(msgspec.json.decode(affinity)) or {}
    node_affinity = changed.get("nodeAffinity") or {}
    node_affinity[_REQUIRED] = {**(node_affinity.get(_REQUIRED) or {}), "nodeSelectorTerms": terms}
    changed["nodeAffinity"] = node_affinity
    return ({"op": "add", "path": "/spec/affinity", "value": changed},)


def _pinned(required: _NodeSelector, fields: dict[str, Any]) -> list[dict[str, Any]]:
    terms = []
    for term in required.node_selector_terms or []:
        present = term.get("matchFields") or []
        if not isinstance(present, list):
            raise Denied(Reason.MALFORMED_REVIEW, "spec.affinity: matchFields of a node term must be a list")
        matches_nothing = not present and not term.get("matchExpressions")
        terms.append(term if matches_nothing or fields in present else {**term, "matchFields": [*present, fields]})
    return terms
