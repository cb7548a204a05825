"""Simulated virt-controller for VMIs.

Owns what a launcher pod inherits from its VMI and how the VMI's status follows the pod. virt-handler and the guest
are reduced to "if the pod runs, the VMI runs".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reconciler.cluster.memory.json_objects import Document, merge_patch
from reconciler.cluster.memory.pods import FINISHED, deleting, node_of, phase_of
from reconciler.cluster.memory.virt_api import VMI_FINALIZER
from reconciler.cluster.port import Cluster, ClusterError, Rejected
from reconciler.core.model.objects import POD, VMI
from reconciler.core.model.vocabulary import (
    CREATED_BY_LABEL,
    DOMAIN_ANNOTATION,
    KUBEVIRT_LABEL,
    LAUNCHER,
    SCHEDULABLE_LABEL,
    TRUE,
)

_STARTED = ("Scheduling", "Scheduled", "Running")
"""Phases in which a VMI has had a launcher; when it is gone, the VMI has failed."""


class VirtController:
    """Creates, tracks and deletes launcher pods."""

    def __init__(self, documents: Callable[..., list[Document]], port: Cluster) -> None:
        """`documents(kind, namespace="")`: all current objects."""
        self._documents = documents
        self._port = port

    async def step(self) -> bool:
        """Sync every VMI once; returns whether anything changed or has to be retried."""
        changed = [await self._look_at(vmi) for vmi in self._documents(VMI)]
        return any(changed)

    async def _look_at(self, vmi: Document) -> bool:
        pods = [
            pod
            for pod in self._documents(POD, vmi["metadata"]["namespace"])
            if KUBEVIRT_LABEL in (pod["metadata"].get("labels") or {})
            and any(
                owner.get("controller") and owner.get("uid") == vmi["metadata"]["uid"]
                for owner in pod["metadata"].get("ownerReferences") or []
            )
        ]
        try:
            if deleting(vmi):
                return await self._take_down(vmi, pods)
            if not pods and phase_of(vmi) not in (*FINISHED, *_STARTED):
                return await self.launch(vmi)
            return await self.set_status(vmi, _status(vmi, pods))
        except ClusterError:
            return True

    async def _take_down(self, vmi: Document, pods: list[Document]) -> bool:
        """Delete pods first, then set the VMI's final phase, then remove the finalizer."""
        namespace, name = vmi["metadata"]["namespace"], vmi["metadata"]["name"]
        if pods:
            standing = [pod for pod in pods if not deleting(pod)]
            for pod in standing:
                await self._port.delete(POD, namespace, pod["metadata"]["name"])
            return bool(standing)
        if phase_of(vmi) not in FINISHED and await self.set_status(vmi, _gone(vmi, "Succeeded")):
            return True
        finalizers = [each for each in vmi["metadata"].get("finalizers") or [] if each != VMI_FINALIZER]
        if finalizers == (vmi["metadata"].get("finalizers") or []):
            return False
        await self._port.patch(VMI, namespace, name, {"metadata": {"finalizers": finalizers}})
        return True

    async def launch(self, vmi: Document) -> bool:
        """Create the launcher; a refusal is shown in the VMI's status and retried at the next step."""
        try:
            await self._port.create(POD, vmi["metadata"]["namespace"], launcher(vmi))
        except Rejected as error:
            return await self.set_status(vmi, refused(error.message))
        return True

    async def set_status(self, vmi: Document, status: dict[str, Any]) -> bool:
        """Patch what differs; returns whether anything did."""
        metadata, present = vmi["metadata"], vmi.get("status") or {}
        if merge_patch(present, status) == present:
            return False
        await self._port.patch(VMI, metadata["namespace"], metadata["name"], {"status": status})
        return True


def _status(vmi: Document, pods: list[Document]) -> dict[str, Any]:
    """The VMI's status derived from its pods, with null for fields to remove."""
    phase = phase_of(vmi)
    if not pods:
        return _gone(vmi, "Failed") if phase in _STARTED else _gone(vmi, phase)
    active = {pod["metadata"]["uid"]: node_of(pod) for pod in pods}
    status: dict[str, Any] = {"activePods": {**dict.fromkeys(_listed(vmi)), **active}, "conditions": None}
    if phase in FINISHED:
        return status
    states = [phase_of(pod) for pod in pods]
    running = [node_of(pod) for pod in pods if phase_of(pod) == "Running"]
    if running:
        known = (vmi.get("status") or {}).get("nodeName")
        status |= {"phase": "Running", "nodeName": known if known in running else running[0]}
    elif all(state in FINISHED for state in states):
        status["phase"] = "Failed" if "Failed" in states else "Succeeded"
    else:
        status["phase"] = "Scheduling"
    return status


def _gone(vmi: Document, phase: str) -> dict[str, Any]:
    return {"phase": phase, "activePods": dict.fromkeys(_listed(vmi))}


def _listed(vmi: Document) -> dict[str, str]:
    return (vmi.get("status") or {}).get("activePods") or {}


def refused(message: str) -> Document:
    """The status of a VMI whose launcher was refused."""
    condition = {"type": "Synchronized", "status": "False", "reason": "FailedCreate", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def launcher(vmi: Document) -> Document:
    """The launcher pod: the VMI's labels, annotations and node constraints, and one unit per device."""
    metadata, spec = vmi["metadata"], vmi.get("spec") or {}
    owner = {
        "apiVersion": VMI.api_version,
        "kind": VMI.name,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "metadata": {
            "generateName": f"virt-launcher-{metadata['name']}-",
            "labels": {
                **(metadata.get("labels") or {}),
                KUBEVIRT_LABEL: LAUNCHER,
                CREATED_BY_LABEL: metadata["uid"],
            },
            "annotations": {**(metadata.get("annotations") or {}), DOMAIN_ANNOTATION: metadata["name"]},
            "ownerReferences": [owner],
        },
        "spec": {
            **{field: spec[field] for field in ("affinity", "tolerations") if spec.get(field)},
            "nodeSelector": {**(spec.get("nodeSelector") or {}), SCHEDULABLE_LABEL: TRUE},
            "restartPolicy": "Never",
            "containers": [{"name": "compute", "resources": _resources(spec.get("domain") or {})}],
        },
    }


def _resources(domain: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The domain's resources, guest memory, plus one unit per device (KubeVirt adds both)."""
    own = domain.get("resources") or {}
    requests, limits = dict(own.get("requests") or {}), dict(own.get("limits") or {})
    if guest := (domain.get("memory") or {}).get("guest"):
        requests.setdefault("memory", guest)
    devices = domain.get("devices") or {}
    names = [each["deviceName"] for field in ("gpus", "hostDevices") for each in devices.get(field) or []]
    for name in sorted(set(names)):
        units = names.count(name)
        asked = max(int(requests.get(name, 0)), int(limits.get(name, 0)))
        requests[name] = limits[name] = str(asked + units)
    return {"requests": requests, "limits": limits}
