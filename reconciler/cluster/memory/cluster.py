"""The in-memory cluster: versions, conflicts, watches, admission, deletion (B4-B6, N7, N8).

Owns the assembly and the caller's identity. Has no randomness and no time of its own: the same calls with the same
clock and faults give the same objects, names, uids and versions.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from reconciler.cluster.memory.admission import Admission, Identity
from reconciler.cluster.memory.collector import Collector
from reconciler.cluster.memory.faults import Call, FaultInjector, Faults, Held
from reconciler.cluster.memory.json_objects import labels_of, parse_selector, selects
from reconciler.cluster.memory.store import Backup, Store, Stored, Written
from reconciler.cluster.memory.verbs import Verbs
from reconciler.cluster.memory.watching import Selection, Watches
from reconciler.cluster.port import Preconditions
from reconciler.core.model.objects import NAMESPACE, Key, Kind

ADMINISTRATOR = Identity("kubernetes-admin", ("system:masters", "system:authenticated"))
FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")

Answer = TypeVar("Answer")
Answerer = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the body of a review that is never stored (TokenReview and the like), gives it back with a status."""


class MemoryPort:
    """`reconciler.cluster.port.Cluster` with one caller's identity."""

    def __init__(self, cluster: MemoryCluster, identity: Identity) -> None:
        self._cluster = cluster
        self._identity = identity

    async def list(self, kind: Kind, *, namespace: str = "", name: str = "", label_selector: str = "") -> bytes:
        """See the port."""

        async def act() -> bytes:
            return self._cluster.read_list(kind, Selection(namespace, name, label_selector))

        return await self._run("list", kind, namespace, name, None, act)

    async def watch(
        self,
        kind: Kind,
        resource_version: str,
        *,
        namespace: str = "",
        name: str = "",
        label_selector: str = "",
        timeout_seconds: float,
    ) -> AsyncGenerator[bytes, None]:
        """See the port; `timeout_seconds` by the cluster's clock (`MemoryCluster.tick` when it was moved)."""
        await asyncio.sleep(0)
        selection = Selection(namespace, name, label_selector)
        lines = self._cluster.watches.run(kind, resource_version, selection, timeout_seconds, self._identity.username)
        try:
            async for line in lines:
                yield line
        finally:
            await lines.aclose()

    async def get(self, kind: Kind, namespace: str, name: str) -> bytes:
        """See the port."""

        async def act() -> bytes:
            return self._cluster.store.require(kind, namespace, name).raw

        return await self._run("get", kind, namespace, name, None, act)

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any], *, dry_run: bool = False) -> bytes:
        """See the port."""
        sent = msgspec.json.decode(msgspec.json.encode(body))

        async def act() -> bytes:
            if answer := self._cluster.answers.get(kind.name):
                return msgspec.json.encode(answer(sent))
            made = await self._cluster.verbs.create(self._identity, kind, namespace, sent, dry_run=dry_run)
            return made.raw if isinstance(made, Stored) else msgspec.json.encode(made)

        name = (sent.get("metadata") or {}).get("name", "")
        return await self._run("create", kind, namespace, name, sent, act)

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: dict[str, Any], *, subresource: str = ""
    ) -> bytes:
        """See the port."""
        sent = msgspec.json.decode(msgspec.json.encode(body))

        async def act() -> bytes:
            return (await self._cluster.verbs.patch(self._identity, kind, namespace, name, sent, subresource)).raw

        return await self._run("patch", kind, namespace, name, sent, act, subresource)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        preconditions: Preconditions | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """See the port. `grace_seconds` 0 is how a kubelet confirms that the pod has stopped."""
        conditions = preconditions or Preconditions()

        async def act() -> None:
            await self._cluster.verbs.delete(self._identity, kind, namespace, name, conditions, grace_seconds)

        await self._run("delete", kind, namespace, name, None, act)

    async def _run(
        self,
        verb: str,
        kind: Kind,
        namespace: str,
        name: str,
        body: dict[str, Any] | None,
        act: Callable[[], Awaitable[Answer]],
        subresource: str = "",
    ) -> Answer:
        await asyncio.sleep(0)
        key = Key(kind.name, namespace if kind.namespaced else "", name)
        call = Call(verb, kind.name, key, body, self._identity.username, subresource)
        return await self._cluster.fault_injector.run(call, act)


class MemoryCluster(MemoryPort):
    """A cluster, and the port to it as its administrator. `clock`: ms since the epoch.

    Controllers do not run by themselves: call `collect` (garbage collector, namespace controller) and the `step` of
    the simulated controllers. `faults`, if set, injects failures.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.store = Store(clock)
        self.admission = Admission(self.store.next_uid)
        self.verbs = Verbs(self.store, self.admission)
        self.fault_injector = FaultInjector()
        self.watches = Watches(self.store, self.fault_injector)
        self.answers: dict[str, Answerer] = {}
        self._collector = Collector(self.store, self.verbs)
        super().__init__(self, ADMINISTRATOR)
        for name in FIRST_NAMESPACES:
            metadata = {"name": name, "uid": self.store.next_uid()}
            namespace = {"apiVersion": "v1", "kind": NAMESPACE.name, "metadata": metadata}
            self.store.put(NAMESPACE, {**namespace, "status": {"phase": "Active"}})

    def as_user(self, username: str, groups: tuple[str, ...] = ()) -> MemoryPort:
        """The same cluster for another caller; admission and the write log record the name."""
        return MemoryPort(self, Identity(username, (*groups, "system:authenticated")))

    @property
    def faults(self) -> Faults | None:
        """Hook called for every call and watch event; None injects nothing."""
        return self.fault_injector.hook

    @faults.setter
    def faults(self, hook: Faults | None) -> None:
        self.fault_injector.hook = hook

    @property
    def held(self) -> tuple[Held, ...]:
        """The calls a fault delays, oldest first."""
        return tuple(self.fault_injector.held)

    @property
    def writes(self) -> tuple[Written, ...]:
        """The write log: every accepted write in order; no-ops have `applied` False."""
        return tuple(self.store.writes)

    @property
    def resource_version(self) -> str:
        return str(self.store.version)

    def collect(self) -> bool:
        """One pass of the garbage collector and the namespace controller; returns whether it changed anything."""
        return self._collector.step()

    def compact(self) -> None:
        """Discard all past versions: a watch from an earlier version is `Expired` (N7)."""
        self.store.compact()

    def backup(self) -> Backup:
        """A copy of all data."""
        return self.store.backup()

    def restore(self, backup: Backup) -> None:
        """Restore a backup of this cluster: its versions go back, and every watch breaks."""
        self.store.restore(backup)
        self.watches.drop()

    def uninstall_kind(self, kind: Kind) -> None:
        """Remove a kind with all its objects; its watches end and its verbs raise `KindMissing` (N8)."""
        self.store.uninstall(kind)
        self.watches.close(kind)

    def install_kind(self, kind: Kind) -> None:
        self.store.install(kind)

    def tick(self) -> None:
        """Notify the watches that the clock has advanced."""
        self.watches.tick()

    def close_watches(self, kind: Kind | None = None) -> None:
        """End the watches (of a kind) as a server shutting down does."""
        self.watches.close(kind)

    def read_list(self, kind: Kind, selection: Selection) -> bytes:
        """The list document, in etcd's order."""
        self.store.require_kind(kind)
        requirements = parse_selector(selection.labels)
        items = b",".join(
            stored.raw
            for stored in self.store.of_kind(kind, selection.namespace)
            if selection.name in ("", stored.key.name) and selects(requirements, labels_of(stored.document))
        )
        metadata = {"resourceVersion": self.resource_version}
        head = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
        return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"

    def peek(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """A copy of an object, bypassing faults and the write log; None if there is none."""
        stored = self.store.get(kind, namespace, name)
        return copy.deepcopy(stored.document) if stored is not None else None

    def peek_all(self, kind: Kind, namespace: str = "") -> list[dict[str, Any]]:
        """Copies of all objects of a kind, in etcd's order."""
        return [copy.deepcopy(stored.document) for stored in self.store.of_kind(kind, namespace)]
