"""One replica: journal, loop, informers, lease and writer assembled on a cluster port.

Owns who may decide when: a leader decides once every kind is listed and the devices have been listed again after its
term began, and not while a watch is stalled (J5, N7). Knows nothing of webhooks, the command line or which cluster it
is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from journal import events
from journal.store import Journal
from reconciler.cluster.informers import Informers, Timing
from reconciler.cluster.port import Cluster, ClusterError
from reconciler.cluster.retry_policies import CATCH_UP, Backoff
from reconciler.cluster.writer import ClusterWriter
from reconciler.core.model.device_state import epoch_mark
from reconciler.core.model.objects import DEVICE, Settings
from reconciler.runtime.leader_election import LeaderElector
from reconciler.runtime.loop import Loop, Observer
from reconciler.runtime.recovery import recover

WATCHDOG_SECONDS = 1.0
MARK_SECONDS = 60.0
"""How often a journal is marked with the time up to which it is complete (U2)."""
DRAIN_SECONDS = 10.0
"""How long writes under way may take at a stop; the pod's grace period lies above it (N1)."""
STUCK_LOOP_SECONDS = 30.0
"""Six times the loop's longest rest: a loop that has not come round by then will not."""


class LeaseTimes(msgspec.Struct, frozen=True):
    """Seconds; `LeaderElector` says what they must satisfy."""

    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0


class Controller:
    """Assembled in the constructor; `run` runs it."""

    def __init__(
        self,
        cluster: Cluster,
        journal: Journal,
        settings: Settings,
        *,
        identity: str,
        build: str,
        timing: Timing,
        lease_name: str = "gpu-binder",
        lease_times: LeaseTimes | None = None,
        observers: Sequence[Observer] = (),
        restarted: Callable[[str, str], None] | None = None,
        snapshot_every: int = 20_000,
    ) -> None:
        """Sets aside what it cannot read of the journal, a sentence for each part in `set_aside` (J6)."""
        times = lease_times or LeaseTimes()
        self.identity = identity
        self.state, self.set_aside = recover(journal, at=timing.clock())
        self.journal = journal
        self._timing = timing
        self._settings = settings
        self._build = build
        self.writer = ClusterWriter(cluster, self._submit, self._reread, self._may_write, sleep=timing.sleep)
        self.loop = Loop(
            journal,
            self.state,
            self.writer,
            clock=timing.clock,
            timer=timing.timer,
            sleep=timing.sleep,
            observers=observers,
            build=build,
            snapshot_every=snapshot_every,
        )
        self.informers = Informers(
            cluster,
            self._submit,
            timing,
            settings_namespace=settings.namespace,
            report_stale_ms=settings.report_stale,
            report_margin_ms=settings.report_margin,
            restarted=restarted,
        )
        self.elector = LeaderElector(
            cluster,
            settings.namespace,
            lease_name,
            identity,
            clock=timing.clock,
            timer=timing.timer,
            sleep=timing.sleep,
            acquired=self._acquired,
            lost=self._lost,
            ready=lambda: self.synced and self.informers.synced,
            known_epoch=lambda: self.state.highest_epoch,
            lease_seconds=times.lease_seconds,
            renew_seconds=times.renew_seconds,
            retry_seconds=times.retry_seconds,
        )
        self._term: asyncio.Task[None] | None = None
        self._announced: int | None = None
        self._stopping = False

    # Facts for the health endpoints

    @property
    def synced(self) -> bool:
        """Whether webhooks may answer from the state (W6)."""
        return self.state.synced

    def problems(self) -> list[str]:
        """Why liveness should fail: a stalled watch or a stuck loop (N7)."""
        now = self._timing.timer()
        found = self.informers.unhealthy(now)
        if now - self.loop.last_beat > STUCK_LOOP_SECONDS:
            found.append(f"loop: stuck for {now - self.loop.last_beat:.0f} s")
        return found

    def blocking(self) -> dict[str, str]:
        """Current failures: a kind that cannot be listed or watched, or the Lease, mapped to the reason."""
        found = {name: informer.problem for name, informer in self.informers.of.items() if informer.problem}
        return found | ({"Lease": self.elector.problem} if self.elector.problem else {})

    def unread(self) -> list[str]:
        """Kinds not listed yet, with the reason for each (W6)."""
        return [
            f"{name} ({informer.problem})" if informer.problem else name
            for name, informer in self.informers.of.items()
            if not informer.synced
        ]

    def refused(self, event: events.AdmissionRefused) -> None:
        """Record a webhook's refusal, so that it can be explained."""
        self._submit(event)

    # Life

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`, then drain: no more decisions, writes finish, the lease is released, the journal gets a
        snapshot (N1). Raises whatever ends one of its parts (C42)."""
        self.loop.submit(events.ControllerStarted(self.identity, self._build))
        settings = msgspec.Raw(msgspec.json.encode(self._settings))
        self.loop.submit(events.SettingsLoaded(settings))
        self.loop.step()
        self.informers.seed(self.state)
        halt, released = asyncio.Event(), asyncio.Event()
        looping = asyncio.ensure_future(self.loop.run())
        parts: list[asyncio.Future[Any]] = [
            looping,
            asyncio.ensure_future(self.informers.run(halt)),
            asyncio.ensure_future(self.elector.run(released, looping)),
            asyncio.ensure_future(self._watchdog()),
        ]
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({*parts, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                await self._drain(released, parts[2])
            for part in parts:
                if part.done() and not part.cancelled() and part.exception() is not None:
                    part.result()
        finally:
            halt.set()
            for part in (*parts, stopped):
                part.cancel()
            await asyncio.gather(*parts, stopped, return_exceptions=True)
            if self._term is not None:
                self._term.cancel()
        self.loop.step()
        self.loop.save()
        self._mark()
        self.journal.checkpoint()

    async def _drain(self, released: asyncio.Event, electing: asyncio.Future[Any]) -> None:
        self._stopping = True
        self._end_term("stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.writer.drain()
        released.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await electing

    def _submit(self, event: events.Event) -> None:
        self.loop.submit(event)

    async def _reread(self, kind: str, namespace: str, name: str) -> None:
        await self.informers.reread(kind, namespace, name)

    def _may_write(self) -> bool:
        now = self._timing.timer()
        return self.elector.valid(now) and not self.informers.unhealthy(now)

    # Leadership

    def _acquired(self, epoch: int) -> None:
        self._term = asyncio.ensure_future(self._begin_term(epoch))

    def _lost(self, why: str) -> None:
        self._end_term(why)

    async def _begin_term(self, epoch: int) -> None:
        """Lead once everything is listed and the devices have been read after the term began."""
        while not (self.informers.synced and self.state.synced):
            await self._timing.sleep(0.05)
        backoff = Backoff(CATCH_UP, self._timing.sleep, self._timing.jitter)
        while self.elector.epoch == epoch and not self._stopping:
            try:
                await self.informers.of[DEVICE.name].catch_up()
            except ClusterError as error:
                await backoff.pause(error)
                continue
            if self.elector.epoch == epoch and not self.informers.unhealthy(self._timing.timer()):
                self._announced = epoch
                mark = epoch_mark(epoch, self.identity)
                self._submit(events.LeadershipAcquired(self.identity, epoch, mark))
            return

    def _end_term(self, why: str) -> None:
        if self._announced is not None:
            self._announced = None
            self._submit(events.LeadershipLost(self.identity, why))

    def _mark(self) -> bool:
        """Mark the journal as complete up to the oldest answer of any kind (U2); False while entries are missing."""
        if not self.state.synced or self.loop.backlog:
            return False
        self.journal.mark(min(informer.last_seen for informer in self.informers.of.values()))
        return True

    async def _watchdog(self) -> None:
        """Suspend leadership while a watch is stale (N7), and mark the journal once a minute (U2)."""
        marked = self._timing.timer()
        while True:
            await self._timing.sleep(WATCHDOG_SECONDS)
            stalled = self.informers.unhealthy(self._timing.timer())
            if self._timing.timer() - marked >= MARK_SECONDS and self._mark():
                marked = self._timing.timer()
            if stalled and self._announced is not None:
                self._end_term(f"watch stalled: {'; '.join(stalled)}")
                continue
            if self._announced is not None and not self.state.leading and not self.loop.backlog:
                self._end_term("another leader's fence was seen, or the server's data was replaced")
            waits = self._announced is None and (self._term is None or self._term.done())
            if not stalled and waits and self.elector.epoch is not None and not self._stopping:
                self._acquired(self.elector.epoch)
