"""W1: validating webhook for GPUDevices.

Owns who may write which metadata and spec fields of a device, and calls `checks` for new orders (P1). Admission is an
early answer, not a hold (P1b). Status is out of scope: no tenant role can write it, and the API server drops it on
create. Our finalizer on a new order is harmless (an exported manifest carries it); removing it is denied, or the units
would count as free while a VM uses them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reconciler.core.model.vocabulary import DEVICE_FINALIZER, EPOCH_ANNOTATION, TEMPLATE_LABEL, TRUE, Reason
from webhooks.review import ALLOWED, Answer, Denied, Request, read_object
from webhooks.view import CheckOrder, View


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None

    @property
    def mark(self) -> str | None:
        return (self.labels or {}).get(TEMPLATE_LABEL)

    @property
    def epoch(self) -> str | None:
        return (self.annotations or {}).get(EPOCH_ANNOTATION)

    @property
    def guarded(self) -> bool:
        return DEVICE_FINALIZER in (self.finalizers or ())


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    class_name: str
    count: int = 1


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    spec: _Spec
    metadata: _Metadata = _Metadata()
    status: dict[str, Any] | None = None


class DeviceWebhook:
    """Validates CREATE and UPDATE of GPUDevices (W1). Raises `Denied`."""

    def __init__(self, view: View, check_order: CheckOrder) -> None:
        self._view = view
        self._check_order = check_order

    async def __call__(self, request: Request, seconds: float) -> Answer:
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        device = read_object(request.object, _Device)
        ours = bool(self._view.settings.writer) and request.user == self._view.settings.writer
        if request.operation == "UPDATE":
            _check_update(read_object(request.old_object, _Device, "oldObject"), device, ours)
        else:
            self._check_create(request, device, ours)
        return ALLOWED

    def _check_create(self, request: Request, device: _Device, ours: bool) -> None:
        found = self._view.namespace(request.namespace)
        if found is not None and found.deleting is not None:
            raise Denied(
                Reason.NAMESPACE_TERMINATING,
                f"namespace {request.namespace} is being deleted and takes no orders; use another namespace",
            )
        if ours and device.metadata.mark == TRUE:
            # Template devices are checked with their start (B2); checking them here would charge their units twice.
            return
        _refuse_reserved(device, ours)
        if not device.spec.class_name or device.spec.count < 1:
            raise Denied(Reason.MALFORMED_REVIEW, "spec.className must name a class and spec.count be 1 or more")
        refusal = self._check_order(request.namespace, device.spec.class_name, device.spec.count)
        if refusal is not None:
            raise Denied.because(refusal, self._view.settings)


def _refuse_reserved(device: _Device, ours: bool) -> None:
    if device.metadata.mark is not None:
        raise Denied(
            Reason.TEMPLATE_MARK_RESERVED,
            f"label {TEMPLATE_LABEL} marks devices made at the start of a VM and is set by gpu-binder alone; "
            "remove the label to order a device of your own",
        )
    if device.metadata.epoch is not None and not ours:
        raise Denied(
            Reason.RESERVED_FIELD,
            f"annotation {EPOCH_ANNOTATION} is written by gpu-binder alone; remove it from the manifest",
        )
    if device.status:
        raise Denied(
            Reason.RESERVED_FIELD,
            "status is written by gpu-binder alone; remove it from the manifest",
        )


def _check_update(old: _Device, new: _Device, ours: bool) -> None:
    for field, before, after in (
        ("className", old.spec.class_name, new.spec.class_name),
        ("count", old.spec.count, new.spec.count),
    ):
        if before != after:
            raise Denied(
                Reason.IMMUTABLE_FIELD,
                f"spec.{field} cannot change from {before} to {after}; delete the device and order a new one",
            )
    if ours:
        return
    if old.metadata.mark != new.metadata.mark:
        raise Denied(
            Reason.TEMPLATE_MARK_RESERVED,
            f"label {TEMPLATE_LABEL} is set and removed by gpu-binder alone; leave it as it is",
        )
    if old.metadata.epoch != new.metadata.epoch:
        raise Denied(
            Reason.RESERVED_FIELD,
            f"annotation {EPOCH_ANNOTATION} is written by gpu-binder alone; leave it as it is",
        )
    if old.metadata.guarded and not new.metadata.guarded:
        raise Denied(
            Reason.RESERVED_FIELD,
            f"finalizer {DEVICE_FINALIZER} goes when the device's units are released; delete the device and "
            "stop the VM that uses it",
        )
