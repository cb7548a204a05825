"""Simulated virt-api: the mutating and the validating webhook for VMIs.

Owns what KubeVirt's admission changes and refuses: it replaces whole `/spec`, `/metadata` and `/status` of a new VMI,
reverts the status of an update that is not KubeVirt's own (VMIs have no status subresource), and refuses after every
mutating webhook.
"""

from __future__ import annotations

import base64
import copy
from typing import Any

import msgspec

from reconciler.cluster.memory.admission import REVIEW_VERSION, Review, Webhook
from reconciler.cluster.memory.json_objects import Document
from reconciler.core.model.objects import VMI

KUBEVIRT_NAMESPACE = "cozy-kubevirt"
VIRT_CONTROLLER = f"system:serviceaccount:{KUBEVIRT_NAMESPACE}:kubevirt-controller"
SERVICE_ACCOUNTS = frozenset(
    f"system:serviceaccount:{KUBEVIRT_NAMESPACE}:kubevirt-{part}" for part in ("apiserver", "controller", "handler")
)
VMI_FINALIZER = "foregroundDeleteVirtualMachine"
MUTATOR, VALIDATOR = "virt-api-mutator", "virt-api-validator"
"""Names of the configurations. Configurations are called in the order of their names: after gpu-binder's."""
OPERATIONS = ("CREATE", "UPDATE")


def webhooks() -> tuple[Webhook, Webhook]:
    """The mutator, whose changes reinvoke earlier webhooks, and the validator."""
    return (
        Webhook(MUTATOR, mutate, (VMI.name,), OPERATIONS, mutating=True),
        Webhook(VALIDATOR, validate, (VMI.name,), OPERATIONS),
    )


async def mutate(review: Review) -> Review:
    request = review["request"]
    ops = _update_patch(request) if request["operation"] == "UPDATE" else _create_patch(request["object"])
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if ops:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(ops)).decode()}
    return _review(response)


async def validate(review: Review) -> Review:
    request = review["request"]
    problem = _restricted(request) if request["operation"] == "UPDATE" else _invalid(request["object"])
    response: dict[str, Any] = {"uid": request["uid"], "allowed": not problem}
    if problem:
        response["status"] = {"message": problem, "reason": "Invalid", "code": 422}
    return _review(response)


def _review(response: dict[str, Any]) -> Review:
    return {"kind": "AdmissionReview", "apiVersion": REVIEW_VERSION, "response": response}


def _create_patch(vmi: Document) -> list[dict[str, Any]]:
    """Defaults, the finalizer, and phase Pending; other status fields stay what the creator wrote until
    virt-controller's first sync."""
    changed = copy.deepcopy(vmi)
    finalizers = changed["metadata"].get("finalizers") or []
    if VMI_FINALIZER not in finalizers:
        changed["metadata"]["finalizers"] = [*finalizers, VMI_FINALIZER]
    domain = (changed.setdefault("spec", {})).get("domain")
    if isinstance(domain, dict):
        domain.setdefault("machine", {"type": "q35"})
    changed["status"] = {**(changed.get("status") or {}), "phase": "Pending"}
    return [
        {"op": "replace" if field in vmi else "add", "path": f"/{field}", "value": changed[field]}
        for field in ("spec", "metadata", "status")
    ]


def _update_patch(request: dict[str, Any]) -> list[dict[str, Any]]:
    new, old = request["object"], request.get("oldObject") or {}
    if request["userInfo"]["username"] in SERVICE_ACCOUNTS or new.get("status") == old.get("status"):
        return []
    if "status" not in old:
        return [{"op": "remove", "path": "/status"}]
    return [{"op": "add", "path": "/status", "value": old["status"]}]


def _restricted(request: dict[str, Any]) -> str:
    same = request["object"].get("spec") == (request.get("oldObject") or {}).get("spec")
    if same or request["userInfo"]["username"] in SERVICE_ACCOUNTS:
        return ""
    return "update of VMI object is restricted"


def _invalid(vmi: Document) -> str:
    """The first disk without a volume of its name, "" if there is none."""
    spec = vmi.get("spec") or {}
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    disks = ((spec.get("domain") or {}).get("devices") or {}).get("disks") or []
    for at, disk in enumerate(disks):
        if disk.get("name") not in volumes:
            return f"spec.domain.devices.disks[{at}].Name '{disk.get('name')}' not found."
    return ""
