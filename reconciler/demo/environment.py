"""Test environment: in-memory cluster, simulated actors, replicas and virtual time.

Owns how a run advances: act, let everyone react until nothing changes, let time pass. Used by the demo, the scenarios
and the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from journal.store import Journal
from reconciler.cluster.informers import Timing
from reconciler.cluster.memory import MemoryCluster
from reconciler.cluster.memory.ecosystem import Ecosystem
from reconciler.core.model.objects import CLOCK_MARGIN, Settings
from reconciler.demo.embedded import NAMESPACE, SERVICE_ACCOUNT, Replica, register
from reconciler.demo.virtual_time import VirtualTime

T = TypeVar("T")

START = 1_767_225_600_000
"""2026-01-01T00:00:00Z, so that a story reads the same every time."""
POLL_SECONDS = 0.25
MAX_WAIT_SECONDS = 60.0


class Environment:
    """The whole environment; `open_journal` creates each replica's journal."""

    def __init__(self, *, settings: dict[str, Any] | None = None, start: int = START) -> None:
        self.time = VirtualTime(start)
        self.cluster = MemoryCluster(self.time.clock)
        self.ecosystem = Ecosystem(self.cluster)
        self.replicas: list[Replica] = []
        self.timing = Timing(clock=self.time.clock, timer=self.time.timer, sleep=self.time.sleep, jitter=lambda: 0.5)
        chosen: dict[str, Any] = {"namespace": NAMESPACE, "writer": SERVICE_ACCOUNT, "report_margin": CLOCK_MARGIN}
        chosen |= settings or {}
        self.settings = Settings(**chosen)

    async def open(self) -> None:
        """Create the namespaces every run needs."""
        await self.ecosystem.namespace(NAMESPACE)
        await self.ecosystem.namespace("tenant-root")
        await self.ecosystem.tenant("root")

    async def add_replica(self, journal: Journal, identity: str, **options: Any) -> Replica:
        """Start a replica and register its webhooks."""
        replica = Replica(self.cluster, journal, self.settings, identity=identity, timing=self.timing, **options)
        self.replicas.append(replica)
        replica.start()
        await self.until(lambda: replica.controller.synced or replica.failed is not None)
        register(self.cluster, replica)
        await self.settle()
        return replica

    @property
    def leader(self) -> Replica | None:
        """The current leader."""
        return next((r for r in self.replicas if r.state.leading and r.running), None)

    def _watched(self) -> object:
        return (
            self.cluster.resource_version,
            len(self.cluster.writes),
            tuple((r.state.seq, r.controller.loop.backlog, r.controller.writer.in_flight) for r in self.replicas),
        )

    async def settle(self) -> None:
        """Run until neither the binder nor any simulated controller has anything left to do."""
        for _ in range(200):
            await self.time.settle(self._watched)
            if not await self.do(self.ecosystem.settle_step()):
                await self.time.settle(self._watched)
                return
        raise RuntimeError("the environment does not settle: something keeps changing")

    async def later(self, seconds: float) -> None:
        """Let time pass, then settle."""
        await self.settle()
        await self.time.advance(seconds, self._watched, self.cluster.tick)
        await self.settle()

    async def do(self, action: Awaitable[T]) -> T:
        """Await an action that may wait for the binder, advancing time meanwhile. Raises what the action raises."""
        task = asyncio.ensure_future(action)
        await self.time.settle(lambda: (task.done(), self._watched()))
        waited = 0.0
        while not task.done():
            if waited >= MAX_WAIT_SECONDS:
                task.cancel()
                raise TimeoutError(f"no answer within {MAX_WAIT_SECONDS:g} s of virtual time")
            await self.time.advance(POLL_SECONDS, self._watched, self.cluster.tick)
            waited += POLL_SECONDS
        return task.result()

    async def until(self, done: Callable[[], bool]) -> None:
        """Let time pass until a condition holds. Raises `TimeoutError`."""
        waited = 0.0
        while not done():
            if waited >= MAX_WAIT_SECONDS:
                raise TimeoutError("it did not come to be so")
            await self.time.advance(POLL_SECONDS, self._watched, self.cluster.tick)
            waited += POLL_SECONDS

    async def close(self) -> None:
        """Stop every running replica, in order."""
        for replica in self.replicas:
            if replica.running:
                await self.do(replica.stop())
