"""Virtual time that advances only on request, deterministically.

Owns a clock, a monotonic timer and a sleep that belong together. For everything that runs on the in-memory
cluster.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

QUIET_TURNS = 30
"""Turns of the event loop without a change after which everything is taken to be waiting; the longest chain of
tasks that pass a value on without changing anything one can see is shorter."""


class VirtualTime:
    """`start`: ms since the epoch."""

    def __init__(self, start: int) -> None:
        self._now = start
        self._origin = start
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = 0

    def clock(self) -> int:
        """ms since the epoch."""
        return self._now

    def timer(self) -> float:
        """Seconds, monotonic."""
        return (self._now - self._origin) / 1000

    async def sleep(self, seconds: float) -> None:
        """Wait until that much virtual time has passed."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._order += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(1, round(seconds * 1000)), self._order, future))
        await future

    def skip(self, seconds: float) -> None:
        """Advance at once without waking anyone, as a suspended process sees it."""
        self._now += round(seconds * 1000)

    async def settle(self, watched: Callable[[], object] = lambda: None) -> None:
        """Run every task until `watched` no longer changes; by default for `QUIET_TURNS` turns."""
        last, quiet = watched(), 0
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            found = watched()
            quiet = quiet + 1 if found == last else 0
            last = found

    async def advance(
        self,
        seconds: float,
        watched: Callable[[], object] = lambda: None,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Advance by `seconds`, waking each sleeper at its time and settling in between. `moved` is called at each
        step."""
        end = self._now + round(seconds * 1000)
        await self.settle(watched)
        while True:
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)
            if not self._sleepers or self._sleepers[0][0] > end:
                break
            at = self._sleepers[0][0]
            self._now = max(self._now, at)
            while self._sleepers and self._sleepers[0][0] <= at:
                _, _, future = heapq.heappop(self._sleepers)
                if not future.done():
                    future.set_result(None)
            moved()
            await self.settle(watched)
        self._now = end
        moved()
        await self.settle(watched)
