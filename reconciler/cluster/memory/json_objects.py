"""API server processing of a single JSON object: merge patch, defaults, read-only fields, selectors.

Pure functions on plain JSON values. Knows nothing of versions, storage or admission (`store`, `admission`).
Source: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from reconciler.cluster.port import Rejected
from reconciler.core.model.objects import CLASS, DEVICE, GPU_NODE, KUBEVIRT, NAMESPACE, NODE, POD, RELEASE, Kind

Document = dict[str, Any]

WITH_STATUS = frozenset(kind.name for kind in (DEVICE, CLASS, GPU_NODE, KUBEVIRT, RELEASE, NODE, POD, NAMESPACE))
"""Kinds with a status subresource: the main resource does not write the status, nor the other way round.
VirtualMachineInstance has none."""
_KEEPS_STATUS_AT_CREATION = (NODE.name,)
"""A kubelet registers its node with a status."""
_SYSTEM_FIELDS = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
"""Metadata an update cannot change. `resourceVersion` is a precondition instead."""


BINDING = "binding"
"""The scheduler's subresource of a pod; here a patch of `spec.nodeName`."""


def is_custom(kind: Kind) -> bool:
    """Whether the kind comes from a CustomResourceDefinition."""
    return bool(kind.group) and not kind.group.endswith("k8s.io")


def qualified(kind: Kind) -> str:
    """The resource name used in API server messages."""
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def timestamp(at: int) -> str:
    """Milliseconds since the epoch as `metav1.Time`, which has whole seconds."""
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386); returns a deep copy."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def for_create(kind: Kind, namespace: str, body: Document) -> Document:
    """A new object as the API server passes it to admission: type and namespace set, server-owned fields removed,
    defaults filled in. Raises `Rejected`."""
    made = copy.deepcopy(body)
    metadata = made.setdefault("metadata", {})
    if metadata.get("resourceVersion"):
        raise Rejected("resourceVersion should not be set on objects to be created")
    if metadata.get("namespace", namespace) != (namespace if kind.namespaced else ""):
        raise Rejected(
            f"the namespace of the provided object does not match the namespace sent on the request: "
            f"{metadata['namespace']!r} and {namespace!r}"
        )
    if not metadata.get("name") and not metadata.get("generateName"):
        raise Rejected(f"{kind.name} is invalid: metadata.name: Required value: name or generateName is required")
    for field in ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"):
        metadata.pop(field, None)
    made["apiVersion"], made["kind"] = kind.api_version, kind.name
    if kind.namespaced:
        metadata["namespace"] = namespace
    if kind.name in WITH_STATUS and kind.name not in _KEEPS_STATUS_AT_CREATION:
        made.pop("status", None)
    return with_defaults(kind, made)


def with_defaults(kind: Kind, document: Document) -> Document:
    """Set, in place, the schema and server defaults that the model reads."""
    spec = document.get("spec")
    if kind.name == DEVICE.name and isinstance(spec, dict):
        spec.setdefault("count", 1)
    elif kind.name == NAMESPACE.name:
        document.setdefault("status", {}).setdefault("phase", "Active")
    elif kind.name == POD.name:
        document.setdefault("status", {}).setdefault("phase", "Pending")
        _default_requests(spec)
    return document


def _default_requests(spec: Any) -> None:
    """A container's limit without a request becomes its request."""
    for field in ("containers", "initContainers"):
        for container in (spec or {}).get(field) or []:
            resources = container.get("resources") or {}
            if limits := resources.get("limits"):
                container["resources"] = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}


def for_update(kind: Kind, current: Document, wanted: Document, subresource: str) -> Document:
    """Apply an update to `current`: only its own part (status or the rest), never server-owned fields.
    `resourceVersion` is kept as the caller's precondition."""
    version = wanted.get("metadata", {}).get("resourceVersion")
    if subresource == "status":
        made = copy.deepcopy(current)
        made.pop("status", None)
        if "status" in wanted:
            made["status"] = copy.deepcopy(wanted["status"])
    elif subresource == BINDING:
        made = copy.deepcopy(current)
        made["spec"] = {**made.get("spec", {}), "nodeName": wanted["spec"]["nodeName"]}
    else:
        made = copy.deepcopy(wanted)
        made["apiVersion"], made["kind"] = current["apiVersion"], current["kind"]
        metadata, fixed = made.setdefault("metadata", {}), current["metadata"]
        for field in _SYSTEM_FIELDS:
            metadata.pop(field, None)
            if field in fixed:
                metadata[field] = fixed[field]
        if kind.name in WITH_STATUS:
            made.pop("status", None)
            if "status" in current:
                made["status"] = copy.deepcopy(current["status"])
    made["metadata"]["resourceVersion"] = version
    return made if subresource else with_defaults(kind, made)


def changes_spec(kind: Kind, old: Document, new: Document) -> bool:
    """Whether the generation increases: any change outside metadata, and outside the status if it is a
    subresource."""
    ignored = {"metadata", "status"} if kind.name in WITH_STATUS else {"metadata"}
    return {key: value for key, value in old.items() if key not in ignored} != {
        key: value for key, value in new.items() if key not in ignored
    }


def counts_generations(kind: Kind) -> bool:
    return is_custom(kind) or kind.name == POD.name


def labels_of(document: Document | None) -> dict[str, str]:
    return ((document or {}).get("metadata") or {}).get("labels") or {}


def parse_selector(text: str) -> list[tuple[str, str, str]]:
    """A label selector as (key, operator, value) with the operators `=`, `!=`, `exists` and `absent`. Raises
    `Rejected` for the set-based form, which the in-memory cluster does not support."""
    requirements = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if any(character in part for character in "() \t<>"):
            raise Rejected(f"unable to parse label selector {text!r}: write KEY=VALUE, KEY!=VALUE, KEY or !KEY")
        if "!=" in part:
            key, _, value = part.partition("!=")
            requirements.append((key, "!=", value))
        elif "=" in part:
            key, _, value = part.partition("=")
            requirements.append((key, "=", value.removeprefix("=")))
        else:
            requirements.append((part.lstrip("!"), "absent" if part.startswith("!") else "exists", ""))
    return requirements


def selects(requirements: list[tuple[str, str, str]], labels: Mapping[str, str]) -> bool:
    for key, operator, value in requirements:
        if operator in ("exists", "absent"):
            met = (key in labels) == (operator == "exists")
        else:
            met = (labels.get(key) == value) == (operator == "=")
        if not met:
            return False
    return True
