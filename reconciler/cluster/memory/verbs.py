"""Create, patch and delete by the API server's rules: namespaces, preconditions, admission, finalizers.

Owns the order of steps (as in k8s.io/apiserver: lifecycle, mutating admission, schema, validating admission,
storage). Admission may take time, so versions read before it are compared again before storing.
"""

from __future__ import annotations

import copy
from typing import Any

from reconciler.cluster.memory.admission import Admission, Attributes, Identity
from reconciler.cluster.memory.json_objects import (
    BINDING,
    WITH_STATUS,
    Document,
    changes_spec,
    counts_generations,
    for_create,
    for_update,
    is_custom,
    merge_patch,
    qualified,
    timestamp,
)
from reconciler.cluster.memory.store import Store, Stored
from reconciler.cluster.memory.validation import validate
from reconciler.cluster.port import AlreadyExists, Conflict, NotFound, Preconditions, Rejected
from reconciler.core.model.objects import NAMESPACE, POD, Kind

POD_GRACE_SECONDS = 30
"""A pod's default terminationGracePeriodSeconds."""
_UPDATE_ATTEMPTS = 5
"""How often the API server itself repeats an unconditional patch that lost a race."""
_FINISHED = ("Succeeded", "Failed")


class Verbs:
    """The three writing verbs on a store."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self._store = store
        self._admission = admission

    async def create(
        self, identity: Identity, kind: Kind, namespace: str, body: dict[str, Any], *, dry_run: bool
    ) -> Stored | Document:
        """Create an object; for a dry run returns the document that would have been stored (B5). Raises the port's
        errors."""
        self._store.require_kind(kind)
        document = for_create(kind, namespace, body)
        name = document["metadata"].get("name", "")
        self._check_namespace(kind, namespace, name)
        request = Attributes("CREATE", kind, namespace, name, identity, dry_run=dry_run)
        document = for_create(kind, namespace, await self._admission.mutate(request, document))
        metadata = document["metadata"]
        if not metadata.get("name"):
            metadata["name"] = self._store.generated_name(metadata["generateName"])
        metadata["uid"] = self._store.next_uid()
        metadata["creationTimestamp"] = timestamp(self._store.clock())
        if counts_generations(kind):
            metadata["generation"] = 1
        validate(kind, document, None)
        await self._admission.validate(request, document)
        self._check_namespace(kind, namespace, metadata["name"])
        if self._store.get(kind, namespace, metadata["name"]) is not None:
            raise AlreadyExists(f'{qualified(kind)} "{metadata["name"]}" already exists')
        if dry_run:
            return document
        stored = self._store.put(kind, document)
        self._store.record(identity.username, "create", stored, body)
        return stored

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        """The NamespaceLifecycle plugin's checks, before any webhook is called."""
        if not kind.namespaced:
            return
        owner = self._store.get(NAMESPACE, "", namespace)
        if owner is None:
            raise NotFound(f'namespaces "{namespace}" not found')
        if "deletionTimestamp" in owner.metadata:
            raise Rejected(
                f'{qualified(kind)} "{name}" is forbidden: unable to create new content in namespace {namespace} '
                "because it is being terminated"
            )

    async def patch(
        self, identity: Identity, kind: Kind, namespace: str, name: str, body: dict[str, Any], subresource: str
    ) -> Stored:
        """Apply a merge patch; a no-op makes no new version. Raises the port's errors."""
        self._store.require_kind(kind)
        _check_subresource(kind, subresource)
        given = body.get("metadata") or {}
        for _ in range(_UPDATE_ATTEMPTS):
            current = self._store.require(kind, namespace, name)
            _check_preconditions(current, given)
            if subresource == BINDING:
                _check_unbound(current)
            document = for_update(kind, current.document, merge_patch(current.document, body), subresource)
            if not subresource:
                request = Attributes("UPDATE", kind, namespace, name, identity, old=current.document)
                document = await self._admission.mutate(request, document)
                document = for_update(kind, current.document, document, subresource)
                _check_finalizers(current, document)
                validate(kind, document, current.document)
                await self._admission.validate(request, document)
            if self._store.get(kind, namespace, name) is current:
                return self._replace(identity, current, document, body, subresource)
            if given.get("resourceVersion"):
                break
        raise _moved_on(kind, name)

    def _replace(
        self, identity: Identity, current: Stored, document: Document, body: dict[str, Any], subresource: str
    ) -> Stored:
        kind, user = current.kind, identity.username
        document["metadata"]["resourceVersion"] = current.version
        if document == current.document:
            self._store.record(user, "patch", current, body, subresource=subresource, applied=False)
            return current
        if counts_generations(kind) and changes_spec(kind, current.document, document):
            document["metadata"]["generation"] = current.metadata.get("generation", 0) + 1
        stored = self._store.put(kind, document)
        self._store.record(user, "patch", stored, body, subresource=subresource)
        if _may_go(stored):
            return self._store.remove(stored)
        return stored

    async def delete(
        self,
        identity: Identity,
        kind: Kind,
        namespace: str,
        name: str,
        preconditions: Preconditions,
        grace_seconds: int | None,
    ) -> None:
        """Remove an object, or set its deletionTimestamp while finalizers or a kubelet hold it. Raises the port's
        errors."""
        current = self._store.require(kind, namespace, name)
        wanted = {"uid": preconditions.uid, "resourceVersion": preconditions.resource_version}
        _check_preconditions(current, {field: value for field, value in wanted.items() if value})
        request = Attributes("DELETE", kind, namespace, name, identity, old=current.document)
        await self._admission.validate(request, None)
        present = self._store.require(kind, namespace, name)
        if present is not current:
            _check_preconditions(present, {field: value for field, value in wanted.items() if value})
        self.terminate(identity, present, grace_seconds)

    def terminate(self, identity: Identity, current: Stored, grace_seconds: int | None = None) -> bool:
        """Delete without admission; returns whether anything changed."""
        grace = _grace(current) if grace_seconds is None else grace_seconds
        deleting = "deletionTimestamp" in current.metadata
        shorter = grace < current.metadata.get("deletionGracePeriodSeconds", 0)
        if deleting and not shorter:
            self._store.record(identity.username, "delete", current, None, applied=False)
            return False
        stored = self._store.put(current.kind, self._marked(current, grace)) if self._stays(current, grace) else current
        if stored is current or _may_go(stored):
            stored = self._store.remove(stored)
        self._store.record(identity.username, "delete", stored, None)
        return True

    def _stays(self, current: Stored, grace: int) -> bool:
        held = current.metadata.get("finalizers") or current.kind.name == NAMESPACE.name
        return bool(held or grace)

    def _marked(self, current: Stored, grace: int) -> Document:
        document = copy.deepcopy(current.document)
        metadata = document["metadata"]
        metadata["deletionTimestamp"] = timestamp(self._store.clock() + grace * 1000)
        metadata["deletionGracePeriodSeconds"] = grace
        if counts_generations(current.kind) and "deletionTimestamp" not in current.metadata:
            metadata["generation"] = metadata.get("generation", 0) + 1
        if current.kind.name == NAMESPACE.name:
            document["status"] = {**document.get("status", {}), "phase": "Terminating"}
            self._store.loosened = True
        return document


def _check_subresource(kind: Kind, subresource: str) -> None:
    known = (subresource == "status" and kind.name in WITH_STATUS) or (subresource == BINDING and kind.name == POD.name)
    if subresource and not known:
        raise NotFound(f"the server could not find the requested resource: {qualified(kind)}/{subresource}")


def _check_unbound(pod: Stored) -> None:
    if node := (pod.document.get("spec") or {}).get("nodeName"):
        raise Conflict(
            f'Operation cannot be fulfilled on pods/binding "{pod.key.name}": pod {pod.key.name} is already '
            f'assigned to node "{node}"'
        )


def _check_preconditions(current: Stored, given: dict[str, Any]) -> None:
    """Conditions a caller put into `metadata` (B6, R10)."""
    kind, name = current.kind, current.key.name
    if given.get("uid") and given["uid"] != current.metadata["uid"]:
        raise Conflict(
            f'Operation cannot be fulfilled on {qualified(kind)} "{name}": Precondition failed: UID in '
            f"precondition: {given['uid']}, UID in object meta: {current.metadata['uid']}"
        )
    if "resourceVersion" not in given:
        return
    if not given["resourceVersion"] and is_custom(kind):
        raise Rejected(
            f'{qualified(kind)} "{name}" is invalid: metadata.resourceVersion: Invalid value: 0x0: must be '
            "specified for an update"
        )
    if given["resourceVersion"] and given["resourceVersion"] != current.version:
        raise _moved_on(kind, name)


def _moved_on(kind: Kind, name: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {qualified(kind)} "{name}": the object has been modified; please '
        "apply your changes to the latest version and try again"
    )


def _check_finalizers(current: Stored, document: Document) -> None:
    if "deletionTimestamp" not in current.metadata:
        return
    before = current.metadata.get("finalizers") or []
    added = [each for each in document["metadata"].get("finalizers") or [] if each not in before]
    if added:
        raise Rejected(
            f'{qualified(current.kind)} "{current.key.name}" is invalid: metadata.finalizers: Forbidden: no new '
            f"finalizers can be added if the object is being deleted, found new finalizers {added}"
        )


def _grace(stored: Stored) -> int:
    """Grace period in seconds; none for a pod without a node or a finished one."""
    document = stored.document
    if stored.kind.name != POD.name or not (document.get("spec") or {}).get("nodeName"):
        return 0
    if (document.get("status") or {}).get("phase") in _FINISHED:
        return 0
    seconds = document["spec"].get("terminationGracePeriodSeconds")
    return POD_GRACE_SECONDS if seconds is None else int(seconds)


def _may_go(stored: Stored) -> bool:
    """Whether a deleted object can be removed: no finalizers and no grace period left."""
    metadata = stored.metadata
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and stored.kind.name != NAMESPACE.name
    )
