"""Read-only view of the state for the webhooks.

`PlacementState` in `reconciler.core.state` implements it. Webhooks never change the state. The checks are passed in as
functions bound to the same state, so that webhook and binder share one list of refusals (P1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from reconciler.core.admission.checks import Refusal
from reconciler.core.model.objects import Constraints, Device, GpuClass, Namespace, Node, Settings
from reconciler.core.model.references import TemplateReference
from reconciler.core.tenancy.charges import ChargeTree


class View(Protocol):
    """Read side of the state. Properties reflect the current state; objects are immutable."""

    @property
    def synced(self) -> bool: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def effective_names(self) -> frozenset[str]: ...
    @property
    def seen_vmis(self) -> Mapping[str, str]:
        """Device uid to "REQUEST ID/VMI UID" of an attachment whose VMI has appeared (P5)."""
        ...

    @property
    def attached_since(self) -> Mapping[str, tuple[str, int]]:
        """Device uid to its attachment's request and when this replica first saw it (ms)."""
        ...

    @property
    def now(self) -> int:
        """Time of the last folded event, ms."""
        ...

    @property
    def class_resources(self) -> Mapping[str, str]:
        """Class name to its current and former resource names."""
        ...

    @property
    def charges(self) -> ChargeTree: ...

    def device(self, namespace: str, name: str) -> Device | None: ...
    def devices_of_vmi(self, namespace: str, vmi_name: str) -> list[Device]: ...
    def settled(self, device: Device) -> bool:
        """Whether the API server has confirmed this value, that is, it contains no assumed write of ours (J4)."""
        ...

    def gpu_class(self, name: str) -> GpuClass | None: ...
    def classes(self) -> list[GpuClass]: ...
    def namespace(self, name: str) -> Namespace | None: ...
    def node(self, name: str) -> Node | None: ...


class CheckOrder(Protocol):
    """`checks.check_order` bound to the state: whether an order is allowed (P1)."""

    def __call__(self, namespace: str, class_name: str, count: int) -> Refusal | None: ...


class CheckStart(Protocol):
    """`checks.check_start` bound to the state: whether a set can start now (an early answer; B2 decides)."""

    def __call__(
        self,
        namespace: str,
        vmi_name: str,
        devices: Sequence[Device],
        templates: Sequence[TemplateReference],
        constraints: Constraints,
    ) -> Refusal | None: ...


class CheckDevice(Protocol):
    """Why a device cannot be part of a VMI's start, None if it can."""

    def __call__(self, vmi_name: str, device: Device) -> Refusal | None: ...
