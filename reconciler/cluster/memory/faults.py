"""Fault injection between a caller and the cluster, chosen per call by a hook.

Owns the types of calls and faults, and the calls being held. Without a hook nothing fails; the same hook gives the
same faults.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from reconciler.cluster.port import ClusterError, Conflict, Unavailable
from reconciler.core.model.objects import Key

Answer = TypeVar("Answer")


class Fault(StrEnum):
    """CONFLICT and the three response faults apply to verbs; the last three to watches (`watch`: on opening, `event`:
    before one of its events)."""

    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"
    """Before anything was done."""
    LOST_ANSWER = "lost answer"
    """Unavailable after it was done: the caller cannot know."""
    DELAYED = "delayed"
    """Held before it is done, until released."""
    DELAYED_ANSWER = "delayed answer"
    """Done at once, its answer held until released."""
    EXPIRED = "expired"
    """410: as a status when the watch opens, as an ERROR line before an event (N7)."""
    SILENT = "silent"
    """From here on the stream stays open and says nothing, until healed (C38)."""
    DROPPED = "dropped"
    """The connection breaks."""


class Call(msgspec.Struct, frozen=True):
    """A request, or an event about to be sent on a watch (`verb` "event"). `key.name` is "" for a list, a watch of
    many and a create with generateName."""

    verb: str
    kind: str
    key: Key
    body: dict[str, Any] | None = None
    user: str = ""
    subresource: str = ""


Faults = Callable[[Call], Fault | None]


class Held(msgspec.Struct, eq=False):
    """A held call; `release` lets it continue."""

    call: Call
    gate: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def release(self) -> None:
        self.gate.set()


class FaultInjector:
    """Applies the faults chosen by the hook. `held`: the held calls, oldest first."""

    def __init__(self) -> None:
        self.hook: Faults | None = None
        self.held: list[Held] = []

    def of(self, call: Call) -> Fault | None:
        return self.hook(call) if self.hook is not None else None

    async def run(self, call: Call, act: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run `act` under the fault chosen for `call`. Raises the fault's error, or what `act` raises."""
        fault = self.of(call)
        if fault is Fault.CONFLICT:
            raise Conflict(f"{call.key}: the object has been modified; please apply your changes to the latest version")
        if fault in (Fault.UNAVAILABLE, Fault.DROPPED):
            raise Unavailable(f"{call.verb} {call.key}: connection refused")
        if fault is Fault.DELAYED:
            await self._hold(call)
        if fault is Fault.LOST_ANSWER:
            with contextlib.suppress(ClusterError):
                await act()
            raise Unavailable(f"{call.verb} {call.key}: connection reset before the answer came")
        answer = await act()
        if fault is Fault.DELAYED_ANSWER:
            await self._hold(call)
        return answer

    async def _hold(self, call: Call) -> None:
        held = Held(call)
        self.held.append(held)
        try:
            await held.gate.wait()
        finally:
            self.held.remove(held)

    def release_all(self) -> None:
        for held in self.held:
            held.release()
