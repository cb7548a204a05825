"""Object storage of the in-memory cluster: objects, versions, recent history and the write log.

Owns the resourceVersion counter, uids, the history a watch can start from, and notification of watches. Enforces no
rules; callers do (`verbs`, `collector`).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from reconciler.cluster.memory.json_objects import Document, qualified
from reconciler.cluster.port import Expired, KindMissing, NotFound
from reconciler.core.model.objects import Key, Kind

WINDOW_CHANGES = 10_000
"""Changes of one kind a watch can start behind; an API server's watch cache is of that order."""
_UIDS = uuid.UUID("6f1c3f0e-9a53-4a0e-8d3e-6d0b7f3a5f11")
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""What the API server makes generated names of: no vowels, no digits that look like letters."""
_SUFFIX_LENGTH = 5
_MAX_GENERATED_BASE = 58


class Stored(msgspec.Struct, frozen=True):
    """An object and its JSON; `document` is never changed in place."""

    kind: Kind
    document: Document
    raw: bytes

    @property
    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self.document["metadata"]
        return metadata

    @property
    def version(self) -> str:
        return str(self.metadata["resourceVersion"])

    @property
    def key(self) -> Key:
        return Key(self.kind.name, self.metadata.get("namespace", ""), self.metadata["name"])


class Change(msgspec.Struct, frozen=True):
    """One version's change to an object; `old` is None for a creation, `new` for a deletion."""

    version: int
    key: Key
    old: Document | None
    new: Document | None
    raw: bytes


class Written(msgspec.Struct, frozen=True):
    """One accepted write. `applied` False: a no-op that made no new version."""

    seq: int
    user: str
    verb: str
    kind: str
    key: Key
    subresource: str
    body: dict[str, Any] | None
    applied: bool
    version: str


class Backup(msgspec.Struct, frozen=True):
    """A copy of everything etcd holds."""

    version: int
    objects: dict[str, dict[tuple[str, str], Stored]]
    uids: dict[str, Key]


class Listener(Protocol):
    kind: Kind

    def offer(self, change: Change) -> None: ...


class Store:
    """`clock`: ms since the epoch."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.version = 0
        self.writes: list[Written] = []
        self.listeners: list[Listener] = []
        self.uids: dict[str, Key] = {}
        self.loosened = False
        """Something was removed or got an owner since the garbage collector last looked."""
        self._objects: dict[str, dict[tuple[str, str], Stored]] = {}
        self._history: dict[str, deque[Change]] = {}
        self._forgotten: dict[str, int] = {}
        self._missing: set[str] = set()
        self._named = 0

    def require_kind(self, kind: Kind) -> None:
        if kind.name in self._missing:
            raise KindMissing(f"{qualified(kind)}/{kind.version}: the server could not find the requested resource")

    def get(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        return self._objects.get(kind.name, {}).get((namespace if kind.namespaced else "", name))

    def require(self, kind: Kind, namespace: str, name: str) -> Stored:
        """Raises `KindMissing` or `NotFound`."""
        self.require_kind(kind)
        stored = self.get(kind, namespace, name)
        if stored is None:
            raise NotFound(f'{qualified(kind)} "{name}" not found')
        return stored

    def of_kind(self, kind: Kind, namespace: str = "") -> list[Stored]:
        """All objects of a kind in etcd's order: namespace, then name."""
        objects = self._objects.get(kind.name, {})
        return [objects[at] for at in sorted(objects) if not namespace or at[0] == namespace]

    def documents(self, kind: Kind, namespace: str = "") -> list[Document]:
        """The same without copies; read-only."""
        return [stored.document for stored in self.of_kind(kind, namespace)]

    def everything(self) -> Iterator[Stored]:
        for name in sorted(self._objects):
            yield from (self._objects[name][at] for at in sorted(self._objects[name]))

    def next_uid(self) -> str:
        self._named += 1
        return str(uuid.uuid5(_UIDS, str(self._named)))

    def generated_name(self, base: str) -> str:
        """`base` plus five letters; deterministic per cluster."""
        self._named += 1
        number = uuid.uuid5(_UIDS, f"name {self._named}").int
        letters = []
        for _ in range(_SUFFIX_LENGTH):
            number, index = divmod(number, len(_SUFFIX_LETTERS))
            letters.append(_SUFFIX_LETTERS[index])
        return base[:_MAX_GENERATED_BASE] + "".join(letters)

    def put(self, kind: Kind, document: Document) -> Stored:
        """Store an object, new or changed, under the next version."""
        metadata = document["metadata"]
        at = (metadata.get("namespace", ""), metadata["name"])
        objects = self._objects.setdefault(kind.name, {})
        old = objects.get(at)
        stored = self._versioned(kind, document)
        objects[at] = stored
        self.uids[metadata["uid"]] = stored.key
        self.loosened |= bool(metadata.get("ownerReferences"))
        self._publish(stored, old.document if old is not None else None, stored.document)
        return stored

    def remove(self, stored: Stored) -> Stored:
        """Remove an object; returns its last state with the version of its removal."""
        del self._objects[stored.kind.name][(stored.key.namespace, stored.key.name)]
        del self.uids[stored.metadata["uid"]]
        self.loosened = True
        gone = self._versioned(stored.kind, stored.document)
        self._publish(gone, stored.document, None)
        return gone

    def record(
        self,
        user: str,
        verb: str,
        stored: Stored,
        body: dict[str, Any] | None,
        *,
        subresource: str = "",
        applied: bool = True,
    ) -> None:
        self.writes.append(
            Written(
                seq=len(self.writes) + 1,
                user=user,
                verb=verb,
                kind=stored.kind.name,
                key=stored.key,
                subresource=subresource,
                body=body,
                applied=applied,
                version=stored.version,
            )
        )

    def since(self, kind: Kind, version: int) -> list[Change]:
        """The changes after a version. Raises `Expired` if some have been compacted (N7)."""
        if version < self._forgotten.get(kind.name, 0):
            raise Expired(f"too old resource version: {version} ({self._forgotten[kind.name]})")
        return [change for change in self._history.get(kind.name, ()) if change.version > version]

    def compact(self) -> None:
        """Discard history: watches can only start from now on."""
        for kind in self._objects:
            self._forgotten[kind] = self.version
        self._history.clear()

    def backup(self) -> Backup:
        """A snapshot of the data, as etcdctl takes it."""
        objects = {kind: dict(found) for kind, found in self._objects.items()}
        return Backup(self.version, objects, dict(self.uids))

    def restore(self, backup: Backup) -> None:
        """Go back to a backup: versions count on from there, and watches can only start from now on. The caller ends
        the streams, as the API server restarts with it."""
        self.version = backup.version
        self._objects = {kind: dict(found) for kind, found in backup.objects.items()}
        self.uids = dict(backup.uids)
        self.loosened = True
        self.compact()

    def uninstall(self, kind: Kind) -> None:
        """Remove the kind and all its objects (N8)."""
        for stored in self.of_kind(kind):
            self.remove(stored)
        self._missing.add(kind.name)

    def install(self, kind: Kind) -> None:
        self._missing.discard(kind.name)

    def _versioned(self, kind: Kind, document: Document) -> Stored:
        self.version += 1
        metadata = {**document["metadata"], "resourceVersion": str(self.version)}
        versioned = {**document, "metadata": metadata}
        return Stored(kind, versioned, msgspec.json.encode(versioned))

    def _publish(self, stored: Stored, old: Document | None, new: Document | None) -> None:
        name = stored.kind.name
        history = self._history.setdefault(name, deque())
        change = Change(self.version, stored.key, old, new, stored.raw)
        history.append(change)
        if len(history) > WINDOW_CHANGES:
            self._forgotten[name] = history.popleft().version
        for listener in self.listeners:
            if listener.kind.name == name:
                listener.offer(change)
