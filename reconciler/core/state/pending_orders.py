"""Pending orders grouped by what decides them, so that one decision covers all equal orders.

An order is decided by its class, count and namespace (P1): of equal orders only the oldest is reconsidered when
capacity returns; once it is accepted the next one is. Knows nothing of free units or budgets.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict, SortedSet

from reconciler.core.model.objects import Device

Ticket = tuple[int, str]
"""(creation in ms, uid): the order in which orders are accepted (P1b)."""


class PendingOrders:
    """Per class: every pending order, oldest first, and the same by count and namespace."""

    def __init__(self) -> None:
        self._all: dict[str, SortedSet[Ticket]] = {}
        self._alike: dict[str, SortedDict[tuple[int, str], SortedSet[Ticket]]] = {}

    def add(self, device: Device) -> None:
        ticket, group = (device.created, device.uid), (device.count, device.namespace)
        if device.class_name not in self._all:
            self._all[device.class_name] = SortedSet()
            self._alike[device.class_name] = SortedDict()
        self._all[device.class_name].add(ticket)
        alike = self._alike[device.class_name]
        if group not in alike:
            alike[group] = SortedSet()
        alike[group].add(ticket)

    def discard(self, device: Device) -> None:
        ticket, name, group = (
            (device.created, device.uid),
            device.class_name,
            (device.count, device.namespace),
        )
        if not self.has(device):
            return
        self._all[name].discard(ticket)
        self._alike[name][group].discard(ticket)
        if not self._alike[name][group]:
            del self._alike[name][group]
        if not self._all[name]:
            del self._all[name], self._alike[name]

    def has(self, device: Device) -> bool:
        return (device.created, device.uid) in self.of_class(device.class_name)

    def of_class(self, class_name: str) -> SortedSet[Ticket]:
        """Every pending order of a class, oldest first."""
        return self._all.get(class_name, _NONE)

    def class_names(self) -> list[str]:
        """Classes that pending orders ask for, by name."""
        return sorted(self._all)

    def alike(self, device: Device) -> SortedSet[Ticket]:
        """The pending orders equal to this one, oldest first."""
        return self._alike.get(device.class_name, {}).get((device.count, device.namespace), _NONE)

    def groups(self, class_name: str, most: int | None = None) -> Iterator[tuple[str, SortedSet[Ticket]]]:
        """(namespace, equal orders) of a class, for at most `most` units each where that is given."""
        groups = self._alike.get(class_name)
        if groups is not None:
            end = None if most is None else (most + 1, "")
            for group in groups.irange(maximum=end, inclusive=(True, False)):
                yield group[1], groups[group]


_NONE: SortedSet[Ticket] = SortedSet()
"""Returned for absent keys; never modified."""
