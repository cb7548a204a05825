"""The objects that hosters, tenants, kubelets and node agents write, as JSON values.

Pure functions, shared by the simulated controllers on the in-memory cluster and on a real API server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reconciler.cluster.memory.json_objects import Document
from reconciler.core.model.objects import Function
from reconciler.core.model.vocabulary import (
    DEVICES_ANNOTATION,
    DEVICES_LABEL,
    SCHEDULABLE_LABEL,
    TENANT_KIND,
    TENANT_KIND_LABEL,
    TENANT_PREFIX,
    TRUE,
    Mode,
)
from reconciler.core.tenancy.tenants import owned_namespace

PODS_A_NODE = "110"
"""A kubelet's default; a scheduler puts no pod on a node that does not say how many it takes."""
_PCI_SELECTOR = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}")


def node_body(
    name: str,
    allocatable: Mapping[str, int],
    labels: Mapping[str, str] | None = None,
    memory: str = "256Gi",
    taints: Sequence[Mapping[str, str]] = (),
) -> Document:
    """A Ready node that KubeVirt may use. `allocatable`: units per extended resource."""
    native = {"cpu": "64", "memory": memory, "pods": PODS_A_NODE}
    resources = {**native, **units_told(allocatable)}
    known = {"kubernetes.io/hostname": name, SCHEDULABLE_LABEL: TRUE, **(labels or {})}
    status = {"allocatable": resources, "capacity": dict(resources), "conditions": [ready_condition("True")]}
    body: Document = {"metadata": {"name": name, "labels": known}, "spec": {}, "status": status}
    if taints:
        body["spec"]["taints"] = [dict(taint) for taint in taints]
    return body


def units_told(units: Mapping[str, int]) -> dict[str, str]:
    """Units as quantities of a resource list."""
    return {name: str(count) for name, count in units.items()}


def ready_condition(status: str) -> dict[str, str]:
    """A node's Ready condition: True, False or Unknown."""
    return {"type": "Ready", "status": status}


def report_status(functions: Sequence[Function | Mapping[str, Any]], reported_at: str) -> Document:
    """The status of a GPUNode (O3). `reported_at`: RFC 3339."""
    return {"reportedAt": reported_at, "functions": [_function(function) for function in functions]}


def _function(function: Function | Mapping[str, Any]) -> Document:
    """A function with the fields an agent always reports; the model omits its defaults."""
    if not isinstance(function, Function):
        return dict(function)
    told: Document = msgspec.to_builtins(function)
    return {"kind": function.kind, "healthy": function.healthy, **told}


def tenant_release(name: str, parent: str) -> tuple[str, str]:
    """(release name, the namespace it owns) of a tenant `name`, without the prefix, under the namespace `parent`
    (R2). Raises ValueError when it would own none."""
    release = f"{TENANT_PREFIX}{name}"
    owned = owned_namespace(parent, release)
    if owned is None:
        raise ValueError(f"tenant {name!r} in {parent!r} owns no namespace; give a name without {TENANT_PREFIX!r}")
    return release, owned


def release_body(
    release: str, quotas: Mapping[str, Any] | None = None, present: Mapping[str, Any] | None = None
) -> Document:
    """A tenant's release with its budgets (R3), or the merge patch of `present` that leaves no other budget."""
    old = (((present or {}).get("spec") or {}).get("values") or {}).get("resourceQuotas") or {}
    wanted = {**dict.fromkeys(old), **(quotas or {})}
    metadata = {"name": release, "labels": {TENANT_KIND_LABEL: TENANT_KIND}}
    return {"metadata": metadata, "spec": {"values": {"resourceQuotas": wanted}}}


def kubevirt_body(permitted: Mapping[str, str]) -> Document:
    """The KubeVirt object. `permitted`: resource name to PCI selector (`10DE:2236`) or mediated type name."""
    pci, mediated = [], []
    for resource, selector in permitted.items():
        if _PCI_SELECTOR.fullmatch(selector):
            pci.append({"pciVendorSelector": selector, "resourceName": resource})
        else:
            mediated.append({"mdevNameSelector": selector, "resourceName": resource})
    table = {"pciHostDevices": pci, "mediatedDevices": mediated}
    return {"metadata": {"name": "kubevirt"}, "spec": {"configuration": {"permittedHostDevices": table}}}


def class_body(
    name: str,
    resource_name: str,
    mode: Mode | str = Mode.PASSTHROUGH,
    max_count: int | None = None,
    display_name: str = "",
) -> Document:
    spec: dict[str, Any] = {"resourceName": resource_name, "mode": str(mode)}
    if max_count is not None:
        spec["maxCount"] = max_count
    if display_name:
        spec["displayName"] = display_name
    return {"metadata": {"name": name}, "spec": spec}


def device_body(name: str, class_name: str, count: int = 1) -> Document:
    return {"metadata": {"name": name}, "spec": {"className": class_name, "count": count}}


def vmi_body(
    name: str,
    devices: Sequence[str | Mapping[str, Any]] = (),
    *,
    memory: str = "4Gi",
    spec: Mapping[str, Any] | None = None,
) -> Document:
    """A VMI with its references (K1): a string is a held device, a mapping a template. `name` ending in "-" becomes
    generateName; `spec`: fields added to or overriding the guest's."""
    metadata: Document = {"generateName" if name.endswith("-") else "name": name}
    if devices:
        items = [{"device": each} if isinstance(each, str) else {"template": dict(each)} for each in devices]
        metadata["labels"] = {DEVICES_LABEL: TRUE}
        metadata["annotations"] = {DEVICES_ANNOTATION: msgspec.json.encode(items).decode()}
    domain = {"memory": {"guest": memory}, "devices": {}}
    return {"metadata": metadata, "spec": {"domain": domain, **(spec or {})}}


def pod_body(name: str, requests: Mapping[str, int], node: str = "") -> Document:
    """An ordinary pod that requests resources by name; `node`: already bound to it."""
    container = {"name": "main", "image": "main", "resources": {"limits": units_told(requests)}}
    spec: dict[str, Any] = {"containers": [container]}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name}, "spec": spec}
