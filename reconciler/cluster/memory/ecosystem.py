"""Drives all simulated actors: hoster, tenants, KubeVirt, the scheduler and the kubelets.

Owns shorthand for what people do to a cluster, and `settle_step`, in which every controller acts once. Nothing
happens between steps, so runs are repeatable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reconciler.cluster.memory.cluster import MemoryCluster
from reconciler.cluster.memory.json_objects import Document, timestamp
from reconciler.cluster.memory.kubevirt import VirtController
from reconciler.cluster.memory.manifests import (
    class_body,
    kubevirt_body,
    node_body,
    ready_condition,
    release_body,
    report_status,
    tenant_release,
    units_told,
)
from reconciler.cluster.memory.scheduling import Kubelets, Scheduler
from reconciler.cluster.memory.tenant_actions import Tenants
from reconciler.cluster.memory.virt_api import KUBEVIRT_NAMESPACE, VIRT_CONTROLLER, webhooks
from reconciler.core.model.objects import CLASS, GPU_NODE, KUBEVIRT, NAMESPACE, NODE, POD, RELEASE, VMI, Function, Kind
from reconciler.core.model.vocabulary import ENTITLEMENT_LABEL, ROOT_TENANT, Mode

TENANT_USER = "tenant-user"


class Ecosystem(Tenants):
    """Registers virt-api's webhooks; everything else acts on request."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.tenant_port = cluster.as_user(TENANT_USER)
        self.virt_port = cluster.as_user(VIRT_CONTROLLER, ("system:serviceaccounts",))
        self.virt_controller = VirtController(cluster.store.documents, self.virt_port)
        self.scheduler = Scheduler(cluster)
        self.kubelets = Kubelets(cluster)
        for webhook in webhooks():
            cluster.admission.register(webhook)

    async def settle_step(self) -> bool:
        """Run virt-controller, scheduler, kubelets and the cluster's own controllers once each; returns whether
        anything changed."""
        changed = [
            await self.virt_controller.step(),
            await self.scheduler.step(),
            await self.kubelets.step(),
            self.cluster.collect(),
        ]
        return any(changed)

    async def add_node(
        self,
        name: str,
        allocatable: Mapping[str, int],
        labels: Mapping[str, str] | None = None,
        memory: str = "256Gi",
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """A Ready node that KubeVirt may use. `allocatable`: units per extended resource."""
        await self.cluster.create(NODE, "", node_body(name, allocatable, labels, memory, taints))

    async def allocatable(self, node: str, units: Mapping[str, int]) -> None:
        """Set what the node's device plugins offer; names not given are unchanged."""
        told = {"status": {"allocatable": units_told(units)}}
        await self.cluster.patch(NODE, "", node, told, subresource="status")

    async def ready(self, node: str, status: str = "True") -> None:
        """`status`: True, False or Unknown; the kubelet of a node that is not Ready is idle."""
        conditions = {"status": {"conditions": [ready_condition(status)]}}
        await self.cluster.patch(NODE, "", node, conditions, subresource="status")

    async def cordon(self, node: str, on: bool = True) -> None:
        await self.cluster.patch(NODE, "", node, {"spec": {"unschedulable": on or None}})

    async def report(self, node: str, functions: Sequence[Function | Mapping[str, Any]]) -> None:
        """Write a node agent's report with the current time."""
        if self.cluster.peek(GPU_NODE, "", node) is None:
            await self.cluster.create(GPU_NODE, "", {"metadata": {"name": node}})
        status = report_status(functions, timestamp(self.cluster.store.clock()))
        await self.cluster.patch(GPU_NODE, "", node, {"status": status}, subresource="status")

    async def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace, or set labels of an existing one."""
        metadata = {"name": name, "labels": dict(labels or {})}
        await self._apply(NAMESPACE, "", name, {"metadata": metadata})

    async def tenant(
        self,
        name: str,
        parent: str = ROOT_TENANT,
        quotas: Mapping[str, Any] | None = None,
        entitled: bool | None = None,
    ) -> str:
        """Create a tenant or change its budgets; returns its namespace (R2). `name` without the prefix, "root" for
        the root; `parent`: the namespace above; `entitled`: to vGPUs, None leaves it unset (K5)."""
        release, owned = tenant_release(name, parent)
        labels = {} if entitled is None else {ENTITLEMENT_LABEL: str(entitled).lower()}
        await self.namespace(owned, labels)
        present = self.cluster.peek(RELEASE, parent, release)
        await self._apply(RELEASE, parent, release, release_body(release, quotas, present))
        return owned

    async def kubevirt(self, permitted: Mapping[str, str]) -> None:
        """The KubeVirt object. `permitted`: resource name to PCI selector (`10DE:2236`) or mediated type name."""
        await self.namespace(KUBEVIRT_NAMESPACE)
        await self._apply(KUBEVIRT, KUBEVIRT_NAMESPACE, "kubevirt", kubevirt_body(permitted))

    async def gpu_class(
        self,
        name: str,
        resource_name: str,
        mode: Mode | str = Mode.PASSTHROUGH,
        max_count: int | None = None,
        display_name: str = "",
    ) -> None:
        await self.cluster.create(CLASS, "", class_body(name, resource_name, mode, max_count, display_name))

    async def finish(self, namespace: str, name: str, phase: str = "Succeeded") -> None:
        """The guest shuts down (`Succeeded`) or crashes (`Failed`): its launcher ends and virt-controller reacts."""
        vmi = self.cluster.peek(VMI, namespace, name) or {}
        listed = sorted((vmi.get("status") or {}).get("activePods") or {})
        ended = {"status": {"phase": phase}}
        launchers = [
            pod["metadata"]["name"] for pod in self.cluster.peek_all(POD, namespace) if pod["metadata"]["uid"] in listed
        ]
        for launcher in launchers:
            await self.cluster.patch(POD, namespace, launcher, ended, subresource="status")
        if not launchers:
            await self.virt_port.patch(VMI, namespace, name, ended)

    async def stop(self, namespace: str, name: str) -> None:
        """Delete a VMI as a tenant; it is gone once its launcher is."""
        await self.tenant_port.delete(VMI, namespace, name)

    async def _apply(self, kind: Kind, namespace: str, name: str, body: Document) -> None:
        if self.cluster.peek(kind, namespace, name) is None:
            await self.cluster.create(kind, namespace, body)
        else:
            await self.cluster.patch(kind, namespace, name, body)
