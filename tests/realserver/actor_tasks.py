"""The tasks that play KubeVirt and the kubelets on a real API server, from their start to the cleaning up.

Owns connections, tasks and waiting. Scheduler, garbage collector, namespace and node controllers are the real ones;
what people say to the cluster is `ecosystem`'.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from reconciler.cluster.memory.json_objects import Document
from reconciler.cluster.memory.tenant_actions import document
from reconciler.cluster.port import ClusterError, NotFound
from reconciler.core.model.objects import DEVICE, NODE, POD, VMI, Kind
from tests.realserver.caches import ActorPort, Mirrors
from tests.realserver.cleanup import Belongings
from tests.realserver.controlplane import ControlPlane
from tests.realserver.kubelets import RealKubelets
from tests.realserver.kubevirt import (
    VM,
    LauncherController,
    MachineController,
    virt_api_configurations,
    virt_api_server,
)
from tests.realserver.registration import in_force, put, remove

Documents = list[Document]

IDLE_SECONDS = 0.25
"""How often a player looks again when nothing has happened: the pauses of its backoff are not shorter."""
POLL_SECONDS = 0.05

TENANT_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: players-tenants}
rules:
  - apiGroups: [gpu.cozystack.io]
    resources: [gpudevices]
    verbs: [get, list, watch, create, update, patch, delete, deletecollection]
  - apiGroups: [gpu.cozystack.io]
    resources: [gpuclasses]
    verbs: [get, list, watch]
  - apiGroups: [kubevirt.io]
    resources: [virtualmachines, virtualmachineinstances]
    verbs: [get, list, watch, create, update, patch, delete, deletecollection]
  - apiGroups: [""]
    resources: [pods]
    verbs: [get, list, watch, create, update, patch, delete, deletecollection]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: players-tenants}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: players-tenants}
subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: Group, name: tenants}
"""
"""What a tenant may do, in every namespace; never a status."""


class ActorTasks:
    """The players of one control plane; one at a time. `admin`, `tenant_port` and `virt_port` are ports to use."""

    admin: ActorPort
    tenant_port: ActorPort
    virt_port: ActorPort
    kubelets: RealKubelets

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        self.mirrors = Mirrors(VMI, VM, POD, NODE)
        self._tasks: list[asyncio.Task[None]] = []
        self._ports: list[ActorPort] = []
        self._virt_api = virt_api_server(control_plane.authority)

    # Life

    async def start(self) -> None:
        """Connect, register virt-api and play. Returns when all of it is in force."""
        try:
            await self._begin()
        except BaseException:
            await self._end()
            raise

    async def _begin(self) -> None:
        self.admin = await self._port("admin")
        self.tenant_port = await self._port("tenant")
        self.virt_port = await self._port("virt-controller")
        kubelet = await self._port("kubelet")
        self.kubelets = RealKubelets(self.mirrors, kubelet)
        self.belongings = Belongings(self.admin)
        launchers = LauncherController(self.mirrors, self.virt_port)
        machines = MachineController(self.mirrors, self.virt_port)
        await asyncio.to_thread(self.control_plane.apply, TENANT_ROLE)
        await self._virt_api.start()
        for kind, body in virt_api_configurations(self._virt_api):
            await put(self.admin, kind, body)
        for run in self.mirrors.runs(self.admin):
            self._tasks.append(asyncio.create_task(run))
        await self.mirrors.listed()
        for step in (machines.step, launchers.step, self.kubelets.step):
            self._tasks.append(asyncio.create_task(self._play(step)))
        await in_force(self.admin)

    async def stop(self) -> None:
        """Take away everything these players made, then end. Webhooks that are registered and not served keep
        it from doing so: unregister them first."""
        try:
            await self.belongings.clear(self.until)
        finally:
            await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if self._ports:
                for kind, body in virt_api_configurations(self._virt_api):
                    await remove(self._ports[0], kind, body["metadata"]["name"])
        finally:
            await self._virt_api.stop()
            for port in self._ports:
                await port.close()

    async def until(self, predicate: Callable[[], Any | Awaitable[Any]], what: str, seconds: float = 60.0) -> Any:
        """The first true value of `predicate`, a plain or a coroutine function; a `ClusterError` or
        AssertionError in it counts as not yet. Raises AssertionError with the state of the cluster."""
        deadline = time.monotonic() + seconds
        while True:
            for task in self._tasks:
                if task.done():
                    task.result()
            try:
                answer = predicate()
                last = await answer if inspect.isawaitable(answer) else answer
                if last:
                    return last
            except (ClusterError, AssertionError) as error:
                last = error
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}; last: {last!r}\n{await self._state()}")
            await asyncio.sleep(POLL_SECONDS)

    async def get(self, kind: Kind, namespace: str, name: str) -> Document | None:
        """The object as the API server has it now, None where there is none."""
        try:
            return document(await self.admin.get(kind, namespace, name))
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str = "", label_selector: str = "") -> Documents:
        """All objects as the API server has them now."""
        raw = await self.admin.list(kind, namespace=namespace, label_selector=label_selector)
        return list(msgspec.json.decode(raw)["items"])

    async def launchers(self, namespace: str, name: str) -> Documents:
        """The pods that the VMI owns."""
        return [
            pod
            for pod in await self.list(POD, namespace)
            if any(
                (owner["kind"], owner["name"]) == (VMI.name, name)
                for owner in pod["metadata"].get("ownerReferences") or []
            )
        ]

    # Inside

    async def _port(self, user: str) -> ActorPort:
        port = await ActorPort.connect(str(self.control_plane.kubeconfig(user)))
        assert isinstance(port, ActorPort)
        port.mirrors = self.mirrors
        self._ports.append(port)
        return port

    async def _play(self, step: Callable[[], Awaitable[bool]]) -> None:
        waker = self.mirrors.waker()
        while True:
            waker.clear()
            await step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await waker.wait()

    async def _state(self) -> str:
        """What there is, for the report of a test that waited in vain."""
        lines = []
        for kind in (NODE, DEVICE, VM, VMI, POD):
            try:
                found = await self.list(kind)
            except ClusterError as error:
                lines.append(f"{kind.name}: {error}")
                continue
            for each in found:
                metadata, status = each["metadata"], each.get("status") or {}
                told = {
                    field: status[field]
                    for field in ("phase", "reason", "message", "nodeName", "activePods", "placement", "bindAnswer")
                    if field in status
                }
                words = [
                    f"{condition['type']}={condition['status']} {condition.get('message', '')}".strip()
                    for condition in status.get("conditions") or []
                ]
                going = " deleting" if "deletionTimestamp" in metadata else ""
                name = f"{metadata.get('namespace', '')}/{metadata['name']}".lstrip("/")
                lines.append(f"{kind.name} {name}{going} {told} {words}")
        return "\n".join(lines)
