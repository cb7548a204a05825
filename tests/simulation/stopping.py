"""A replica that can be paused and resumed, like a process by SIGSTOP or a machine by its hypervisor.

Whatever the replica asked for before it was stopped waits at the gate: a write whose lease was checked a moment ago
goes out when the replica goes on, long after another leads. A killed replica's requests are on the wire already and
land all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from reconciler.cluster.informers import Timing
from reconciler.cluster.memory import MemoryCluster
from reconciler.core.model.objects import Kind
from reconciler.demo.virtual_time import VirtualTime

T = TypeVar("T")


class Gate:
    """Between one replica and the world. `skew`: ms that its wall clock is ahead of the cluster's."""

    def __init__(self, time: VirtualTime) -> None:
        self.skew = 0
        self._time = time
        self._open = asyncio.Event()
        self._open.set()
        self._stopped_at: float | None = None
        self._slept = 0.0
        self._sleeps_through = False
        self.timing = Timing(clock=self._clock, timer=self._timer, sleep=self._sleep, jitter=lambda: 0.5)

    def stop(self, *, sleeps_through: bool) -> None:
        """`sleeps_through`: its monotonic timer stands still meanwhile, as that of a suspended machine."""
        self._open.clear()
        self._stopped_at, self._sleeps_through = self._time.timer(), sleeps_through

    def go_on(self) -> None:
        if self._stopped_at is not None and self._sleeps_through:
            self._slept += self._time.timer() - self._stopped_at
        self._stopped_at = None
        self._open.set()

    @property
    def stopped(self) -> bool:
        return not self._open.is_set()

    async def through(self, asked: Awaitable[T]) -> T:
        """Ask once the gate is open, and hear the answer once it is open."""
        task = asyncio.ensure_future(self._ask(asked))
        answer = await asyncio.shield(task)
        await self._open.wait()
        return answer

    async def _ask(self, asked: Awaitable[T]) -> T:
        await self._open.wait()
        return await asked

    async def lines(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in stream:
            await self._open.wait()
            yield line

    def _clock(self) -> int:
        return self._time.clock() + self.skew

    def _timer(self) -> float:
        now = self._time.timer()
        if self._stopped_at is not None and self._sleeps_through:
            now = self._stopped_at
        return now - self._slept

    async def _sleep(self, seconds: float) -> None:
        await self._time.sleep(seconds)
        await self._open.wait()


class GatedCluster:
    """The memory cluster as one replica sees it: the port, through a gate."""

    def __init__(self, cluster: Any, gate: Gate) -> None:
        self._cluster = cluster
        self._gate = gate

    def as_user(self, username: str) -> GatedCluster:
        assert isinstance(self._cluster, MemoryCluster)
        return GatedCluster(self._cluster.as_user(username), self._gate)

    async def list(self, kind: Kind, **selection: Any) -> bytes:
        return await self._gate.through(self._cluster.list(kind, **selection))

    def watch(self, kind: Kind, resource_version: str, **selection: Any) -> AsyncIterator[bytes]:
        return self._gate.lines(self._cluster.watch(kind, resource_version, **selection))

    async def get(self, kind: Kind, namespace: str, name: str) -> bytes:
        return await self._gate.through(self._cluster.get(kind, namespace, name))

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any], **options: Any) -> bytes:
        return await self._gate.through(self._cluster.create(kind, namespace, body, **options))

    async def patch(self, kind: Kind, namespace: str, name: str, body: dict[str, Any], **options: Any) -> bytes:
        return await self._gate.through(self._cluster.patch(kind, namespace, name, body, **options))

    async def delete(self, kind: Kind, namespace: str, name: str, **options: Any) -> None:
        await self._gate.through(self._cluster.delete(kind, namespace, name, **options))
