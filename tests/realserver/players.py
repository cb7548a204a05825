"""Everyone around the product on a real API server: the hoster, the tenants, KubeVirt, the kubelets.

Owns short words for what people do to the cluster (those of `reconciler.memory.players`), the tasks that play the
controllers, and the cleaning up. Scheduler, garbage collector, namespace and node controllers are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from reconciler.cluster import AlreadyExists, ClusterError, NotFound
from reconciler.core.objects import CLASS, DEVICE, GPU_NODE, KUBEVIRT, NODE, POD, RELEASE, VMI, Function, Kind
from reconciler.core.vocabulary import ENTITLEMENT_LABEL, ROOT_TENANT, Mode
from reconciler.memory.documents import Document, timestamp
from reconciler.memory.manifests import (
    class_body,
    device_body,
    kubevirt_body,
    node_body,
    pod_body,
    ready_condition,
    release_body,
    report_status,
    tenant_release,
    units_told,
    vmi_body,
)
from reconciler.memory.pods import FINISHED, phase_of
from reconciler.memory.virt import KUBEVIRT_NAMESPACE
from tests.realserver.belongings import Belongings
from tests.realserver.controlplane import ControlPlane
from tests.realserver.kubelets import RealKubelets
from tests.realserver.mirror import Mirrors, PlayerPort
from tests.realserver.registration import MUTATING, in_force, put, remove
from tests.realserver.virt import (
    VIRT_API_CONFIGURATION,
    VM,
    LauncherController,
    MachineController,
    launcher_pod,
    virt_api_configuration,
    virt_api_server,
)

IDLE_SECONDS = 0.25
"""How often a player looks again when nothing has happened: the pauses of its backoff are not shorter."""
POLL_SECONDS = 0.05
NOT_READY_TAINT = "node.kubernetes.io/not-ready"

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


class RealPlayers:
    """The players of one control plane; one at a time. `admin`, `tenant_port` and `virt_port` are ports to use."""

    admin: PlayerPort
    tenant_port: PlayerPort
    virt_port: PlayerPort
    kubelets: RealKubelets

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        self.mirrors = Mirrors(VMI, VM, POD, NODE)
        self._tasks: list[asyncio.Task[None]] = []
        self._ports: list[PlayerPort] = []
        self._virt_api = virt_api_server(control_plane.authority)
        self._reports: dict[str, list[Function | Mapping[str, Any]]] = {}

    # Life

    async def start(self) -> None:
        """Connect, register virt-api and play. Returns when all of it is in force."""
        self.admin = await self._port("admin")
        self.tenant_port = await self._port("tenant")
        self.virt_port = await self._port("virt-controller")
        kubelet = await self._port("kubelet")
        self.kubelets = RealKubelets(self.mirrors, kubelet)
        self._belongings = Belongings(self.admin)
        launchers = LauncherController(self.mirrors, self.virt_port)
        machines = MachineController(self.mirrors, self.virt_port)
        await asyncio.to_thread(self.control_plane.apply, TENANT_ROLE)
        await self._virt_api.start()
        await put(self.admin, MUTATING, virt_api_configuration(self._virt_api))
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
            await self._belongings.clear(self.until)
        finally:
            await remove(self.admin, MUTATING, VIRT_API_CONFIGURATION)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
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
            return _document(await self.admin.get(kind, namespace, name))
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str = "", label_selector: str = "") -> list[Document]:
        """All objects as the API server has them now."""
        raw = await self.admin.list(kind, namespace=namespace, label_selector=label_selector)
        return list(msgspec.json.decode(raw)["items"])

    async def launchers(self, namespace: str, name: str) -> list[Document]:
        """The pods that the VMI owns."""
        return [
            pod
            for pod in await self.list(POD, namespace)
            if any(
                (owner["kind"], owner["name"]) == (VMI.name, name)
                for owner in pod["metadata"].get("ownerReferences") or []
            )
        ]

    # Nodes

    async def add_node(
        self,
        name: str,
        allocatable: Mapping[str, int],
        labels: Mapping[str, str] | None = None,
        memory: str = "256Gi",
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """A Ready node that KubeVirt may use. Returns when the node controller lets pods on it."""
        self._belongings.add(NODE, "", name)
        await self.admin.create(NODE, "", node_body(name, allocatable, labels, memory, taints))
        await self.until(lambda: self._open(name), f"node {name} loses the taint {NOT_READY_TAINT}")

    def _open(self, name: str) -> bool:
        node = self.mirrors.get(NODE, "", name)
        taints = (node or {}).get("spec", {}).get("taints") or []
        return node is not None and all(taint["key"] != NOT_READY_TAINT for taint in taints)

    async def allocatable(self, node: str, units: Mapping[str, int]) -> None:
        """What the node's device plugins say now; names not given stay as they are."""
        await self._node_status(node, {"allocatable": units_told(units)})

    async def ready(self, node: str, status: str = "True") -> None:
        """`status`: True, False or Unknown; a node that is not Ready does nothing to its pods."""
        await self._node_status(node, {"conditions": [ready_condition(status)]})

    async def _node_status(self, node: str, status: Document) -> None:
        await self.admin.patch(NODE, "", node, {"status": status}, subresource="status")

    async def cordon(self, node: str, on: bool = True) -> None:
        await self.admin.patch(NODE, "", node, {"spec": {"unschedulable": on or None}})

    async def delete_node(self, name: str) -> None:
        """The hoster takes a node away; its pods are the real pod garbage collector's, which takes a minute."""
        await self.admin.delete(NODE, "", name)

    def hold(self, node: str) -> None:
        """The node's kubelet does nothing until `let_go`."""
        self.kubelets.hold(node)

    def hold_terminating(self, node: str) -> None:
        """Pods of the node that are deleted stay until `let_go`."""
        self.kubelets.hold_terminating(node)

    def let_go(self, node: str) -> None:
        self.kubelets.let_go(node)

    async def report(self, node: str, functions: Sequence[Function | Mapping[str, Any]] | None = None) -> None:
        """A node agent's report, dated now; without `functions` what it said last."""
        if functions is not None:
            self._reports[node] = list(functions)
        self._belongings.add(GPU_NODE, "", node)
        with contextlib.suppress(AlreadyExists):
            await self.admin.create(GPU_NODE, "", {"metadata": {"name": node}})
        status = report_status(self._reports[node], timestamp(time.time_ns() // 1_000_000))
        await self.admin.patch(GPU_NODE, "", node, {"status": status}, subresource="status")

    # The hoster

    async def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Make a namespace in which pods can be created, or set labels of one that is there."""
        await self._belongings.namespace(name, labels or {}, self.until)

    async def tenant(
        self,
        name: str,
        parent: str = ROOT_TENANT,
        quotas: Mapping[str, Any] | None = None,
        entitled: bool | None = None,
    ) -> str:
        """Make a tenant or change its budgets, and return its namespace (R2). `name` without the prefix, "root"
        for the root; `parent`: the namespace above; `entitled`: to vGPUs, None says nothing (K5)."""
        release, owned = tenant_release(name, parent)
        await self.namespace(parent)
        await self.namespace(owned, {} if entitled is None else {ENTITLEMENT_LABEL: str(entitled).lower()})
        present = await self.get(RELEASE, parent, release)
        await self._apply(RELEASE, parent, release_body(release, quotas, present), present)
        return owned

    async def kubevirt(self, permitted: Mapping[str, str]) -> None:
        """The KubeVirt object. `permitted`: resource name to PCI selector (`10DE:2236`) or mediated type name."""
        await self.namespace(KUBEVIRT_NAMESPACE)
        present = await self.get(KUBEVIRT, KUBEVIRT_NAMESPACE, "kubevirt")
        await self._apply(KUBEVIRT, KUBEVIRT_NAMESPACE, kubevirt_body(permitted), present)

    async def gpu_class(
        self,
        name: str,
        resource_name: str,
        mode: Mode | str = Mode.PASSTHROUGH,
        max_count: int | None = None,
        display_name: str = "",
    ) -> None:
        self._belongings.add(CLASS, "", name)
        await self.admin.create(CLASS, "", class_body(name, resource_name, mode, max_count, display_name))

    async def _apply(self, kind: Kind, namespace: str, body: Document, present: Document | None) -> None:
        name = body["metadata"]["name"]
        self._belongings.add(kind, namespace, name)
        if present is None:
            await self.admin.create(kind, namespace, body)
        else:
            await self.admin.patch(kind, namespace, name, body)

    # Tenants

    async def order(self, namespace: str, name: str, class_name: str, count: int = 1) -> Document:
        """A tenant orders a device. Raises `Rejected` with the refusal."""
        return _document(await self.tenant_port.create(DEVICE, namespace, device_body(name, class_name, count)))

    async def vmi(
        self,
        namespace: str,
        name: str,
        devices: Sequence[str | Mapping[str, Any]] = (),
        *,
        memory: str = "4Gi",
        spec: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> Document:
        """A tenant starts a VM. Returns when admission has answered; raises `Rejected` with the refusal."""
        body = vmi_body(name, devices, memory=memory, spec=spec)
        return _document(await self.tenant_port.create(VMI, namespace, body, dry_run=dry_run))

    async def vm(
        self,
        namespace: str,
        name: str,
        devices: Sequence[str | Mapping[str, Any]] = (),
        *,
        memory: str = "4Gi",
        spec: Mapping[str, Any] | None = None,
        run_strategy: str = "Always",
    ) -> Document:
        """A tenant makes a VirtualMachine, whose VMI has the references."""
        instance = vmi_body(name, devices, memory=memory, spec=spec)
        labels = {field: instance["metadata"].get(field) or {} for field in ("labels", "annotations")}
        template = {"metadata": labels, "spec": instance["spec"]}
        body = {"metadata": {"name": name}, "spec": {"runStrategy": run_strategy, "template": template}}
        return _document(await self.tenant_port.create(VM, namespace, body))

    async def run_strategy(self, namespace: str, name: str, strategy: str) -> None:
        """A tenant starts (`Always`) or stops (`Halted`) a VirtualMachine."""
        await self.tenant_port.patch(VM, namespace, name, {"spec": {"runStrategy": strategy}})

    async def pod(self, namespace: str, name: str, requests: Mapping[str, int], node: str = "") -> Document:
        """An ordinary pod of a tenant that asks for resources by name; `node`: already on one."""
        return _document(await self.tenant_port.create(POD, namespace, pod_body(name, requests, node)))

    async def finish(self, namespace: str, name: str, phase: str = "Succeeded") -> None:
        """The guest shuts down (`Succeeded`) or crashes (`Failed`): its launchers end, virt-controller follows."""
        if not await self.launchers(namespace, name):
            ended = {"status": {"phase": phase}}
            await self.virt_port.patch(VMI, namespace, name, ended, subresource="status")
            return

        async def ended_all() -> bool:
            for pod in await self.launchers(namespace, name):
                if phase_of(pod) not in FINISHED:
                    await self.kubelets.finish(pod, phase)
            return True

        await self.until(ended_all, f"the launchers of {namespace}/{name} end")

    async def migrate(self, namespace: str, name: str, migration_uid: str = "migration") -> Document:
        """virt-controller makes the target launcher of a live migration. Raises `Rejected` with the refusal."""
        vmi = _document(await self.virt_port.get(VMI, namespace, name))
        return _document(await self.virt_port.create(POD, namespace, launcher_pod(vmi, migration_uid)))

    async def delete_vmi(self, namespace: str, name: str) -> None:
        """A tenant deletes a VMI; it is gone once its launcher is."""
        await self.tenant_port.delete(VMI, namespace, name)

    # Inside

    async def _port(self, user: str) -> PlayerPort:
        port = await PlayerPort.connect(str(self.control_plane.kubeconfig(user)))
        assert isinstance(port, PlayerPort)
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


def _document(raw: bytes) -> Document:
    document: Document = msgspec.json.decode(raw)
    return document
