"""VirtualMachineInstance as the webhook reads and patches it: references, node constraints, GPU entries.

Owns the JSON of a VMI and the names of our entries. Pure. An entry is ours if its name matches and its device name is
an effective GPU. Such an entry in a submitted manifest, exported or hand-written, proves nothing and is replaced by
what this start was granted (C21).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from reconciler.core.model.objects import Constraints, Requirement, Term, Toleration
from reconciler.core.model.quantities import QuantityError, quantity, whole_bytes
from reconciler.core.model.references import Reference, ReferencesError, parse_references
from reconciler.core.model.vocabulary import (
    ARCHITECTURE_LABEL,
    CPU_MODEL_LABEL_PREFIX,
    DEDICATED_CPU_LABEL,
    DEVICES_ANNOTATION,
    DEVICES_LABEL,
    TRUE,
    Reason,
)
from webhooks.review import Denied, pointer

ENTRY_PREFIX = "gpu-binder-"
_OUR_ENTRY = re.compile(rf"{ENTRY_PREFIX}\d+-\d+(-x+)?")

HOST_CPU_MODELS = ("host-model", "host-passthrough")
"""CPU models that KubeVirt takes from whatever node the launcher runs on."""

Quantity = str | int | float


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] | None = None


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_expressions: tuple[_Requirement, ...] | None = None
    match_fields: tuple[_Requirement, ...] | None = None


class _Selector(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: tuple[_Term, ...] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    required: _Selector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _Toleration(msgspec.Struct, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Memory(msgspec.Struct, frozen=True):
    guest: Quantity | None = None
    hugepages: dict[str, Any] | None = None


class _Cpu(msgspec.Struct, frozen=True, rename="camel"):
    model: str | None = None
    dedicated_cpu_placement: bool | None = None


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class _Devices(msgspec.Struct, frozen=True, rename="camel"):
    gpus: list[dict[str, Any]] | None = None
    host_devices: list[dict[str, Any]] | None = None


class _Domain(msgspec.Struct, frozen=True):
    cpu: _Cpu | None = None
    memory: _Memory | None = None
    resources: _Resources | None = None
    devices: _Devices | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: tuple[_Toleration, ...] | None = None
    architecture: str | None = None
    domain: _Domain | None = None


class VmiManifest(msgspec.Struct, frozen=True):
    """A VMI in a review; null equals absent, as everywhere in Kubernetes. Without a spec there is nothing to patch."""

    spec: _Spec
    metadata: _Metadata = _Metadata()

    @property
    def marked(self) -> bool:
        """Whether it carries the label that marks references to devices (K1)."""
        return DEVICES_LABEL in (self.metadata.labels or {})

    @property
    def domain(self) -> _Domain:
        return self.spec.domain or _Domain()

    @property
    def gpus(self) -> list[dict[str, Any]]:
        return (self.domain.devices or _Devices()).gpus or []

    @property
    def host_devices(self) -> list[dict[str, Any]]:
        return (self.domain.devices or _Devices()).host_devices or []


def references_of(vmi: VmiManifest) -> tuple[Reference, ...]:
    """The VMI's references (K1). Raises `Denied` if the label is set but the annotation is missing or malformed."""
    text = (vmi.metadata.annotations or {}).get(DEVICES_ANNOTATION)
    if text is None:
        raise Denied(
            Reason.MISSING_REFERENCES,
            f"the VM carries label {DEVICES_LABEL} without the annotation of the same name; add the annotation "
            'with a list such as [{"device": "NAME"}], or remove the label',
        )
    try:
        return parse_references(text)
    except ReferencesError as error:
        raise Denied(error.reason, str(error)) from None


def constraints_of(vmi: VmiManifest) -> Constraints:
    """The VMI's node constraints (P2). Raises `Denied` if its memory is not a quantity."""
    affinity = vmi.spec.affinity and vmi.spec.affinity.node_affinity
    required = affinity.required if affinity else None
    return Constraints(
        node_selector=_node_selector(vmi),
        terms=None if required is None else tuple(_term(t) for t in required.node_selector_terms or ()),
        tolerations=tuple(
            Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "")
            for t in vmi.spec.tolerations or ()
        ),
        memory=_memory(vmi.domain),
    )


def _term(term: _Term) -> Term:
    return Term(
        tuple(Requirement(r.key, r.operator, r.values or ()) for r in term.match_expressions or ()),
        tuple(Requirement(r.key, r.operator, r.values or ()) for r in term.match_fields or ()),
    )


def _node_selector(vmi: VmiManifest) -> dict[str, str]:
    """The labels that KubeVirt selects the launcher's node by: the VMI's own, and those that follow from its
    architecture, its CPU model and dedicated CPUs (P2). A model taken from the host asks for no label."""
    cpu = vmi.domain.cpu or _Cpu()
    labels = {ARCHITECTURE_LABEL: vmi.spec.architecture.lower()} if vmi.spec.architecture else {}
    labels |= vmi.spec.node_selector or {}
    if cpu.dedicated_cpu_placement:
        labels[DEDICATED_CPU_LABEL] = TRUE
    if cpu.model and cpu.model not in HOST_CPU_MODELS:
        labels[f"{CPU_MODEL_LABEL_PREFIX}{cpu.model}"] = TRUE
    return labels


def _memory(domain: _Domain) -> int:
    """Bytes of memory that the manifest makes KubeVirt request (P2): the request, else the limit, else the guest's
    memory; 0 if none is set. What the guest has on hugepages is no memory of the node's, only what is requested
    beyond it."""
    resources, memory = domain.resources or _Resources(), domain.memory or _Memory()
    guest = _bytes(memory.guest, "spec.domain.memory.guest")
    requested = _bytes((resources.requests or {}).get("memory"), "spec.domain.resources.requests.memory")
    limit = _bytes((resources.limits or {}).get("memory"), "spec.domain.resources.limits.memory")
    asked = requested or limit or guest
    if memory.hugepages is not None:
        return max(0, asked - guest) if guest else 0
    return asked


def _bytes(value: Quantity | None, field: str) -> int:
    try:
        return 0 if value is None else max(0, whole_bytes(value))
    except QuantityError as error:
        raise Denied(Reason.MALFORMED_REVIEW, f"{field}: {error}") from None


def raw_entries(vmi: VmiManifest, effective: frozenset[str]) -> list[str]:
    """Requests for a GPU by resource name instead of by device, as `path: name` (R1, V1)."""
    found = [
        f"spec.domain.devices.{field}[{index}]: {entry['deviceName']}"
        for field, entries in (("gpus", vmi.gpus), ("hostDevices", vmi.host_devices))
        for index, entry in enumerate(entries)
        if _names_gpu(entry, effective) and not (field == "gpus" and _ours(entry, effective))
    ]
    resources = vmi.domain.resources or _Resources()
    for field, amounts in (("requests", resources.requests or {}), ("limits", resources.limits or {})):
        found += [
            f"spec.domain.resources.{field}: {name}"
            for name in sorted(amounts)
            if name in effective and _nonzero(amounts[name])
        ]
    return found


def _nonzero(amount: Quantity) -> bool:
    try:
        return quantity(amount) != 0
    except QuantityError:
        return True


def _names_gpu(entry: Mapping[str, Any], effective: frozenset[str]) -> bool:
    name = entry.get("deviceName")
    return isinstance(name, str) and name in effective


def _ours(entry: Mapping[str, Any], effective: frozenset[str]) -> bool:
    name = entry.get("name")
    return isinstance(name, str) and bool(_OUR_ENTRY.fullmatch(name)) and _names_gpu(entry, effective)


def entries_patch(
    vmi: VmiManifest, units: Iterable[tuple[str, int]], effective: frozenset[str]
) -> tuple[dict[str, Any], ...]:
    """JSON patch that sets one `gpus` entry per unit (W2), () if they are all present (C21).

    `units`: resource name and unit count of each reference, in order. An entry's name depends only on the reference
    index and the unit, so a second call, on another replica or on an exported manifest, gives the same list. Never sets
    `resources`: KubeVirt adds both.
    """
    kept = [entry for entry in vmi.gpus if not _ours(entry, effective)]
    taken = {name for entry in (*kept, *vmi.host_devices) if isinstance(name := entry.get("name"), str)}
    wanted: dict[str, str] = {}
    for index, (resource_name, count) in enumerate(units):
        for unit in range(count):
            wanted[_free_name(f"{ENTRY_PREFIX}{index}-{unit}", taken)] = resource_name
    gpus: list[dict[str, Any]] = []
    present = set()
    for entry in vmi.gpus:
        if not _ours(entry, effective):
            gpus.append(entry)
        elif wanted.get(entry["name"]) == entry["deviceName"] and entry["name"] not in present:
            gpus.append(entry)
            present.add(entry["name"])
    gpus += [{"name": name, "deviceName": resource} for name, resource in wanted.items() if name not in present]
    return () if gpus == vmi.gpus else (_add_gpus(vmi, gpus),)


def _free_name(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    name += "-x"
    while name in taken:
        name += "x"
    return name


def _add_gpus(vmi: VmiManifest, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """The operation at the deepest existing parent; `add` on an existing member replaces it (RFC 6902)."""
    if vmi.spec.domain is None:
        return {"op": "add", "path": pointer("spec", "domain"), "value": {"devices": {"gpus": gpus}}}
    if vmi.spec.domain.devices is None:
        return {"op": "add", "path": pointer("spec", "domain", "devices"), "value": {"gpus": gpus}}
    return {"op": "add", "path": pointer("spec", "domain", "devices", "gpus"), "value": gpus}
