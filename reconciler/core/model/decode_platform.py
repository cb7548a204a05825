"""Decodes platform objects into the model's structs: namespaces, the settings ConfigMap, KubeVirt's permitted devices,
tenants' HelmReleases.

Owns which of their fields are read at all (J3): only the quotas of a release's values. Decoding raises `ShapeError` for
invalid values (R10). Neighbours: `decode_workload`, `decode_gpu`, `wire`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import field

from reconciler.core.model import objects
from reconciler.core.model.vocabulary import (
    ENTITLEMENT_LABEL,
    SETTINGS_MANAGER_USERS,
    SETTINGS_RAW_NAME_POLICY,
    SETTINGS_RESOURCE_NAMES,
)
from reconciler.core.model.wire_base import Meta, ShapeError, Wire, common

_SELECTOR = re.compile(r"([0-9A-Fa-f]{4}):[0-9A-Fa-f]{4}")
_MAX_QUOTA_LENGTH = 300
"""Characters kept of a quota; no quantity is that long, so a truncated one stays unreadable."""
_MAX_NUMBER_LENGTH = 64
"""Digits allowed in a release's number; longer ones may fail in the journal or in Python's own conversion."""
_NULL = msgspec.Raw(b"null")
_SETTINGS = (SETTINGS_RESOURCE_NAMES, SETTINGS_RAW_NAME_POLICY, SETTINGS_MANAGER_USERS)


class NamespaceLabels(Wire, frozen=True):
    entitlement: str | None = field(default=None, name=ENTITLEMENT_LABEL)


class NamespaceMeta(Meta, frozen=True):
    labels: NamespaceLabels | None = None


class NamespaceWire(Wire, frozen=True):
    metadata: NamespaceMeta | None = None


def namespace(wire: NamespaceWire) -> objects.Namespace:
    meta = wire.metadata or NamespaceMeta()
    return objects.Namespace(**common(meta), entitlement=(meta.labels or NamespaceLabels()).entitlement)


class SettingsWire(Wire, frozen=True):
    metadata: Meta | None = None
    data: dict[str, str] | None = None


def settings(wire: SettingsWire) -> objects.SettingsMap:
    data = wire.data or {}
    known = {key: data[key] for key in _SETTINGS if key in data}
    return objects.SettingsMap(**common(wire.metadata), data=known)


class PciHostDevice(Wire, frozen=True):
    pci_vendor_selector: str = ""
    resource_name: str = ""


class MediatedDevice(Wire, frozen=True):
    mdev_name_selector: str = ""
    resource_name: str = ""


class PermittedHostDevices(Wire, frozen=True):
    pci_host_devices: tuple[PciHostDevice, ...] | None = None
    mediated_devices: tuple[MediatedDevice, ...] | None = None


class Configuration(Wire, frozen=True):
    permitted_host_devices: PermittedHostDevices | None = None


class KubeVirtSpec(Wire, frozen=True):
    configuration: Configuration | None = None


class KubeVirtWire(Wire, frozen=True):
    metadata: Meta | None = None
    spec: KubeVirtSpec | None = None


def kubevirt(wire: KubeVirtWire) -> objects.KubeVirt:
    """The table of permitted devices (R1); one malformed entry makes it unreadable, so the last known one is kept."""
    configuration = (wire.spec or KubeVirtSpec()).configuration or Configuration()
    table = configuration.permitted_host_devices or PermittedHostDevices()
    where = "spec.configuration.permittedHostDevices"
    permitted = []
    for index, pci in enumerate(table.pci_host_devices or ()):
        selector = _SELECTOR.fullmatch(pci.pci_vendor_selector)
        if selector is None or not pci.resource_name:
            raise ShapeError(
                f"{where}.pciHostDevices[{index}] needs a resourceName and a pciVendorSelector such as 10DE:2236"
            )
        permitted.append(objects.PermittedDevice(pci.resource_name, vendor=selector[1]))
    for index, mediated in enumerate(table.mediated_devices or ()):
        if not mediated.mdev_name_selector or not mediated.resource_name:
            raise ShapeError(f"{where}.mediatedDevices[{index}] needs a resourceName and an mdevNameSelector")
        permitted.append(objects.PermittedDevice(mediated.resource_name, mediated=True))
    return objects.KubeVirt(**common(wire.metadata), permitted=tuple(permitted))


class ReleaseSpec(Wire, frozen=True):
    values: msgspec.Raw = _NULL


class ReleaseWire(Wire, frozen=True):
    metadata: Meta | None = None
    spec: ReleaseSpec | None = None


class Values(Wire, frozen=True):
    resource_quotas: msgspec.Raw = _NULL


def release(wire: ReleaseWire) -> objects.Release:
    quotas, error = read_quotas(wire.spec.values if wire.spec else _NULL)
    return objects.Release(**common(wire.metadata), quotas=quotas, error=error)


def read_quotas(values: bytes | msgspec.Raw) -> tuple[dict[str, Any], str]:
    """(quotas, error) from a HelmRelease's `spec.values` (JSON): keys with a "/" as written, nulls omitted (K3);
    a non-scalar is kept as a word that no quantity parser accepts. `error` is set when there is no map (R3)."""
    if _type_of(values) not in ("map", "null"):
        return {}, f"spec.values is {_article(_type_of(values))}, not a map"
    raw = (msgspec.json.decode(values, type=Values | None) or Values()).resource_quotas
    if _type_of(raw) == "null":
        return {}, ""
    if _type_of(raw) != "map":
        return {}, f"spec.values.resourceQuotas is {_article(_type_of(raw))}, not a map"
    quotas: dict[str, Any] = {}
    for key, value in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).items():
        kind = _type_of(value)
        if "/" not in key or kind == "null":
            continue
        quotas[key] = _scalar(value, kind)
    return quotas, ""


def _scalar(raw: msgspec.Raw, kind: str) -> Any:
    if kind in ("map", "list"):
        return _article(kind)
    if kind == "number" and len(bytes(raw)) > _MAX_NUMBER_LENGTH:
        return "a number out of range"
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return "a number out of range"
    return value[:_MAX_QUOTA_LENGTH] if isinstance(value, str) else value


def _type_of(raw: bytes | msgspec.Raw) -> str:
    first = bytes(raw).lstrip()[:1]
    named = {b"{": "map", b"[": "list", b'"': "string", b"n": "null", b"t": "boolean", b"f": "boolean"}
    return named.get(first, "number")


def _article(kind: str) -> str:
    return f"a {kind}"
