"""What a player knows of the cluster: mirrors kept by watches, and a port whose writes are seen at once.

Owns staleness: a player that has written an object reads at least that version of it afterwards. Knows nothing of
what the players do with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.memory.json_objects import Document
from reconciler.cluster.port import ClusterError
from reconciler.core.model.objects import Kind

WATCH_SECONDS = 240
RELIST_SECONDS = 0.2
"""Between a broken watch and the next list: an API server that restarts is back within seconds."""


class Mirror:
    """All objects of one kind."""

    def __init__(self, kind: Kind, wake: Callable[[], None]) -> None:
        self.kind = kind
        self.listed = asyncio.Event()
        self._wake = wake
        self._objects: dict[tuple[str, str], Document] = {}
        self._gone: set[str] = set()
        """uids that were seen to go: the answer of a late write does not bring them back."""

    def documents(self, namespace: str = "") -> list[Document]:
        """The oldest first."""
        found = [each for (inside, _), each in self._objects.items() if namespace in ("", inside)]
        return sorted(found, key=_age)

    def get(self, namespace: str, name: str) -> Document | None:
        return self._objects.get((namespace, name))

    def assume(self, document: Document) -> None:
        """Take over the answer of a write, unless something newer is known."""
        known = self._objects.get(_key(document))
        if document["metadata"]["uid"] in self._gone or (known is not None and _version(known) > _version(document)):
            return
        self._objects[_key(document)] = document
        self._wake()

    async def run(self, port: KubeCluster) -> None:
        """List and watch for ever, through every interruption."""
        while True:
            with contextlib.suppress(ClusterError):
                version = self._take_list(msgspec.json.decode(await port.list(self.kind)))
                async for line in port.watch(self.kind, version, timeout_seconds=WATCH_SECONDS):
                    event = msgspec.json.decode(line)
                    if event["type"] == "ERROR":
                        break
                    self._take(event)
            await asyncio.sleep(RELIST_SECONDS)

    def _take_list(self, document: Document) -> str:
        version = int(document["metadata"]["resourceVersion"])
        items = {_key(item): self._complete(item) for item in document["items"]}
        newer = {key: each for key, each in self._objects.items() if _version(each) > version}
        kept = {each["metadata"]["uid"] for each in [*items.values(), *newer.values()]}
        self._gone.update(uid for each in self._objects.values() if (uid := each["metadata"]["uid"]) not in kept)
        self._objects = {**items, **newer}
        self.listed.set()
        self._wake()
        return str(version)

    def _take(self, event: Document) -> None:
        if event["type"] == "BOOKMARK":
            return
        document = event["object"]
        if event["type"] == "DELETED":
            self._gone.add(document["metadata"]["uid"])
            known = self._objects.get(_key(document))
            if known is not None and known["metadata"]["uid"] == document["metadata"]["uid"]:
                del self._objects[_key(document)]
            self._wake()
        else:
            self.assume(document)

    def _complete(self, item: Document) -> Document:
        """Items of a list do not say what they are."""
        return {"kind": self.kind.name, "apiVersion": self.kind.api_version, **item}


class Mirrors:
    """Mirrors of several kinds, and the wake-up call for those who act on them."""

    def __init__(self, *kinds: Kind) -> None:
        self._wakers: list[asyncio.Event] = []
        self._mirrors = {kind.name: Mirror(kind, self.wake) for kind in kinds}

    def wake(self) -> None:
        for each in self._wakers:
            each.set()

    def waker(self) -> asyncio.Event:
        """Set whenever something has changed."""
        self._wakers.append(asyncio.Event())
        return self._wakers[-1]

    def keeps(self, kind: Kind) -> bool:
        return kind.name in self._mirrors

    def documents(self, kind: Kind, namespace: str = "") -> list[Document]:
        return self._mirrors[kind.name].documents(namespace)

    def get(self, kind: Kind, namespace: str, name: str) -> Document | None:
        return self._mirrors[kind.name].get(namespace, name)

    def assume(self, kind: Kind, document: Document) -> None:
        if kind.name in self._mirrors and document.get("metadata", {}).get("resourceVersion"):
            self._mirrors[kind.name].assume(document)

    def runs(self, port: KubeCluster) -> list[Any]:
        """One coroutine a kind, each without end."""
        return [mirror.run(port) for mirror in self._mirrors.values()]

    async def listed(self) -> None:
        for mirror in self._mirrors.values():
            await mirror.listed.wait()


class ActorPort(KubeCluster):
    """A player's access: what it wrote is in its mirrors when the call returns."""

    mirrors: Mirrors | None = None

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any], *, dry_run: bool = False) -> bytes:
        typed = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        answer = await super().create(kind, namespace, typed, dry_run=dry_run)
        if not dry_run:
            self._assume(kind, answer)
        return answer

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: dict[str, Any], *, subresource: str = ""
    ) -> bytes:
        answer = await super().patch(kind, namespace, name, body, subresource=subresource)
        self._assume(kind, answer)
        return answer

    async def remove(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete without grace, as a kubelet does when the containers have stopped."""
        path = f"/api/v1/namespaces/{namespace}/{kind.plural}/{name}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        await self._call("DELETE", kind, path, body={"apiVersion": "v1", "kind": "DeleteOptions", **body})

    def _assume(self, kind: Kind, answer: bytes) -> None:
        if self.mirrors is not None and self.mirrors.keeps(kind):
            self.mirrors.assume(kind, msgspec.json.decode(answer))


def _key(document: Document) -> tuple[str, str]:
    return document["metadata"].get("namespace", ""), document["metadata"]["name"]


def _age(document: Document) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return metadata["creationTimestamp"], metadata.get("namespace", ""), metadata["name"]


def _version(document: Document) -> int:
    return int(document["metadata"]["resourceVersion"])
