"""The part of the placement state that the meter reads.

`state.PlacementState` satisfies it and carries the meter: this interface decouples the two.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from reconciler.core.model.objects import Device, Pod, Release, Settings, Vmi
from reconciler.core.tenancy.charges import ChargeTree
from reconciler.core.tenancy.tenants import Claims

Touched = tuple[str, str, str, str]
"""(kind, namespace, name, uid)."""


class Facts(Protocol):
    """The read side of the state, and the keys the last entry touched, which the meter drains."""

    now: int
    settings: Settings
    effective_names: frozenset[str]
    charges: ChargeTree
    claims: Claims
    seen_vmis: dict[str, str]
    touched: dict[Touched, None]
    landed: list[Device]

    @property
    def synced(self) -> bool: ...
    @property
    def pending(self) -> Container[str]: ...
    @property
    def class_resources(self) -> Mapping[str, str]: ...

    def device_by_uid(self, uid: str) -> Device | None: ...
    def devices_of_vmi(self, namespace: str, vmi_name: str) -> list[Device]: ...
    def devices_of_class(self, name: str) -> list[Device]: ...
    def pod(self, uid: str) -> Pod | None: ...
    def vmi(self, namespace: str, name: str) -> Vmi | None: ...
    def tenant_release(self, namespace: str) -> Release | None: ...
