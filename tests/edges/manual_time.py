"""Manually advanced time."""

from __future__ import annotations

import asyncio


class ManualTime:
    """`timer` in seconds, `clock` in ms since the epoch, `sleep` that ends when `advance` reaches it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def timer(self) -> float:
        return self.now

    def clock(self) -> int:
        return 1_700_000_000_000 + round(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._count += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, self._count, future))
        await future

    async def settle(self) -> None:
        """Let every task run until it waits for something."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let the time pass, waking sleepers one deadline after another."""
        end = self.now + seconds
        await self.settle()
        while True:
            self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[2].done()]
            due = min((sleeper for sleeper in self._sleepers if sleeper[0] <= end), default=None)
            if due is None:
                break
            self.now = max(self.now, due[0])
            due[2].set_result(None)
            await self.settle()
        self.now = end
        await self.settle()
