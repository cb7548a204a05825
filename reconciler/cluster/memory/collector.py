"""The garbage collector and the namespace controller of the in-memory cluster, one pass at a time.

In a real cluster both run in the background, some time after the cause; here `Collector.step` is that time.
"""

from __future__ import annotations

from reconciler.cluster.memory.admission import Identity
from reconciler.cluster.memory.store import Store, Stored
from reconciler.cluster.memory.verbs import Verbs
from reconciler.core.model.objects import NAMESPACE

GARBAGE_COLLECTOR = Identity("system:serviceaccount:kube-system:generic-garbage-collector")
NAMESPACE_CONTROLLER = Identity("system:serviceaccount:kube-system:namespace-controller")


class Collector:
    """Deletes what lost all its owners, and empties namespaces that are being deleted."""

    def __init__(self, store: Store, verbs: Verbs) -> None:
        self._store = store
        self._verbs = verbs

    def step(self) -> bool:
        """One pass; says whether it changed anything. Call again until it does not: what it deletes may own
        more."""
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
        """Delete the content; the namespace itself once there is none."""
        name = namespace.key.name
        content = [stored for stored in self._store.everything() if stored.metadata.get("namespace") == name]
        if not content:
            self._store.record(NAMESPACE_CONTROLLER.username, "delete", self._store.remove(namespace), None)
            return True
        standing = [stored for stored in content if "deletionTimestamp" not in stored.metadata]
        for stored in standing:
            self._verbs.terminate(NAMESPACE_CONTROLLER, stored)
        return bool(standing)
