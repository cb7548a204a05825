"""Everyone around the product on a real API server: the hoster, the tenants, KubeVirt, the kubelets.

Owns short words for what people do to the cluster, those of `reconciler.cluster.memory.ecosystem`; `actor_tasks`
plays the rest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from reconciler.cluster.memory.json_objects import Document, timestamp
from reconciler.cluster.memory.manifests import (
    class_body,
    kubevirt_body,
    node_body,
    ready_condition,
    release_body,
    report_status,
    tenant_release,
    units_told,
    vmi_body,
)
from reconciler.cluster.memory.pods import FINISHED, phase_of
from reconciler.cluster.memory.tenant_actions import Tenants, document
from reconciler.cluster.memory.virt_api import KUBEVIRT_NAMESPACE
from reconciler.cluster.port import AlreadyExists
from reconciler.core.model.objects import CLASS, GPU_NODE, KUBEVIRT, NODE, POD, RELEASE, VMI, Function, Kind
from reconciler.core.model.vocabulary import ENTITLEMENT_LABEL, ROOT_TENANT, Mode
from tests.realserver.actor_tasks import ActorTasks
from tests.realserver.controlplane import ControlPlane
from tests.realserver.kubevirt import VM, launcher_pod

NOT_READY_TAINT = "node.kubernetes.io/not-ready"


class RealEcosystem(Tenants, ActorTasks):
    """Start them, let them act, stop them; one at a time on a control plane."""

    def __init__(self, control_plane: ControlPlane) -> None:
        super().__init__(control_plane)
        self._reports: dict[str, list[Function | Mapping[str, Any]]] = {}

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
        self.belongings.add(NODE, "", name)
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
        self.belongings.add(GPU_NODE, "", node)
        with contextlib.suppress(AlreadyExists):
            await self.admin.create(GPU_NODE, "", {"metadata": {"name": node}})
        status = report_status(self._reports[node], timestamp(time.time_ns() // 1_000_000))
        await self.admin.patch(GPU_NODE, "", node, {"status": status}, subresource="status")

    # The hoster

    async def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Make a namespace in which pods can be created, or set labels of one that is there."""
        await self.belongings.namespace(name, labels or {}, self.until)

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
        self.belongings.add(CLASS, "", name)
        await self.admin.create(CLASS, "", class_body(name, resource_name, mode, max_count, display_name))

    async def _apply(self, kind: Kind, namespace: str, body: Document, present: Document | None) -> None:
        name = body["metadata"]["name"]
        self.belongings.add(kind, namespace, name)
        if present is None:
            await self.admin.create(kind, namespace, body)
        else:
            await self.admin.patch(kind, namespace, name, body)

    # Tenants

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
        return document(await self.tenant_port.create(VM, namespace, body))

    async def run_strategy(self, namespace: str, name: str, strategy: str) -> None:
        """A tenant starts (`Always`) or stops (`Halted`) a VirtualMachine."""
        await self.tenant_port.patch(VM, namespace, name, {"spec": {"runStrategy": strategy}})

    async def finish(self, namespace: str, name: str, phase: str = "Succeeded") -> None:
        """The guest shuts down (`Succeeded`) or crashes (`Failed`): its launchers end, virt-controller follows."""
        if not await self.launchers(namespace, name):
            ended = {"status": {"phase": phase}}
            await self.virt_port.patch(VMI, namespace, name, ended)
            return

        async def ended_all() -> bool:
            for pod in await self.launchers(namespace, name):
                if phase_of(pod) not in FINISHED:
                    await self.kubelets.finish(pod, phase)
            return True

        await self.until(ended_all, f"the launchers of {namespace}/{name} end")

    async def migrate(self, namespace: str, name: str, migration_uid: str = "migration") -> Document:
        """virt-controller makes the target launcher of a live migration. Raises `Rejected` with the refusal."""
        vmi = document(await self.virt_port.get(VMI, namespace, name))
        return document(await self.virt_port.create(POD, namespace, launcher_pod(vmi, migration_uid)))

    async def delete_vmi(self, namespace: str, name: str) -> None:
        """A tenant deletes a VMI; it is gone once its launcher is."""
        await self.tenant_port.delete(VMI, namespace, name)
