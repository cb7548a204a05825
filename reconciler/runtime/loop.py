"""Serialized event loop: drain, fold, decide, journal, then write (J1, J4).

Owns the order: every event and decision of a batch is committed to the journal before the first write of that batch
is sent; writes are pipelined and their outcomes return as events. Does not know what is decided (`core.decide`) or
how a write is sent (`writer`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from journal import events
from journal.events import Entry, Event
from journal.store import Journal
from reconciler.core import snapshot
from reconciler.core.decide import decide
from reconciler.core.fold import adds_nothing, fold
from reconciler.core.state.decisions import Decision
from reconciler.core.state.placement_state import PlacementState

MAX_BATCH_EVENTS = 512
"""Bounds how long one commit may take and how much a crash may have to observe again."""

MAX_REST_SECONDS = 5.0
"""Longest pause between rounds, so that a stuck loop can be told from an idle one."""


class Writer(Protocol):
    """Sends the writes of one committed decision; outcomes come back through `Loop.submit`."""

    def send(self, seq: int, decision: Decision) -> None: ...


class Observer(Protocol):
    """An observer of the loop: metrics, logs and Kubernetes Events."""

    def folded(self, count: int, seconds: float, backlog: int) -> None: ...

    def recorded(self, entry: Entry) -> None:
        """A fact that was just journaled: anything but a decision, including outcomes of writes."""
        ...

    def decided(self, entry: Entry, decision: Decision, seconds: float) -> None: ...

    def committed(self, journal: Journal, state: PlacementState) -> None: ...


class Loop:
    """Folds events into `state`; the leader also decides. One task runs it; `submit` may be called by any."""

    def __init__(
        self,
        journal: Journal,
        state: PlacementState,
        writer: Writer,
        *,
        clock: Callable[[], int],
        timer: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        observers: Sequence[Observer] = (),
        build: str = "",
        snapshot_every: int = 20_000,
    ) -> None:
        """`clock`: ms since the epoch. `timer`: seconds, monotonic. `snapshot_every`: entries."""
        self.state = state
        self._journal = journal
        self._writer = writer
        self._clock = clock
        self._timer = timer
        self._sleep = sleep
        self._observers = observers
        self._build = build
        self._snapshot_every = snapshot_every
        self._since_snapshot = 0
        self._queue: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._beat = timer()
        self._passed = round(timer() * 1000)
        self._ahead = max(state.now, clock()) - self._passed

    def submit(self, event: Event) -> None:
        """Queue one event; the order of calls is the order of entries."""
        self._queue.append(event)
        self._woken.set()

    @property
    def backlog(self) -> int:
        return len(self._queue)

    @property
    def last_beat(self) -> float:
        """When the loop last iterated, by `timer`; an old value means it is stuck (liveness)."""
        return self._beat

    async def run(self) -> None:
        """Run until cancelled. Any exception ends it: a broken loop must not look alive (C42)."""
        while True:
            await self._wait()
            self.step()

    async def _wait(self) -> None:
        """Wait until an event is queued or the next deadline passes."""
        self._beat = self._timer()
        if not self._queue:
            deadline = self.state.work_queue.next_deadline
            left = MAX_REST_SECONDS if deadline is None else (deadline - self._now()) / 1000
            self._woken.clear()
            waits = (
                asyncio.ensure_future(self._woken.wait()),
                asyncio.ensure_future(self._sleep(min(MAX_REST_SECONDS, max(0.0, left)))),
            )
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        await asyncio.sleep(0)

    def _now(self) -> int:
        """Time for the next entries in ms since the epoch: never behind the journal, never frozen, never stepping.

        If the clock was set back, or a wrong clock wrote a future time into the journal, time continues from there,
        so that every grace period still ends. If it was set forward, time is slewed at twice its pace: a step would
        end grace periods at once and release a VM whose start has not reached us yet.
        """
        passed = round(self._timer() * 1000)
        lacking = self._clock() - passed - self._ahead
        self._ahead += max(0, min(lacking, passed - self._passed))
        self._passed = passed
        return self._ahead + passed

    def step(self) -> bool:
        """Process one batch: everything queued (bounded), its decisions, one commit, then the writes. Returns whether
        anything was recorded."""
        at = max(self._now(), self.state.now)
        drained = self._drain(at)
        if not drained:
            return False
        started = self._timer()
        recorded: list[Event] = []
        for event in drained:
            if isinstance(event, events.ObjectObserved) and adds_nothing(self.state, event):
                continue
            self._fold(event, at)
            recorded.append(event)
        folded = self._timer()
        for observer in self._observers:
            observer.folded(len(recorded), folded - started, self.backlog)
        if not recorded:
            return False
        decisions = self._decide(at)
        seconds = (self._timer() - folded) / max(1, len(decisions))
        recorded.extend(entry.event for entry, _ in decisions)
        facts = len(recorded) - len(decisions)
        kept = self._journal.append(recorded, at=at, batch=self._journal.last_batch + 1)
        for observer in self._observers:
            for entry in kept[:facts]:
                observer.recorded(entry)
        for entry, decision in decisions:
            for observer in self._observers:
                observer.decided(entry, decision, seconds)
            self._writer.send(entry.seq, decision)
        self._keep_bounded(len(recorded))
        for observer in self._observers:
            observer.committed(self._journal, self.state)
        return True

    def _drain(self, at: int) -> list[Event]:
        drained: list[Event] = []
        deadline = self.state.work_queue.next_deadline
        if deadline is not None and deadline <= at:
            drained.append(events.TimeReached())
        while self._queue and len(drained) < MAX_BATCH_EVENTS:
            drained.append(self._queue.popleft())
        return drained

    def _fold(self, event: Event, at: int) -> Entry:
        entry = Entry(seq=self.state.seq + 1, batch=self._journal.last_batch + 1, at=at, event=event)
        fold(self.state, entry)
        return entry

    def _decide(self, at: int) -> list[tuple[Entry, Decision]]:
        made: list[tuple[Entry, Decision]] = []
        while (decision := decide(self.state)) is not None:
            event = events.Decided(decision=msgspec.Raw(msgspec.json.encode(decision)))
            made.append((self._fold(event, at), decision))
        return made

    def _keep_bounded(self, recorded: int) -> None:
        self._since_snapshot += recorded
        if self._since_snapshot >= self._snapshot_every:
            self.save()

    def save(self) -> None:
        """Store a snapshot, from which replays and the next start continue (J6)."""
        self._journal.snapshot(self.state.seq, self.state.now, snapshot.export(self.state), build=self._build)
        self._since_snapshot = 0
