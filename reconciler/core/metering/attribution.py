"""Attributes usage to a resource name and to tenants, which the metered object itself does not carry.

Caches the last result per namespace and class, so that a change is detected once and only affected subjects are
reprocessed.
"""

from __future__ import annotations

from reconciler.core.metering.device_usage import Attributes
from reconciler.core.metering.state_view import Facts
from reconciler.core.model.vocabulary import ROOT_TENANT
from reconciler.core.tenancy import tenants


class Filing:
    """Cached attribution per namespace and class."""

    def __init__(self) -> None:
        self._tenants: dict[str, tuple[str, ...]] = {}
        self._resources: dict[str, str] = {}

    def of(self, state: Facts, class_name: str, namespace: str) -> Attributes:
        resource = self._resources.setdefault(class_name, state.class_resources.get(class_name, ""))
        return Attributes(resource, self.tenants(state, namespace))

    def tenants(self, state: Facts, namespace: str) -> tuple[str, ...]:
        """The nearest tenant namespace and those above it (R2); nothing outside every tenant."""
        found = self._tenants.get(namespace)
        if found is None:
            found = self._tenants[namespace] = _above(state, namespace)
        return found

    def moved_tenants(self, state: Facts, namespace: str, release: str) -> list[tuple[str, int]]:
        """Known namespaces whose tenants changed because a release was added, changed or removed: (namespace, ms of
        the change, 0: unknown). A release that takes a namespace over has owned it since its creation; one that
        remains after another has gone has not."""
        owned = tenants.owned_namespace(namespace, release)
        if owned is None:
            return []
        moved = []
        for known in sorted(self._tenants):
            if known != owned and not known.startswith(f"{owned}-"):
                continue
            before = self._tenants[known]
            after = self._tenants[known] = _above(state, known)
            if before != after:
                owner = state.tenant_release(known) if known == owned else None
                taken_over = owner is not None and (owner.namespace, owner.name) == (namespace, release)
                moved.append((known, owner.created if owner is not None and taken_over else 0))
        return moved

    def moved_class(self, state: Facts, class_name: str) -> bool:
        """Whether a known class changed its resource name."""
        resource = state.class_resources.get(class_name, "")
        if self._resources.get(class_name, resource) == resource:
            return False
        self._resources[class_name] = resource
        return True

    def clear(self) -> None:
        self._tenants.clear()
        self._resources.clear()


def _above(state: Facts, namespace: str) -> tuple[str, ...]:
    """Without a release, only the root tenant is known by name."""
    path = state.charges.path(namespace)
    known = tuple(tenant for tenant in path if state.claims.owner(tenant) is not None)
    if known or ROOT_TENANT not in path:
        return known
    return (ROOT_TENANT,)
