"""Requests, allocatable and node constraints of pods as kube-scheduler and kubelet evaluate them.

Written from the Kubernetes documentation and not with the model's own readers, so that the simulation cannot share a
mistake with the product. Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from reconciler.cluster.memory.json_objects import Document
from reconciler.core.model.quantities import whole_bytes

FINISHED = ("Succeeded", "Failed")
COUNTED = ("memory",)
"""Native resources counted, besides every extended one."""


def amounts(resources: Mapping[str, Any] | None) -> dict[str, int]:
    """Amounts in a resource list: memory in bytes, extended resources in units."""
    return {name: whole_bytes(value) for name, value in (resources or {}).items() if name in COUNTED or "/" in name}


def requests_of(pod: Document) -> dict[str, int]:
    """A pod's effective request: containers plus sidecars, or the peak while init containers run, whichever is
    larger."""
    total: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or []:
        own = _container(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, own)
            own = {}
        peak = _most(peak, _sum(sidecars, own))
    for container in spec.get("containers") or []:
        total = _sum(total, _container(container))
    return _most(_sum(total, sidecars), peak)


def _container(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _sum(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in sorted({*a, *b})}


def _most(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in sorted({*a, *b})}


def total_requests(pods: Iterable[Document]) -> dict[str, int]:
    total: dict[str, int] = {}
    for pod in pods:
        total = _sum(total, requests_of(pod))
    return total


def phase_of(document: Document) -> str:
    return str((document.get("status") or {}).get("phase", ""))


def node_of(pod: Document) -> str:
    return str((pod.get("spec") or {}).get("nodeName", ""))


def deleting(document: Document) -> bool:
    return "deletionTimestamp" in document["metadata"]


def ready(node: Document) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def why_not(pod: Document, node: Document, taken: Mapping[str, int]) -> str:
    """Why the scheduler filters out a node, "" if it does not. `taken`: requests of the pods there."""
    spec, name = pod.get("spec") or {}, node["metadata"]["name"]
    labels = node["metadata"].get("labels") or {}
    if not ready(node):
        return "node(s) were not ready"
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity is not None and not any(
        _term_matches(term, labels, name) for term in affinity.get("nodeSelectorTerms") or []
    ):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in (node.get("spec") or {}).get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not any(
            _tolerates(toleration, taint) for toleration in spec.get("tolerations") or []
        ):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    allocatable = amounts((node.get("status") or {}).get("allocatable"))
    for resource, amount in requests_of(pod).items():
        if amount > allocatable.get(resource, 0) - taken.get(resource, 0):
            return f"Insufficient {resource}"
    return ""


def _term_matches(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_meets(each, labels) for each in expressions) and all(
        _meets(each, {"metadata.name": name}) for each in fields
    )


def _meets(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    operator, value = requirement["operator"], labels.get(requirement["key"])
    values = requirement.get("values") or []
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    try:
        have, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return have > bound if operator == "Gt" else have < bound


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))
