"""Clock of the webhooks, injectable for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec


def _now() -> int:
    return int(time.time() * 1000)


class Clock(msgspec.Struct, frozen=True):
    """`now`: ms since the epoch, for timestamps. `monotonic`: seconds, for deadlines."""

    now: Callable[[], int] = _now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
