"""The kubelets of a real API server's nodes: pods that the real scheduler bound run, are refused, or go.

Owns when a pod moves on; who is admitted is `reconciler.cluster.memory.scheduling.admission_status`. A node can be held
whole, as when it is cut off, or only in its terminations, as when a container does not stop.
"""

from __future__ import annotations

import time
from typing import Any

from reconciler.cluster.memory.json_objects import Document, timestamp
from reconciler.cluster.memory.pods import deleting, node_of, phase_of, ready
from reconciler.cluster.memory.scheduling import admission_status
from reconciler.cluster.port import ClusterError, Conflict, NotFound
from reconciler.core.model.objects import NODE, POD
from tests.realserver.caches import ActorPort, Mirrors


class RealKubelets:
    """All kubelets. Pods whose node is gone are the real pod garbage collector's."""

    def __init__(self, mirrors: Mirrors, port: ActorPort) -> None:
        self._mirrors = mirrors
        self._port = port
        self._held: set[str] = set()
        self._held_terminating: set[str] = set()

    def hold(self, node: str) -> None:
        """The node's pods stay as they are until `let_go`."""
        self._held.add(node)

    def hold_terminating(self, node: str) -> None:
        """The node's pods still start, but none goes until `let_go`."""
        self._held_terminating.add(node)

    def let_go(self, node: str) -> None:
        self._held.discard(node)
        self._held_terminating.discard(node)
        self._mirrors.wake()

    async def step(self) -> bool:
        """Every kubelet looks at its pods once, the oldest first; says whether anything changed or has to be
        tried again."""
        changed = [await self._look_at(pod) for pod in self._mirrors.documents(POD) if node_of(pod)]
        return any(changed)

    async def _look_at(self, pod: Document) -> bool:
        name = node_of(pod)
        node = self._mirrors.get(NODE, "", name)
        if node is None or name in self._held or not ready(node):
            return False
        try:
            if deleting(pod):
                return await self._remove(pod, name)
            if phase_of(pod) == "Pending":
                return await self._admit(pod, node)
        except (NotFound, Conflict):
            return False
        except ClusterError:
            return True
        return False

    async def _remove(self, pod: Document, node: str) -> bool:
        if node in self._held_terminating:
            return False
        metadata = pod["metadata"]
        await self._port.remove(POD, metadata["namespace"], metadata["name"], metadata["uid"])
        return True

    async def _admit(self, pod: Document, node: Document) -> bool:
        name = node["metadata"]["name"]
        there = [each for each in self._mirrors.documents(POD) if node_of(each) == name]
        told = admission_status(pod, node, there)
        await self.set_status(pod, told)
        return True

    async def finish(self, pod: Document, phase: str) -> None:
        """The pod's containers end: `Succeeded` or `Failed`."""
        await self.set_status(pod, {"phase": phase, "conditions": [{"type": "Ready", "status": "False"}]})

    async def set_status(self, pod: Document, told: dict[str, Any]) -> None:
        """Write a pod's status, conditions of others kept, unless the pod has moved on. Raises `Conflict`."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        now = timestamp(time.time_ns() // 1_000_000)
        own = {each["type"] for each in told.get("conditions") or []}
        kept = [each for each in status.get("conditions") or [] if each["type"] not in own]
        written = {
            **told,
            "startTime": status.get("startTime") or now,
            "conditions": [*kept, *(told.get("conditions") or [])],
        }
        if told.get("reason") != "UnexpectedAdmissionError":
            written["containerStatuses"] = [
                _container(each, told["phase"], written["startTime"], now) for each in pod["spec"]["containers"]
            ]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": written}
        await self._port.patch(POD, metadata["namespace"], metadata["name"], body, subresource="status")


def _container(container: Document, phase: str, started: str, now: str) -> Document:
    state: dict[str, Any] = {"running": {"startedAt": started}}
    if phase != "Running":
        state = {"terminated": {"exitCode": int(phase == "Failed"), "startedAt": started, "finishedAt": now}}
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": phase == "Running",
        "restartCount": 0,
        "state": state,
    }
