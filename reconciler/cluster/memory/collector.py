"""The garbage collector and the namespace controller of the in-memory cluster, one pass at a time.

In a real cluster both run in the background some time after the cause; here, when `Collector.step` is called.
"""

from __future__ import annotations

from reconciler.cluster.memory.admission import Identity
from reconciler.cluster.memory.store import Store, Stored
from reconciler.cluster.memory.verbs import Verbs
from reconciler.core.model.objects import NAMESPACE

GARBAGE_COLLECTOR = Identity("system:serviceaccount:kube-system:generic-garbage-collector")
NAMESPACE_CONTROLLER = Identity("system:serviceaccount:kube-system:namespace-controller")


class Collector:
    """Deletes objects whose owners are all gone, and empties namespaces that are being deleted."""

    def __init__(self, store: Store, verbs: Verbs) -> None:
        self._store = store
        self._verbs = verbs

    def step(self) -> bool:
        """One pass; returns whether it changed anything. Repeat until it does not: deleted objects may own others."""
        if not self._store.loosened:
            return False
        self._store.loosened = False
        orphans = [stored for stored in self._store.everything() if self._orphaned(stored)]
        for stored in orphans:
            self._verbs.terminate(GARBAGE_COLLECTOR, stored)
        emptied = [self._empty(namespace) for namespace in self._terminating()]
        return bool(orphans) or any(emptied)

    def _orphaned(self, stored: Stored) -> bool:
        owners = stored.metadata.get("ownerReferences") or []
        if not owners or "deletionTimestamp" in stored.metadata:
            return False
        return not any(owner.get("uid") in self._store.uids for owner in owners)

    def _terminating(self) -> list[Stored]:
        return [each for each in self._store.of_kind(NAMESPACE) if "deletionTimestamp" in each.metadata]

    def _empty(self, namespace: Stored) -> bool:
        """Delete the content, then the namespace itself once empty."""
        name = namespace.key.name
        content = [stored for stored in self._store.everything() if stored.metadata.get("namespace") == name]
        if not content:
            self._store.record(NAMESPACE_CONTROLLER.username, "delete", self._store.remove(namespace), None)
            return True
        standing = [stored for stored in content if "deletionTimestamp" not in stored.metadata]
        for stored in standing:
            self._verbs.terminate(NAMESPACE_CONTROLLER, stored)
        return bool(standing)
