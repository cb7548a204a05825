"""Reference model for charges: recomputed from the facts for every query, following R4."""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy
from typing import NamedTuple


class Refused(NamedTuple):
    tenant: str
    budget: int
    before: int
    after: int


class Facts:
    """`releases`: (namespace, name) to budgets per key; `usage`: namespace to units per key."""

    def __init__(self) -> None:
        self.releases: dict[tuple[str, str], dict[Hashable, int]] = {}
        self.usage: dict[str, dict[Hashable, int]] = {}

    def tenants(self) -> dict[str, tuple[str, str]]:
        owned = {}
        for space, name in self.releases:
            short = name[len("tenant-") :]
            at_root = space == "tenant-root"
            owned[f"tenant-{short}" if at_root else f"{space}-{short}"] = (space, name)
        return owned

    def parent(self, namespace: str) -> str | None:
        if namespace == "tenant-root" or not namespace.startswith("tenant-"):
            return None
        owned = self.tenants()
        if namespace in owned:
            return owned[namespace][0]
        above = [tenant for tenant in owned if namespace.startswith(f"{tenant}-")]
        return max(above, key=len, default="tenant-root")

    def namespaces(self) -> set[str]:
        found = {*self.tenants(), *self.usage}
        for namespace in list(found):
            found.update(self.path(namespace))
        return found

    def path(self, namespace: str) -> list[str]:
        above = self.parent(namespace)
        return [namespace, *(self.path(above) if above is not None else [])]

    def budget(self, namespace: str, key: Hashable) -> int | None:
        owner = self.tenants().get(namespace)
        return None if owner is None else self.releases[owner].get(key)

    def charge(self, namespace: str, key: Hashable) -> int:
        total = self.usage.get(namespace, {}).get(key, 0)
        for child in self.namespaces():
            if self.parent(child) == namespace:
                charge, budget = self.charge(child, key), self.budget(child, key)
                total += charge if budget is None else max(budget, charge)
        return total

    def with_usage(self, namespace: str, key: Hashable, delta: int) -> Facts:
        facts = deepcopy(self)
        used = facts.usage.setdefault(namespace, {})
        used[key] = used.get(key, 0) + delta
        return facts

    def with_budget(self, release: tuple[str, str], key: Hashable, budget: int | None) -> Facts:
        facts = deepcopy(self)
        budgets = facts.releases.setdefault(release, {})
        budgets.pop(key, None)
        if budget is not None:
            budgets[key] = budget
        return facts

    def missing(self, namespace: str) -> str | None:
        """The nearest tenant up the chain that no release makes one, the root aside."""
        owned = self.tenants()
        for tenant in self.path(namespace):
            if owned and tenant not in owned and tenant.startswith("tenant-") and tenant != "tenant-root":
                return tenant
        return None

    def grows(self, after: Facts, tenant: str, key: Hashable) -> bool:
        return after.charge(tenant, key) > self.charge(tenant, key)

    def exceeded(self, after: Facts, start: str, key: Hashable) -> Refused | None:
        """The nearest tenant from `start` upward whose budget the change exceeds and whose charge it raises."""
        for tenant in self.path(start):
            budget = self.budget(tenant, key)
            was, becomes = self.charge(tenant, key), after.charge(tenant, key)
            if budget is not None and becomes > budget and becomes > was:
                return Refused(tenant, budget, was, becomes)
        return None
