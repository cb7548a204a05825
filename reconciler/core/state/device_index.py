"""GPUDevices indexed by VMI, node, class, namespace and request, with the holds and the pending orders.

Owns the indexes. What a phase means is `device_state`'s. Knows nothing of nodes, pods or budgets.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from reconciler.core.model.device_state import (
    Address,
    address,
    holds_units,
    pending_order,
    unplaced_hold,
)
from reconciler.core.model.objects import Device
from reconciler.core.state.pending_orders import PendingOrders


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
        self.waiting = PendingOrders()
        self.bound: Counter[str] = Counter()
        """Class name to units that its devices hold on nodes."""
        self.holds: dict[str, Counter[int]] = defaultdict(Counter)
        """Class name to {units of one device: number of unplaced holds}."""

    def update(self, old: Device | None, new: Device | None) -> None:
        """Replace one device with its new value; None: absent."""
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
