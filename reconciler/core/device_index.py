"""GPUDevices by what they are asked by: VMI, node, class, request; the holds and the pending orders.

Owns what a phase means for holding, charging and packing. Knows nothing of nodes, pods or budgets.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from reconciler.core.objects import Device
from reconciler.core.vocabulary import CONDITION_HELD, Phase, Reason
from reconciler.core.waiting import WaitingOrders

Address = tuple[str, str]
"""(namespace, name)."""


def address(device: Device) -> Address:
    return device.namespace, device.name


def accepted(device: Device) -> bool:
    """The binder has said yes: from here on the device counts against budgets (P1b)."""
    return device.phase not in ("", Phase.PENDING)


def holds_units(device: Device) -> bool:
    """The device takes units of its node; a Lost one takes none (P4)."""
    return device.placement is not None and accepted(device) and device.phase != Phase.LOST


def unplaced_hold(device: Device) -> bool:
    """Accepted, on no node yet: its units are held at class level (R9)."""
    return accepted(device) and device.placement is None and device.phase != Phase.RELEASING


def pending_order(device: Device) -> bool:
    """Waits to be accepted by itself. A template device never does: it is accepted with its start (B2)."""
    return not accepted(device) and not device.template and device.deleting is None


def refused_by_budget(device: Device) -> bool:
    """The order waits for a budget (R4): free units alone will not help it."""
    return any(found.type == CONDITION_HELD and found.reason in _BUDGET_REASONS for found in device.conditions)


_BUDGET_REASONS = (Reason.BUDGET_EXCEEDED, Reason.BUDGET_UNREADABLE)


def answered(device: Device) -> bool:
    """The device's bind request has its answer."""
    return (
        device.bind_request is not None
        and device.bind_answer is not None
        and device.bind_answer.request_id == device.bind_request.id
    )


class DeviceIndex:
    """Indexes over all devices; `update` is the only way in. Plain sets, sorted where they are read: a sorted set
    for each VMI would be most of the memory of a large cluster."""

    def __init__(self) -> None:
        self.by_uid: dict[str, Address] = {}
        self.by_vmi: dict[Address, set[Address]] = defaultdict(set)
        self.by_node: dict[str, set[Address]] = defaultdict(set)
        self.by_class: dict[str, set[Address]] = defaultdict(set)
        self.by_namespace: dict[str, set[Address]] = defaultdict(set)
        self.by_request: dict[str, set[Address]] = defaultdict(set)
        self.waiting = WaitingOrders()
        self.bound: Counter[str] = Counter()
        """Class name to units that its devices hold on nodes."""
        self.holds: dict[str, Counter[int]] = defaultdict(Counter)
        """Class name to {units of one device: number of unplaced holds}."""

    def update(self, old: Device | None, new: Device | None) -> None:
        """Replace one device by its new value; None is a device that is not there."""
        if old is not None:
            self._remove(old)
        if new is not None:
            self._add(new)

    def _add(self, device: Device) -> None:
        self.by_uid[device.uid] = address(device)
        for index, key in self._keys(device):
            index[key].add(address(device))
        if pending_order(device):
            self.waiting.add(device)
        if holds_units(device):
            self.bound[device.class_name] += device.count
        if unplaced_hold(device):
            self.holds[device.class_name][device.count] += 1

    def _remove(self, device: Device) -> None:
        self.by_uid.pop(device.uid, None)
        for index, key in self._keys(device):
            index[key].discard(address(device))
            if not index[key]:
                del index[key]
        if pending_order(device):
            self.waiting.discard(device)
        if holds_units(device):
            self.bound[device.class_name] -= device.count
        if unplaced_hold(device):
            holds = self.holds[device.class_name]
            holds[device.count] -= 1
            if not holds[device.count]:
                del holds[device.count]

    def held(self, class_name: str) -> int:
        """Units of a class held and not placed."""
        return sum(size * count for size, count in self.holds.get(class_name, {}).items())

    def _keys(self, device: Device) -> list[tuple[dict, object]]:  # type: ignore[type-arg]
        keys: list[tuple[dict, object]] = [  # type: ignore[type-arg]
            (self.by_class, device.class_name),
            (self.by_namespace, device.namespace),
        ]
        if device.attachment is not None:
            keys.append((self.by_vmi, (device.namespace, device.attachment.vmi_name)))
        if device.placement is not None:
            keys.append((self.by_node, device.placement.node))
        if device.bind_request is not None:
            keys.append((self.by_request, device.bind_request.id))
        return keys
