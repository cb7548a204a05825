"""The set of devices a start needs, and the availability of each.

Owns the names of template devices and the webhook's reading of a device's bind protocol fields (B1, B4). Pure.
Neighbours: `binding` acts on the result, `checks` explains why a device cannot be used.

The name of a template device depends only on the VMI's name and the reference's index in the annotation. Creating it is
therefore the lock against concurrent or repeated starts of the same VMI (B4, C17): a later start finds the existing
devices instead of creating more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from reconciler.core.admission.checks import Refusal
from reconciler.core.model.objects import Constraints, Device
from reconciler.core.model.references import DeviceReference, Reference, TemplateReference
from reconciler.core.model.vocabulary import Phase, Reason
from webhooks.review import Denied
from webhooks.view import CheckDevice

_NAME_CHARACTERS = 40
"""Length of the VMI name prefix in a template device's name; keeps the whole within 63 characters, the limit of labels
and hostnames."""


class DeviceSet(msgspec.Struct, frozen=True, kw_only=True):
    """All devices a VMI references, with its node constraints. `orders`: class and count of each held device as first
    read; another object under the same name is not accepted (R10)."""

    namespace: str
    vmi_name: str
    references: tuple[Reference, ...]
    orders: dict[str, TemplateReference] = {}
    constraints: Constraints = Constraints()

    @property
    def held(self) -> tuple[str, ...]:
        return tuple(found.device for found in self.references if isinstance(found, DeviceReference))

    @property
    def templates(self) -> dict[str, TemplateReference]:
        """Template device name to its template, in annotation order."""
        found = [item for item in self.references if isinstance(item, TemplateReference)]
        return {template_name(self.vmi_name, index): item for index, item in enumerate(found)}

    @property
    def names(self) -> tuple[str, ...]:
        """All device names, sorted. Writing in this order ensures that one of several competing starts succeeds."""
        return tuple(sorted({*self.held, *self.templates}))

    @property
    def size(self) -> int:
        return len(self.references)

    def fits(self, device: Device) -> bool:
        """Whether the device has the class and count this start expects."""
        order = self.templates.get(device.name) or self.orders.get(device.name)
        return order is None or (device.class_name, device.count) == (order.class_name, order.count)

    @property
    def vmi(self) -> str:
        return f"VMI {self.namespace}/{self.vmi_name}"


def template_name(vmi_name: str, index: int) -> str:
    """Name of a VMI's `index`-th template device. A digest distinguishes long names with a common prefix."""
    digest = hashlib.sha256(vmi_name.encode()).hexdigest()[:8]
    return f"{vmi_name[:_NAME_CHARACTERS].rstrip('-.')}-gpu-{digest}-{index}"


class Availability(StrEnum):
    """Availability of a device of the set."""

    MISSING = "Missing"
    """A template device that does not exist yet."""
    FREE = "Free"
    RELEASING = "Releasing"
    """Left over from an earlier run or failed start of the same VMI; the binder is about to release it (P5)."""
    REQUESTED = "Requested"
    """Held by another start of the same VMI name whose VMI has not appeared (B4)."""


class DeviceAvailability(msgspec.Struct, frozen=True):
    availability: Availability
    request_id: str = ""


def availability_of(
    wanted: DeviceSet, name: str, device: Device | None, seen: Mapping[str, str], check: CheckDevice
) -> DeviceAvailability:
    """Availability of one device. `seen`: device uid to "REQUEST/VMI UID" of attachments whose VMI has appeared. Raises
    `Denied` if this start cannot get the device in its current state."""
    template = wanted.templates.get(name)
    if device is None:
        if template is not None:
            return DeviceAvailability(Availability.MISSING)
        raise unknown_device(wanted.namespace, name)
    if device.template != (template is not None):
        raise _misused(device, template)
    if template is not None and device.deleting is not None:
        return DeviceAvailability(Availability.RELEASING)
    ours = device.attachment is not None and device.attachment.vmi_name == wanted.vmi_name
    if ours and device.attachment is not None:
        request_id = device.attachment.request_id
        if seen.get(device.uid, "").startswith(f"{request_id}/"):
            return DeviceAvailability(Availability.RELEASING)
        _refuse(check(wanted.vmi_name, device) if template is None else None)
        return DeviceAvailability(Availability.REQUESTED, request_id)
    if template is not None:
        return _template_availability(wanted, device)
    _refuse(check(wanted.vmi_name, device))
    if not wanted.fits(device):
        raise Denied(
            Reason.DEVICE_NOT_HELD,
            f"GPUDevice {device.namespace}/{device.name} was reordered while {wanted.vmi} started; try again",
        )
    leftover = device.placement is not None or device.bind_request is not None
    return DeviceAvailability(
        Availability.FREE if device.phase == Phase.HELD and not leftover else Availability.RELEASING
    )


def _template_availability(wanted: DeviceSet, device: Device) -> DeviceAvailability:
    if device.attachment is not None:
        raise Denied(
            Reason.DEVICE_ATTACHED,
            f"GPUDevice {device.namespace}/{device.name} is attached to VMI {device.attachment.vmi_name!r}, whose "
            f"name collides with {wanted.vmi_name!r}; rename one of the VMs",
        )
    untouched = device.phase in ("", Phase.PENDING) and device.placement is None
    return DeviceAvailability(Availability.FREE if wanted.fits(device) and untouched else Availability.RELEASING)


def _misused(device: Device, template: TemplateReference | None) -> Denied:
    name = f"GPUDevice {device.namespace}/{device.name}"
    if template is None:
        return Denied(
            Reason.DEVICE_ATTACHED,
            f"{name} was made for one start of a VM and goes with it; refer to a device of your own, or to a template",
        )
    return Denied(
        Reason.DEVICE_NOT_HELD,
        f"{name} is an order of yours under the name that this VM's template device needs; delete it, or refer "
        "to it by name",
    )


def _refuse(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise Denied(refusal.reason, refusal.message)


def belongs(wanted: DeviceSet, device: Device | None, request_id: str) -> bool:
    """Whether the device carries this request. Raises `Denied` if the request is for a different set (C21)."""
    if device is None or device.attachment is None or device.bind_request is None:
        return False
    if device.attachment.request_id != request_id or device.bind_request.id != request_id:
        return False
    if not wanted.fits(device) or device.bind_request.set_size != wanted.size:
        raise held_by_earlier(wanted, device.name)
    return True


def unknown_device(namespace: str, name: str) -> Denied:
    """Denial for a reference to a device that does not exist in the VMI's namespace."""
    return Denied(
        Reason.UNKNOWN_DEVICE,
        f"GPUDevice {namespace}/{name} does not exist; order it, or correct the name in the VM's annotation",
    )


def held_by_earlier(wanted: DeviceSet, name: str) -> Denied:
    """Denial when an earlier start of the same VMI name with other devices or constraints still holds a device."""
    return Denied(
        Reason.DEVICE_ATTACHED,
        f"GPUDevice {wanted.namespace}/{name} is held by an earlier start of {wanted.vmi} that asked for other "
        "devices or another node; try again in a few seconds, when that start can no longer succeed",
    )
