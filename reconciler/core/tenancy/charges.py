"""The charge tree: what each tenant and its sub-tenants use and have reserved of every budget key (R4).

Owns the sums, updated at every change at a cost proportional to the tree's depth, and the checks based on them.
The same facts give the same tree in any order of arrival (R9). Knows nothing of devices and pods: the fold
passes in how many units a namespace uses. Neighbours: `tenants` (names and budgets), `budgets` (the result
types), `checks` (the caller).

Usage counts for its namespace as long as it exists. When a tenant's release is deleted while something still
runs in its namespace, the tenant's own budgets end with the release, and the usage still counts for the tenants
above, which are found by name: a deleted tenant's units are returned only when their usage ends (C11).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sortedcontainers import SortedSet

from reconciler.core.model.vocabulary import ROOT_TENANT, TENANT_PREFIX
from reconciler.core.tenancy.budgets import BudgetRefusal, BudgetUnreadable, Headroom, Level
from reconciler.core.tenancy.tenants import NO_BUDGETS, BudgetKey, Budgets, parent_namespace


class _Account(msgspec.Struct):
    """One namespace's sums per key, in units: `usage` its own, `below` its children's contributions. Zeros
    are omitted. `owned`: a release makes it a tenant; only tenants have budgets."""

    parent: str | None
    owned: bool = False
    children: int = 0
    budgets: Budgets = NO_BUDGETS
    usage: dict[BudgetKey, int] = {}
    below: dict[BudgetKey, int] = {}

    def charge(self, key: BudgetKey) -> int:
        return self.usage.get(key, 0) + self.below.get(key, 0)

    def contribution(self, key: BudgetKey) -> int:
        """What the parent is charged for this tenant: a budget is reserved in full, used or not (R4)."""
        return max(self.budgets.limits.get(key, 0), self.charge(key))

    @property
    def keys(self) -> list[BudgetKey]:
        return sorted({*self.usage, *self.below, *self.budgets.limits})


def _add(amounts: dict[BudgetKey, int], key: BudgetKey, delta: int) -> None:
    total = amounts.get(key, 0) + delta
    if total:
        amounts[key] = total
    else:
        amounts.pop(key, None)


class ChargeTree:
    """The tree. A namespace is added with its first usage or release and removed with the last."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._owned: dict[str, str | None] = {}
        self._unowned: SortedSet[str] = SortedSet()

    # Changes

    def add_tenant(self, namespace: str, parent: str | None) -> None:
        """Make `namespace` a tenant below `parent` (R2), or move it there; `set_budgets` sets its budgets
        afterwards. Raises `ValueError` for a parent that cannot own the namespace."""
        if not _can_own(parent, namespace):
            raise ValueError(f"{namespace} cannot be a tenant below {parent}")
        self._account(namespace)
        if namespace not in self._owned:
            self._accounts[namespace].owned = True
            self._unowned.discard(namespace)
        self._owned[namespace] = parent
        self._move(namespace, parent)
        self._adopt(namespace)

    def remove_tenant(self, namespace: str) -> None:
        """Remove a tenant whose release is gone, with its budgets; usage left there still counts by name."""
        if namespace not in self._owned:
            return
        self.set_budgets(namespace, NO_BUDGETS)
        del self._owned[namespace]
        self._accounts[namespace].owned = False
        self._unowned.add(namespace)
        self._move(namespace, parent_namespace(namespace, self._owned))
        self._adopt(namespace)
        self._prune(namespace)

    def set_budgets(self, namespace: str, budgets: Budgets) -> None:
        """Replace a tenant's budgets. Raises `ValueError` if no release makes the namespace a tenant."""
        if namespace not in self._owned:
            raise ValueError(f"{namespace} is no tenant, it cannot have budgets")
        account = self._accounts[namespace]
        keys = sorted({*account.budgets.limits, *budgets.limits})
        before = {key: account.contribution(key) for key in keys}
        account.budgets = budgets
        for key in keys:
            self._raise(account.parent, key, account.contribution(key) - before[key])

    def add_usage(self, namespace: str, key: BudgetKey, delta: int) -> None:
        """Change the units used in a namespace; negative amounts subtract. Raises `ValueError` below zero."""
        account = self._account(namespace)
        if account.usage.get(key, 0) + delta < 0:
            raise ValueError(f"{namespace} uses {account.usage.get(key, 0)} of {key}, {-delta} cannot be given back")
        before = account.contribution(key)
        _add(account.usage, key, delta)
        self._raise(account.parent, key, account.contribution(key) - before)
        self._prune(namespace)

    # Answers

    def path(self, namespace: str) -> list[str]:
        """The namespace and the tenants above it, nearest first; only the namespace itself if it belongs to
        no tenant."""
        found: list[str] = []
        above: str | None = namespace
        while above is not None:
            found.append(above)
            above = self._parent(above)
        return found

    def tenants(self) -> list[str]:
        """Namespaces that a release makes a tenant, by name."""
        return sorted(self._owned)

    def budgets(self, namespace: str) -> Budgets:
        account = self._accounts.get(namespace)
        return NO_BUDGETS if account is None else account.budgets

    def usage(self, namespace: str, key: BudgetKey) -> int:
        """Units used in the namespace itself."""
        account = self._accounts.get(namespace)
        return 0 if account is None else account.usage.get(key, 0)

    def charge(self, namespace: str, key: BudgetKey) -> int:
        """Usage of the namespace plus, for each child, the larger of its charge and its budget (R4)."""
        account = self._accounts.get(namespace)
        return 0 if account is None else account.charge(key)

    def check(self, namespace: str, request: Mapping[BudgetKey, int]) -> BudgetRefusal | BudgetUnreadable | None:
        """Whether `request` more units may be used in a namespace (R4); keys that ask for 0 or less pass.

        An unreadable budget anywhere up to the root is reported first, whatever a nearer budget has left (R3);
        then the nearest tenant whose budget is exceeded, for the first such key.
        """
        refusals = [
            refusal
            for key in sorted(request)
            if request[key] > 0 and (refusal := self._refusal(namespace, key, request[key])) is not None
        ]
        unreadable = (refusal for refusal in refusals if isinstance(refusal, BudgetUnreadable))
        return next(unreadable, refusals[0] if refusals else None)

    def refusals(self, namespace: str, request: Mapping[BudgetKey, int]) -> list[BudgetRefusal | BudgetUnreadable]:
        """Every budget up to the root that refuses `request`, by key, nearest first, each evaluated as if the
        nearer ones had allowed it; `check` returns one of them (R4, J7)."""
        found: list[BudgetRefusal | BudgetUnreadable] = []
        for key in sorted(key for key, units in request.items() if units > 0):
            growth = request[key]
            for tenant in self.path(namespace):
                budgets, charge = self.budgets(tenant), self.charge(tenant, key)
                if unreadable := self._unreadable(tenant, key):
                    found.append(unreadable)
                budget = budgets.limits.get(key)
                if budget is None:
                    continue
                if growth > 0 and charge + growth > budget:
                    missing = charge + growth - budget
                    found.append(BudgetRefusal(tenant, key, budget, charge, growth, missing))
                growth = max(budget, charge + growth) - max(budget, charge)
        return found

    def check_child_budget(
        self, parent: str, child: str, key: BudgetKey, budget: int | None
    ) -> BudgetRefusal | BudgetUnreadable | None:
        """Whether `child` may have this budget (units, None: none) below `parent`: it may not take more than
        what the parent, and each tenant above with a budget, has left (W4, R4). A budget that takes no more
        than the child's present budget and usage is always allowed, even if tenants above exceed theirs."""
        before, charge = self._shares(parent, child, key)
        growth = max(budget or 0, charge) - before
        refusal = self._refusal(parent, key, growth) if growth > 0 else None
        if isinstance(refusal, BudgetRefusal):
            return msgspec.structs.replace(refusal, child=child, child_budget=budget or 0)
        return refusal

    def headroom(self, namespace: str, key: BudgetKey) -> Headroom:
        """The largest request that `check` would allow, and the tenant whose budget limits it.

        The nearest budget decides: it is reserved in full in every charge above, so using what it has left
        never raises those.
        """
        nearest = None
        for tenant in self.path(namespace):
            budgets = self.budgets(tenant)
            if self._unreadable(tenant, key):
                return Headroom(0, tenant)
            if nearest is None and key in budgets.limits:
                nearest = Headroom(max(0, budgets.limits[key] - self.charge(tenant, key)), tenant)
        return nearest or Headroom(None)

    def chain(self, namespace: str, key: BudgetKey) -> list[Level]:
        """Every tenant up to the root with its budget, its charge and what is left, nearest first (J7)."""
        levels = []
        for tenant in self.path(namespace):
            budgets, charge = self.budgets(tenant), self.charge(tenant, key)
            budget = budgets.limits.get(key)
            left = None if budget is None else max(0, budget - charge)
            unreadable = self._unreadable(tenant, key)
            levels.append(Level(tenant, budget, charge, left, "" if unreadable is None else unreadable.error))
        return levels

    # Inside

    def _unreadable(self, tenant: str, key: BudgetKey) -> BudgetUnreadable | None:
        """Why a tenant's budget is not known: its release states it unreadably, or there is no release (R3, R4). The
        root needs none to be the root. Where no tenant has a release there is no tree."""
        known = tenant in self._owned or tenant == ROOT_TENANT or not tenant.startswith(TENANT_PREFIX)
        if self._owned and not known:
            parent = self._parent(tenant) or ROOT_TENANT
            name = tenant if parent == ROOT_TENANT else f"{TENANT_PREFIX}{tenant.removeprefix(f'{parent}-')}"
            said = f"its release {parent}/{name} is missing or cannot be read"
            return BudgetUnreadable(tenant, key, said, f"{parent}/{name}")
        error = self.budgets(tenant).problem(key)
        return BudgetUnreadable(tenant, key, error) if error else None

    def _refusal(self, namespace: str, key: BudgetKey, growth: int) -> BudgetRefusal | BudgetUnreadable | None:
        """`growth`: units by which the charge of `namespace` would grow; charges further up may grow by less."""
        exceeded = None
        for tenant in self.path(namespace):
            budgets, charge = self.budgets(tenant), self.charge(tenant, key)
            if unreadable := self._unreadable(tenant, key):
                return unreadable
            budget = budgets.limits.get(key)
            if budget is None or exceeded is not None:
                continue
            if growth > 0 and charge + growth > budget:
                exceeded = BudgetRefusal(tenant, key, budget, charge, growth, charge + growth - budget)
            growth = max(budget, charge + growth) - max(budget, charge)
        return exceeded

    def _shares(self, parent: str, child: str, key: BudgetKey) -> tuple[int, int]:
        """(units `parent` is charged today for what `child` will hold, the child's charge once it is a
        tenant): a new tenant also takes over namespaces without a release whose names extend its own."""
        account = self._accounts.get(child)
        before = 0 if account is None or account.parent != parent else account.contribution(key)
        charge = 0 if account is None else account.charge(key)
        if child not in self._owned:
            known = {*self._owned, child}
            for namespace in self._continuing(child):
                if parent_namespace(namespace, known) == child:
                    orphan = self._accounts[namespace]
                    before += orphan.contribution(key) if orphan.parent == parent else 0
                    charge += orphan.contribution(key)
        return before, charge

    def _parent(self, namespace: str) -> str | None:
        if namespace in self._owned:
            return self._owned[namespace]
        return parent_namespace(namespace, self._owned)

    def _account(self, namespace: str) -> _Account:
        """The namespace's account; created, with those above it, if missing."""
        account = self._accounts.get(namespace)
        if account is None:
            account = self._accounts[namespace] = _Account(self._parent(namespace), usage={}, below={})
            self._unowned.add(namespace)
            if account.parent is not None:
                self._account(account.parent).children += 1
        return account

    def _raise(self, namespace: str | None, key: BudgetKey, delta: int) -> None:
        """Add to what children contribute, and propagate upward until a charge stays the same."""
        while namespace is not None and delta:
            account = self._accounts[namespace]
            before = account.contribution(key)
            _add(account.below, key, delta)
            delta = account.contribution(key) - before
            namespace = account.parent

    def _move(self, namespace: str, parent: str | None) -> None:
        account = self._accounts[namespace]
        old = account.parent
        if old == parent:
            return
        shares = [(key, account.contribution(key)) for key in account.keys]
        if parent is not None:
            self._account(parent).children += 1
        account.parent = parent
        for key, share in shares:
            self._raise(old, key, -share)
            self._raise(parent, key, share)
        if old is not None:
            self._accounts[old].children -= 1
            self._prune(old)

    def _adopt(self, tenant: str) -> None:
        """Re-parent namespaces without a release whose names extend that of a tenant just added or removed."""
        for namespace in self._continuing(tenant):
            if namespace in self._accounts:
                self._move(namespace, parent_namespace(namespace, self._owned))

    def _continuing(self, tenant: str) -> list[str]:
        """Namespaces without a release whose names extend a tenant's ("." sorts right after "-")."""
        return list(self._unowned.irange(f"{tenant}-", f"{tenant}.", inclusive=(True, False)))

    def _prune(self, namespace: str) -> None:
        """Drop empty accounts: no release, no usage, nothing below."""
        above: str | None = namespace
        while above is not None:
            account = self._accounts.get(above)
            if account is None or account.owned or account.usage or account.children:
                return
            del self._accounts[above]
            self._unowned.discard(above)
            above = account.parent
            if above is not None:
                self._accounts[above].children -= 1


def _can_own(parent: str | None, namespace: str) -> bool:
    """Rules out cycles: a parent's name is shorter, or it is the root's."""
    if parent is None:
        return namespace == ROOT_TENANT
    if parent == ROOT_TENANT and namespace.startswith(TENANT_PREFIX):
        return namespace != ROOT_TENANT
    return len(namespace) > len(parent) + 1 and namespace.startswith(f"{parent}-")


__all__ = ["BudgetRefusal", "BudgetUnreadable", "ChargeTree", "Headroom", "Level"]
