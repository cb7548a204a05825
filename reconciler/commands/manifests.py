"""Reads YAML manifests for `plan`; errors name the file, document and field.

Converts a document to a start or an order with the webhooks' own decoders, so that a manifest is interpreted exactly
as when it is applied. Neighbours: `webhooks.vmi` and `webhooks.sets` (decoding), `debugging.planning` (the answer).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from reconciler.core.admission import checks
from reconciler.core.admission.checks import Order, Refusal, Start
from reconciler.core.model.device_state import accepted
from reconciler.core.model.objects import DEVICE, VMI, Device
from reconciler.core.model.references import MAX_COUNT
from reconciler.core.model.vocabulary import (
    DEVICES_ANNOTATION,
    DEVICES_LABEL,
    TENANT_PREFIX,
    TRUE,
    RawNamePolicy,
    Reason,
)
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging.planning import what_if
from reconciler.debugging.planning.plan import Outcome, Plan, plan_order, plan_start
from webhooks.review import Denied
from webhooks.sets import Availability, DeviceSet, availability_of
from webhooks.vmi import VmiManifest, constraints_of, raw_entries, references_of

VIRTUAL_MACHINE = "VirtualMachine"
KINDS = {VIRTUAL_MACHINE: VMI.group, VMI.name: VMI.group, DEVICE.name: DEVICE.group}
"""Kinds that can be planned, with their API groups."""

Shape = TypeVar("Shape")


class ManifestError(ValueError):
    """A document that cannot be planned; the message names file, document, field and remedy."""

    def __init__(self, where: str, field: str, problem: str) -> None:
        super().__init__(f"{where}{', ' + field if field else ''}: {problem}")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A VM or VMI and the devices it refers to. `notes`: caveats of the plan."""

    kind: str
    namespace: str
    name: str
    wanted: DeviceSet
    manifest: VmiManifest
    notes: tuple[str, ...] = ()


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """A GPUDevice."""

    name: str
    order: Order


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _DeviceSpec(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    class_name: str
    count: int = 1


class _Matcher(msgspec.Struct, frozen=True):
    name: str = ""


class _VmSpec(msgspec.Struct, frozen=True):
    template: VmiManifest
    instancetype: _Matcher | None = None


# Reading


def read(paths: tuple[str, ...], namespace: str | None) -> list[Machine | Ordered]:
    """All plannable documents of the files, in order. `namespace`: the default for documents without one. Raises
    `ManifestError`."""
    found: list[Machine | Ordered] = []
    for path in paths:
        known = list(_documents(path))
        wanted = [(where, body) for where, body in known if str(body.get("kind")) in KINDS]
        if not wanted:
            kinds = ", ".join(sorted({str(body.get("kind")) for _, body in known})) or "nothing"
            raise ManifestError(path, "", f"contains {kinds}; plan accepts {', '.join(KINDS)}")
        found += [_read_one(where, body, namespace) for where, body in wanted]
    return found


def _documents(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(location, document) of every document of a file; a List yields its items."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        documents = list(yaml.load_all(text, Loader=_Loader))
    except OSError as error:
        raise ManifestError(path, "", f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ManifestError(path, "", f"cannot be read: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ManifestError(path, "", f"is not YAML: {' '.join(str(error).split())}") from None
    for number, document in enumerate(documents, 1):
        where = f"{path}, document {number}"
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ManifestError(where, "", f"must be an object with apiVersion and kind, not {document!r:.60}")
        if document.get("kind") != "List":
            yield where, document
            continue
        items = document.get("items")
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if not isinstance(item, dict):
                raise ManifestError(where, f"items[{index}]", "must be an object with apiVersion and kind")
            yield f"{where}, items[{index}]", item


class _Loader(yaml.SafeLoader):
    """Keeps dates as text, like the API server."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_one(where: str, body: dict[str, Any], namespace: str | None) -> Machine | Ordered:
    kind = body["kind"]
    group = str(body.get("apiVersion", "")).rpartition("/")[0]
    if group != KINDS[kind]:
        raise ManifestError(
            where, "apiVersion", f"is {body.get('apiVersion')!r}, but {kind} belongs to group {KINDS[kind]}"
        )
    meta = _shaped(where, "metadata", body.get("metadata"), _Meta)
    space = meta.namespace or namespace
    if not meta.name:
        raise ManifestError(where, "metadata.name", "is missing; only a named object can be planned")
    if not space:
        raise ManifestError(where, "metadata.namespace", "is missing; set it or give --namespace")
    if kind == DEVICE.name:
        spec = _shaped(where, "spec", body.get("spec"), _DeviceSpec)
        if not 1 <= spec.count <= MAX_COUNT:
            raise ManifestError(where, "spec.count", f"is {spec.count}; it must be between 1 and {MAX_COUNT}")
        return Ordered(name=meta.name, order=Order(namespace=space, class_name=spec.class_name, count=spec.count))
    return _machine(where, body, kind, space, meta.name)


def _machine(where: str, body: dict[str, Any], kind: str, namespace: str, name: str) -> Machine:
    path = ""
    notes: tuple[str, ...] = ()
    if kind == VIRTUAL_MACHINE:
        path = "spec.template."
        spec = _shaped(where, "spec", body.get("spec"), _VmSpec)
        manifest = spec.template
        if spec.instancetype is not None and manifest.domain.memory is None:
            notes = (f"the guest's memory comes from instancetype {spec.instancetype.name!r} and is not counted",)
    else:
        manifest = _shaped(where, "", body, VmiManifest)
    if (manifest.metadata.labels or {}).get(DEVICES_LABEL) != TRUE:
        annotated = DEVICES_ANNOTATION in (manifest.metadata.annotations or {})
        also = ", although the annotation of the same name is present" if annotated else ""
        raise ManifestError(
            where,
            f"{path}metadata.labels",
            f'label {DEVICES_LABEL}: "{TRUE}" is missing{also}; without it the VM refers to no GPU devices',
        )
    try:
        references, constraints = references_of(manifest), constraints_of(manifest)
    except Denied as denied:
        field = f"{path}metadata.annotations" if denied.reason != Reason.MALFORMED_REVIEW else path.rstrip(".")
        raise ManifestError(where, field, denied.message) from None
    wanted = DeviceSet(namespace=namespace, vmi_name=name, references=references, constraints=constraints)
    return Machine(kind=kind, namespace=namespace, name=name, wanted=wanted, manifest=manifest, notes=notes)


def _shaped(where: str, field: str, value: Any, shape: type[Shape]) -> Shape:
    """Decode a part of a document; null counts as absent. Raises `ManifestError`."""
    try:
        return msgspec.convert({} if value is None else _without_nulls(value), shape)
    except msgspec.ValidationError as error:
        problem, _, inner = str(error).partition(" - at `$")
        path = ".".join(part for part in (field, inner.rstrip("`").lstrip(".")) if part)
        raise ManifestError(where, path, f"{problem}; correct that field") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


# Planning


def plan_all(state: PlacementState, manifests: list[Machine | Ordered]) -> list[Plan]:
    """One plan per manifest, in order, each on the state its predecessors would leave. Does not modify `state`."""
    tried = what_if.copy(state)
    return [_order(tried, one) if isinstance(one, Ordered) else _start(tried, one) for one in manifests]


def _order(tried: PlacementState, ordered: Ordered) -> Plan:
    order = ordered.order
    known = tried.device(order.namespace, ordered.name)
    if known is not None and accepted(known) and known.deleting is None and _same(known, order):
        return Plan(
            kind=DEVICE.name,
            subject=f"{order.namespace}/{ordered.name}",
            outcome=Outcome.HELD,
            notes=(f"the order already exists and is {known.phase}",),
        )
    refused = _terminating(tried, order.namespace)
    if known is not None and not _same(known, order):
        message = (
            f"GPUDevice {order.namespace}/{ordered.name} exists with {known.count} units of {known.class_name!r}, "
            "which cannot be changed; delete it or use another name"
        )
        refused.append(Refusal(reason=Reason.IMMUTABLE_FIELD, message=message))
    found = plan_order(tried, DEVICE.name, ordered.name, order, refused=refused)
    if not found.blockers:
        what_if.hold(tried, order.namespace, ordered.name, order.class_name, order.count)
    return found


def _same(known: Device, order: Order) -> bool:
    return (known.class_name, known.count) == (order.class_name, order.count)


def _start(tried: PlacementState, machine: Machine) -> Plan:
    notes = list(machine.notes)
    running = tried.vmi(machine.namespace, machine.name)
    if running is not None or tried.devices_of_vmi(machine.namespace, machine.name):
        where = f" on {running.node}" if running is not None and running.node else ""
        notes.append(f"the VM already has its devices{where}; this is what a restart would get")
        what_if.stop(tried, machine.namespace, machine.name)
    devices = [found for name in machine.wanted.held if (found := tried.device(machine.namespace, name)) is not None]
    start = Start(
        namespace=machine.namespace,
        vmi_name=machine.name,
        devices=tuple(devices),
        templates=tuple(machine.wanted.templates.values()),
        constraints=machine.wanted.constraints,
    )
    refused = [
        *_terminating(tried, machine.namespace),
        *_raw(tried, machine),
        *_unusable_devices(tried, machine.wanted),
    ]
    planned = plan_start(tried, machine.kind, start, refused=refused, notes=notes)
    if planned.node:
        what_if.place(tried, start, planned.node)
    return planned


def _terminating(state: PlacementState, namespace: str) -> list[Refusal]:
    found = state.namespace(namespace)
    if found is None or found.deleting is None:
        return []
    message = f"namespace {namespace} is being deleted and starts no VMs; use another namespace"
    return [Refusal(reason=Reason.NAMESPACE_TERMINATING, message=message)]


def _raw(state: PlacementState, machine: Machine) -> list[Refusal]:
    """The VM's raw GPU entries, if the policy forbids them (W2)."""
    forbidden = state.settings.raw_name_policy is RawNamePolicy.FORBIDDEN
    if not forbidden or not machine.namespace.startswith(TENANT_PREFIX):
        return []
    entries = raw_entries(machine.manifest, state.effective_names)
    message = f"GPUs must be requested by device reference, not by resource name; remove {', '.join(entries)}"
    return [Refusal(reason=Reason.RAW_NAME_FORBIDDEN, message=message)] if entries else []


def _unusable_devices(state: PlacementState, wanted: DeviceSet) -> list[Refusal]:
    """Refusals of single devices, as the webhook makes them before it asks the binder (W2, B1)."""

    def check(vmi_name: str, device: Device) -> Refusal | None:
        return checks.device_unusable(state, Start(namespace=device.namespace, vmi_name=vmi_name, devices=(device,)))

    found = []
    for name in wanted.names:
        device = state.device(wanted.namespace, name)
        try:
            found_device = availability_of(wanted, name, device, state.seen_vmis, check)
        except Denied as denied:
            found.append(Refusal(reason=Reason(denied.reason), message=denied.message))
            continue
        if found_device.availability is Availability.RELEASING:
            message = f"GPUDevice {wanted.namespace}/{name} is still being released; try again in a moment"
            found.append(Refusal(reason=Reason.DEVICE_ATTACHED, message=message))
    return found
