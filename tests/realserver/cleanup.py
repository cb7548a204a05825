"""What the players of one test have made, and its removal, so that the next test finds an empty cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from reconciler.cluster.memory.json_objects import Document
from reconciler.cluster.memory.pods import deleting
from reconciler.cluster.memory.virt_api import KUBEVIRT_NAMESPACE
from reconciler.cluster.port import AlreadyExists, ClusterError, NotFound
from reconciler.core.model.objects import DEVICE, KUBEVIRT, NAMESPACE, NODE, POD, VMI, Kind, Object
from reconciler.core.model.vocabulary import ROOT_TENANT
from tests.realserver.caches import ActorPort
from tests.realserver.kubevirt import VM

SERVICE_ACCOUNT = Kind("ServiceAccount", "", "v1", "serviceaccounts", True, Object)
LASTING = (ROOT_TENANT, KUBEVIRT_NAMESPACE)
"""Namespaces that every test has: emptied, not deleted."""
Until = Callable[..., Awaitable[Any]]


class Belongings:
    def __init__(self, port: ActorPort) -> None:
        self._port = port
        self._namespaces: dict[str, None] = {}
        self._objects: dict[tuple[str, str, str], Kind] = {}

    def add(self, kind: Kind, namespace: str, name: str) -> None:
        self._objects[kind.name, namespace, name] = kind

    async def namespace(self, name: str, labels: Mapping[str, str], until: Until) -> None:
        """See `RealEcosystem.namespace`. One that is still being deleted is waited for."""

        async def made() -> bool:
            try:
                await self._port.create(NAMESPACE, "", {"metadata": {"name": name, "labels": dict(labels)}})
            except AlreadyExists:
                if deleting(msgspec.json.decode(await self._port.get(NAMESPACE, "", name))):
                    return False
                if labels:
                    await self._port.patch(NAMESPACE, "", name, {"metadata": {"labels": dict(labels)}})
            return True

        if name in self._namespaces and not labels:
            return
        await until(made, f"namespace {name}")
        self._namespaces[name] = None
        # Pods are refused until the namespace has it.
        await until(lambda: self._port.get(SERVICE_ACCOUNT, name, "default"), f"service account of {name}")

    async def clear(self, until: Until) -> None:
        """Machines, devices and pods first, while their controllers are there; then the rest."""
        for kind in (VM, VMI, DEVICE, POD):
            await until(lambda kind=kind: self._emptied(kind), f"every {kind.name} of the test goes", 90)
        for (_, namespace, name), kind in self._objects.items():
            await self._delete(kind, namespace, name)
        await until(self._gone, "classes and nodes of the test go", 90)
        for namespace in self._namespaces:
            if namespace not in LASTING:
                await self._delete(NAMESPACE, "", namespace)

    async def _emptied(self, kind: Kind) -> bool:
        left = [each for each in await self._all(kind) if self._ours(kind, each)]
        for each in left:
            namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
            if kind is POD:
                with contextlib.suppress(NotFound):
                    await self._port.remove(POD, namespace, name, each["metadata"]["uid"])
            elif not deleting(each):
                await self._delete(kind, namespace, name)
            elif kind is DEVICE:
                await self._release(kind, namespace, name)
        if left and kind is VMI:
            await self._remove_stuck_pods()
        return not left

    async def _remove_stuck_pods(self) -> None:
        """Launchers that virt-controller has deleted and no kubelet will: theirs is held, or its node is gone."""
        for pod in await self._all(POD):
            if deleting(pod) and self._ours(POD, pod):
                with contextlib.suppress(NotFound):
                    metadata = pod["metadata"]
                    await self._port.remove(POD, metadata["namespace"], metadata["name"], metadata["uid"])

    def _ours(self, kind: Kind, document: Document) -> bool:
        if document["metadata"]["namespace"] in self._namespaces:
            return True
        return kind is POD and (NODE.name, "", (document.get("spec") or {}).get("nodeName", "")) in self._objects

    async def _gone(self) -> bool:
        left = 0
        for (_, namespace, name), kind in self._objects.items():
            try:
                await self._port.get(kind, namespace, name)
            except NotFound:
                continue
            left += 1
            if kind is not KUBEVIRT:
                await self._release(kind, namespace, name)
        return not left

    async def _all(self, kind: Kind) -> list[Document]:
        return list(msgspec.json.decode(await self._port.list(kind))["items"])

    async def _delete(self, kind: Kind, namespace: str, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._port.delete(kind, namespace, name)

    async def _release(self, kind: Kind, namespace: str, name: str) -> None:
        """Whoever set a finalizer may be gone."""
        with contextlib.suppress(ClusterError):
            await self._port.patch(kind, namespace, name, {"metadata": {"finalizers": None}})
