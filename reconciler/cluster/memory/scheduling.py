"""Simulated kube-scheduler and kubelets: pods are scheduled, admitted or rejected, and removed.

Owns pod phases. A kubelet can be paused, as on a partitioned node: its pods then keep their phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from reconciler.cluster.memory.cluster import MemoryCluster
from reconciler.cluster.memory.json_objects import BINDING, Document
from reconciler.cluster.memory.pods import (
    FINISHED,
    amounts,
    deleting,
    node_of,
    phase_of,
    ready,
    requests_of,
    total_requests,
    why_not,
)
from reconciler.cluster.port import ClusterError
from reconciler.core.model.objects import NODE, POD

SCHEDULER = "system:kube-scheduler"
POD_COLLECTOR = "system:serviceaccount:kube-system:pod-garbage-collector"


def _age(pod: Document) -> tuple[str, int]:
    """Sort key, oldest first; versions break ties within a second."""
    return pod["metadata"]["creationTimestamp"], int(pod["metadata"]["resourceVersion"])


class Scheduler:
    """Binds pods, oldest first, to the first feasible node by name."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._port = cluster.as_user(SCHEDULER)

    async def step(self) -> bool:
        """Try every unscheduled pod once; returns whether anything changed or has to be retried."""
        waiting = [
            pod
            for pod in self._cluster.store.documents(POD)
            if not node_of(pod) and not deleting(pod) and phase_of(pod) not in FINISHED
        ]
        changed = [await self._schedule(pod) for pod in sorted(waiting, key=_age)]
        return any(changed)

    async def _schedule(self, pod: Document) -> bool:
        metadata = pod["metadata"]
        reasons: Counter[str] = Counter()
        try:
            for node in self._cluster.store.documents(NODE):
                if reason := why_not(pod, node, self._taken(node["metadata"]["name"])):
                    reasons[reason] += 1
                    continue
                target = {"spec": {"nodeName": node["metadata"]["name"]}}
                await self._port.patch(POD, metadata["namespace"], metadata["name"], target, subresource=BINDING)
                return True
            return await self._unschedulable(pod, reasons)
        except ClusterError:
            return True

    def _taken(self, node: str) -> dict[str, int]:
        pods = self._cluster.store.documents(POD)
        return total_requests(pod for pod in pods if node_of(pod) == node and phase_of(pod) not in FINISHED)

    async def _unschedulable(self, pod: Document, reasons: Counter[str]) -> bool:
        listed = ", ".join(f"{reasons[reason]} {reason}" for reason in sorted(reasons))
        message = f"0/{reasons.total()} nodes are available: {listed}."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        metadata, status = pod["metadata"], {"conditions": [condition]}
        if (pod.get("status") or {}).get("conditions") == status["conditions"]:
            return False
        await self._port.patch(POD, metadata["namespace"], metadata["name"], {"status": status}, subresource="status")
        return True


class Kubelets:
    """All kubelets, and the garbage collection of pods whose node is gone."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._held: set[str] = set()

    def hold(self, node: str) -> None:
        """Pause a node's kubelet until `let_go`."""
        self._held.add(node)

    def let_go(self, node: str) -> None:
        self._held.discard(node)

    async def step(self) -> bool:
        """Every kubelet syncs its pods once, oldest first; returns whether anything changed or has to be retried."""
        pods = sorted((pod for pod in self._cluster.store.documents(POD) if node_of(pod)), key=_age)
        changed = [await self._look_at(pod) for pod in pods]
        return any(changed)

    async def _look_at(self, pod: Document) -> bool:
        name = node_of(pod)
        node = self._cluster.peek(NODE, "", name)
        try:
            if node is None:
                return await self._remove(POD_COLLECTOR, pod)
            if name in self._held or not ready(node):
                return False
            if deleting(pod):
                return await self._remove(_user(name), pod)
            if phase_of(pod) == "Pending":
                return await self._admit(pod, node)
        except ClusterError:
            return True
        return False

    async def _remove(self, user: str, pod: Document) -> bool:
        port = self._cluster.as_user(user)
        await port.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"], grace_seconds=0)
        return True

    async def _admit(self, pod: Document, node: Document) -> bool:
        name, metadata = node["metadata"]["name"], pod["metadata"]
        there = [each for each in self._cluster.store.documents(POD) if node_of(each) == name]
        status = admission_status(pod, node, there)
        port = self._cluster.as_user(_user(name), ("system:nodes",))
        await port.patch(POD, metadata["namespace"], metadata["name"], {"status": status}, subresource="status")
        return True


def admission_status(pod: Document, node: Document, there: Iterable[Document]) -> dict[str, Any]:
    """The status a kubelet gives a new pod: Running, or Failed for good if the node's running pods leave too few
    devices (as the device manager decides)."""
    running = total_requests(each for each in there if phase_of(each) == "Running")
    allocatable = amounts((node.get("status") or {}).get("allocatable"))
    for resource, units in requests_of(pod).items():
        available = max(0, allocatable.get(resource, 0) - running.get(resource, 0))
        if "/" in resource and units > available:
            message = (
                "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
                f"{resource}. Requested: {units}, Available: {available}, which is unexpected"
            )
            return {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def _user(node: str) -> str:
    return f"system:node:{node}"
