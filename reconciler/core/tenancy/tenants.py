"""Tenant names, who owns which namespace, and the GPU budgets a tenant's release states (R2, R3, K3).

Owns the mapping between HelmRelease and namespace, and the parsing of `resourceQuotas`. Knows nothing of usage: sums
over the tree are in `charges`. Neighbours: `quantities` parses numbers, `resource_names` the effective names.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from sortedcontainers import SortedSet

from reconciler.core.model.objects import Release
from reconciler.core.model.quantities import QuantityError, whole_units
from reconciler.core.model.vocabulary import CLASS_BUDGET_PREFIX, GROUP, RAW_BUDGET_PREFIXES, ROOT_TENANT, TENANT_PREFIX


def owned_namespace(release_namespace: str, release_name: str) -> str | None:
    """The namespace that a tenant's release owns, None if the release's name is not a tenant's (R2).

    `tenant-x` in P owns `P-x`; in `tenant-root` it owns `tenant-x`. `tenant-root` in `tenant-root` owns itself.
    """
    short = release_name.removeprefix(TENANT_PREFIX)
    if not release_namespace or not short or short == release_name:
        return None
    if release_namespace == ROOT_TENANT:
        return release_name
    owned = f"{release_namespace}-{short}"
    return None if owned == ROOT_TENANT else owned


def parent_of(release_namespace: str, release_name: str) -> str | None:
    """The tenant above the one that a release creates: the release's own namespace, None for the root (R2)."""
    owned = owned_namespace(release_namespace, release_name)
    return None if owned is None or owned == ROOT_TENANT else release_namespace


def parent_namespace(namespace: str, known: Container[str]) -> str | None:
    """The tenant above a namespace, by its name alone (R2); None for the root and for namespaces of no tenant.

    Names contain dashes, so `tenant-a-b` may be `b` below `tenant-a` or `a-b` below the root. The release
    that owns a namespace decides (`parent_of`). This function is for a namespace without a release: the longest
    name among the `known` tenants that it extends, else the root. The longest has the most ancestors, so usage
    that remains in a removed tenant's namespace never escapes a budget above it.
    """
    if namespace == ROOT_TENANT or not namespace.startswith(TENANT_PREFIX):
        return None
    above = namespace
    while above := above.rpartition("-")[0]:
        if above in known:
            return above
    return ROOT_TENANT


class Claims:
    """Which release owns a namespace that several claim (`tenant-a-b` has two possible parents).

    The oldest owns it (by creation, then uid), since its Helm release came first: creating another release for
    that namespace later changes nothing, and the order of arrival does not matter (R9).
    """

    def __init__(self) -> None:
        self._claims: dict[str, SortedSet[tuple[int, str, str, str]]] = {}

    def put(self, release: Release) -> str | None:
        """Add a release; returns the namespace it claims, None if it claims none."""
        owned = owned_namespace(release.namespace, release.name)
        if owned is not None:
            self._claims.setdefault(owned, SortedSet()).add(_claim(release))
        return owned

    def drop(self, release: Release) -> str | None:
        """Remove a release as it was added; returns the namespace it claimed."""
        owned = owned_namespace(release.namespace, release.name)
        claims = self._claims.get(owned) if owned is not None else None
        if owned is not None and claims is not None:
            claims.discard(_claim(release))
            if not claims:
                del self._claims[owned]
        return owned

    def owner(self, namespace: str) -> tuple[str, str] | None:
        """(namespace, name) of the release that owns a namespace."""
        claims = self._claims.get(namespace)
        return None if claims is None else (claims[0][2], claims[0][3])


def _claim(release: Release) -> tuple[int, str, str, str]:
    return release.created, release.uid, release.namespace, release.name


class BudgetKind(StrEnum):
    """What a budget limits (K3)."""

    CLASS = "class"
    RAW = "raw"


class BudgetKey(NamedTuple):
    """`name`: a class name, or a resource name. Its string form is the key that a tenant writes."""

    kind: BudgetKind
    name: str

    def __str__(self) -> str:
        return f"{CLASS_BUDGET_PREFIX}{self.name}" if self.kind is BudgetKind.CLASS else self.name


def class_key(class_name: str) -> BudgetKey:
    """The key that limits units of a class."""
    return BudgetKey(BudgetKind.CLASS, class_name)


def raw_key(resource_name: str) -> BudgetKey:
    """The key that limits all units of a resource name: devices and uncovered pod requests together."""
    return BudgetKey(BudgetKind.RAW, resource_name)


class Budgets(msgspec.Struct, frozen=True):
    """A tenant's GPU budgets. `limits`: whole units. `unreadable`: why a key's value cannot be read. `error`:
    why the whole map cannot. `unmatched`: keys as written that look like GPU budgets but limit nothing."""

    limits: dict[BudgetKey, int] = {}
    unreadable: dict[BudgetKey, str] = {}
    unmatched: tuple[str, ...] = ()
    error: str = ""

    def problem(self, key: BudgetKey) -> str:
        """Why this tenant's budget for a key cannot be read; "" if it can or there is none (R3)."""
        return self.error or self.unreadable.get(key, "")


NO_BUDGETS = Budgets()


def parse_budgets(
    quotas: Mapping[str, Any],
    *,
    class_names: Container[str],
    effective_names: frozenset[str],
    error: str = "",
) -> Budgets:
    """The GPU budgets in a tenant's `resourceQuotas` (K3, R3); other keys are ignored.

    `X`, `requests.X` and `limits.X` are the same key, for a class or a resource name; the smallest value
    applies, and an unreadable one makes the key unreadable. A fraction rounds down, 0 allows nothing,
    null counts as absent. `error`: the map itself could not be read.
    """
    limits: dict[BudgetKey, int] = {}
    unreadable: dict[BudgetKey, str] = {}
    unmatched: list[str] = []
    for written in sorted(quotas):
        value = quotas[written]
        if value is None:
            continue
        key = _budget_key(written, class_names, effective_names)
        if key is None:
            if _looks_like_ours(written, effective_names):
                unmatched.append(written)
            continue
        try:
            units = whole_units(value)
        except QuantityError as reason:
            unreadable.setdefault(key, f"resourceQuotas[{written!r}]: {reason}")
            continue
        limits[key] = min(units, limits.get(key, units))
    for key in unreadable:
        limits.pop(key, None)
    return Budgets(limits, unreadable, tuple(unmatched), error)


def _budget_key(written: str, class_names: Container[str], effective_names: frozenset[str]) -> BudgetKey | None:
    bare = _without_prefix(written)
    class_name = bare.removeprefix(CLASS_BUDGET_PREFIX)
    if class_name != bare and class_name in class_names:
        return class_key(class_name)
    return raw_key(bare) if bare in effective_names else None


def _without_prefix(written: str) -> str:
    for prefix in RAW_BUDGET_PREFIXES:
        if written.startswith(prefix):
            return written.removeprefix(prefix)
    return written


def _looks_like_ours(written: str, effective_names: frozenset[str]) -> bool:
    """Whether a key that matches nothing was clearly meant for a GPU or another device (C13): its domain or
    name is one of ours, ignoring case, or it is an extended resource's `requests.` or `limits.` form."""
    lowered = written.strip().lower()
    bare = _without_prefix(lowered)
    domain, slash, name = bare.partition("/")
    if not slash:
        return False
    if bare != lowered or domain == GROUP:
        return True
    known = [effective.lower().partition("/") for effective in effective_names]
    return any(domain == one[0] or name == one[2] for one in known)
