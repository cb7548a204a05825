"""Usage computed independently from every version of every device and pod the API server showed.

Shares nothing with the meter: it reads raw JSON from its own watch and sums milliseconds in plain loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from datetime import datetime
from typing import Any

from reconciler.cluster.kube import KubeCluster
from reconciler.core.model.objects import DEVICE, POD, VMI, Kind

Totals = dict[tuple[str, str], int]
"""(subject's name, state) to unit milliseconds."""
STATES = {"Held": "held", "Attached": "held", "Bound": "bound", "Lost": "lost"}


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


class Twin:
    """Watches from `start` on; `totals` adds up a window."""

    def __init__(self, port: KubeCluster, namespace: str, resource: str) -> None:
        self._port = port
        self._namespace = namespace
        self._resource = resource
        self._devices: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._pods: dict[str, dict[str, Any]] = {}
        self._listed: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for kind in (DEVICE, POD, VMI):
            body = json.loads(await self._port.list(kind, namespace=self._namespace))
            for item in body["items"]:
                self._note(kind, item)
            version = body["metadata"]["resourceVersion"]
            self._tasks.append(asyncio.create_task(self._follow(kind, version)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, kind: Kind, version: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            async for line in self._port.watch(kind, version, namespace=self._namespace, timeout_seconds=600):
                found = json.loads(line)
                if found["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    self._note(kind, found["object"])

    def _note(self, kind: Kind, item: dict[str, Any]) -> None:
        if kind is DEVICE:
            self._devices[item["metadata"]["uid"]].append(item)
        elif kind is POD:
            self._pods[item["metadata"]["uid"]] = item
        else:
            self._listed.update((item.get("status") or {}).get("activePods") or {})

    def totals(self, start: int, end: int) -> Totals:
        """Unit milliseconds in the window, by device or pod and state."""
        found: Totals = defaultdict(int)
        for versions in self._devices.values():
            self._device(versions, start, end, found)
        for uid, pod in self._pods.items():
            if uid not in self._listed:
                self._pod(pod, start, end, found)
        return {key: value for key, value in found.items() if value}

    def _device(self, versions: list[dict[str, Any]], start: int, end: int, found: Totals) -> None:
        name, units = versions[0]["metadata"]["name"], versions[0]["spec"].get("count", 1)
        changes = []
        for version in versions:
            status = version.get("status") or {}
            if "phaseSince" not in status:
                continue
            if status["phase"] == "Releasing":
                state = "bound" if status.get("placement") else ""
            else:
                state = STATES.get(status["phase"], "")
            if status["phase"] != "Attached":
                changes.append((ms(status["phaseSince"]), state))
        for (begin, state), (until, _) in zip(changes, [*changes[1:], (end, "")], strict=True):
            if state:
                found[(name, state)] += units * max(0, min(until, end) - max(begin, start))

    def _pod(self, pod: dict[str, Any], start: int, end: int, found: Totals) -> None:
        units = 0
        for container in pod["spec"]["containers"]:
            units += int((container.get("resources", {}).get("requests") or {}).get(self._resource, 0))
        began = pod.get("status", {}).get("startTime")
        if not units or not began:
            return
        ended = pod["metadata"].get("deletionTimestamp")
        until = min(end, ms(ended)) if ended else end
        found[(pod["metadata"]["name"], "raw")] += units * max(0, until - max(start, ms(began)))
