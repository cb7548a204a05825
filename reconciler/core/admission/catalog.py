"""What a namespace can order and reference now, and what limits it (C1).

Has no rules of its own: `orderable` is the largest count that `checks.check_order` accepts, `limit` its refusal of one
more. Served by `webhooks.catalog`.
"""

from __future__ import annotations

from reconciler.core.admission import checks
from reconciler.core.admission.checks import Refusal
from reconciler.core.model.device_state import accepted
from reconciler.core.model.objects import GpuClass, Model
from reconciler.core.model.vocabulary import Phase
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.tenancy import tenants


class Offer(Model, frozen=True, kw_only=True):
    """One class for one namespace. `orderable`: the largest order accepted now, in units; `limit`: why not
    one more."""

    class_name: str
    display_name: str
    description: str
    orderable: int
    limit: Refusal


class Referable(Model, frozen=True, kw_only=True):
    """A device of the namespace that a VM may reference. `vmi`: the VMI using it, "" for none."""

    name: str
    class_name: str
    display_name: str
    units: int
    phase: str
    vmi: str = ""


def offers(state: PlacementState, namespace: str) -> list[Offer]:
    """Every class with its orderable units, by name; classes being deleted are left out."""
    return [offer(state, namespace, found) for found in state.classes() if found.deleting is None]


def offer(state: PlacementState, namespace: str, found: GpuClass) -> Offer:
    """The largest order of one class that would be accepted now, by binary search: a larger order is never easier to
    accept."""
    keys = (tenants.class_key(found.name), tenants.raw_key(found.resource_name))
    left = [room.units for key in keys if (room := state.charges.headroom(namespace, key)).units is not None]
    low, high = 0, max(1, min([state.free.largest(found.resource_name)[1], *left]) + 1)
    limit = checks.check_order(state, namespace, found.name, high)
    while limit is None:
        low, high = high, high * 2
        limit = checks.check_order(state, namespace, found.name, high)
    while high - low > 1:
        middle = (low + high) // 2
        refusal = checks.check_order(state, namespace, found.name, middle)
        if refusal is None:
            low = middle
        else:
            high, limit = middle, refusal
    return Offer(
        class_name=found.name,
        display_name=found.display_name or found.name,
        description=found.description,
        orderable=low,
        limit=limit,
    )


def referable(state: PlacementState, namespace: str) -> list[Referable]:
    """The namespace's own accepted devices, free ones first, then by name; deleted and Lost ones are left out."""
    found = []
    for device in state.devices_in(namespace):
        usable = accepted(device) and device.deleting is None and device.phase != Phase.LOST
        if not usable or device.template:
            continue
        gpu_class = state.gpu_class(device.class_name)
        found.append(
            Referable(
                name=device.name,
                class_name=device.class_name,
                display_name=(gpu_class.display_name if gpu_class else "") or device.class_name,
                units=device.count,
                phase=device.phase,
                vmi=device.attachment.vmi_name if device.attachment is not None else "",
            )
        )
    return sorted(found, key=lambda device: (device.vmi != "", device.name))
