"""One list and watch per kind, kept alive (N7, N8).

Owns when to list, when to watch on, how long to wait, and how to notice that a watch has fallen silent. What an
answer means next to what was known is `sightings`' business, what a line holds is `wire`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from journal.events import Event, KindListed
from reconciler.cluster import Cluster, ClusterError, Expired, KindMissing, NotFound, Unavailable
from reconciler.core import wire
from reconciler.core.objects import GPU_NODE, KINDS, RELEASE, SETTINGS, Kind
from reconciler.core.state import PlacementState
from reconciler.core.vocabulary import SETTINGS_CONFIGMAP, TENANT_KIND, TENANT_KIND_LABEL
from reconciler.sightings import Sightings

WATCH_SECONDS = 120.0
"""The server ends a watch after this long; a silent one is given up soon after (C38)."""
DEAF_SECONDS = 300.0
"""Above WATCH_SECONDS plus the client's slack plus one list: a kind not heard of for this long is deaf."""
FIRST_DELAY_SECONDS = 0.5
LAST_DELAY_SECONDS = 15.0
SHORT_WATCH_SECONDS = 1.0
"""A watch that ends sooner without a line counts as failed, or a server that ends each at once would be asked
without a pause."""
ABSENCES = 3
"""A kind counts as not installed after this many answers in a row: a starting API server says so of every
custom resource for a moment, and a budget must not be skipped for it (R3)."""
FAILURES_BEFORE_LIST = 2
"""A version that the server can neither serve nor call expired is given up after this many failures (C41)."""


class InformerEnded(RuntimeError):
    """A kind is no longer followed, for a reason that is not the cluster's: the process must end (C38)."""


class Timing(msgspec.Struct, frozen=True):
    """`clock`: ms since the epoch. `timer`: seconds, monotonic. `jitter`: a number from 0 to 1."""

    clock: Callable[[], int]
    timer: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random
    watch_seconds: float = WATCH_SECONDS
    deaf_seconds: float = DEAF_SECONDS


class Backoff:
    """Doubling delays with jitter (half to the whole of it), from the first to the last."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._next = FIRST_DELAY_SECONDS

    def delay(self) -> float:
        """Seconds to wait before the next attempt."""
        now = self._next
        self._next = min(now * 2, LAST_DELAY_SECONDS)
        return now * (0.5 + self._jitter() / 2)

    def reset(self) -> None:
        self._next = FIRST_DELAY_SECONDS


class Informer:
    """Follows one kind. One task runs it."""

    def __init__(
        self,
        kind: Kind,
        cluster: Cluster,
        emit: Callable[[Event], None],
        timing: Timing,
        *,
        report_stale_seconds: float,
        selection: dict[str, str] | None = None,
        restarted: Callable[[str, str], None] | None = None,
    ) -> None:
        """`selection`: namespace, name and label_selector of the port's list and watch. `restarted`: told kind
        and reason whenever a list or watch has to be done again."""
        self.kind = kind
        self.sightings = Sightings(kind, emit, report_stale_seconds=report_stale_seconds)
        self.listed = False
        self.missing = False
        self.restarts = 0
        self.problem = ""
        self._cluster = cluster
        self._emit = emit
        self._timing = timing
        self._selection: dict[str, Any] = selection or {}
        self._restarted = restarted
        self._backoff = Backoff(timing.jitter)
        self._version = ""
        self._absences = 0
        self._failures = 0
        self._heard = timing.timer()
        self.last_seen = timing.clock()

    @property
    def synced(self) -> bool:
        """Listed once, or known not to be installed (R9, N8)."""
        return self.listed or self.missing

    def silent_seconds(self, now: float) -> float:
        """Since the server last answered for this kind: a list, a line, an orderly end, "not installed"."""
        return now - self._heard

    async def run(self) -> None:
        """Follow the kind until cancelled. Whatever the cluster answers is survived; anything else is raised."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KindMissing as error:
                await self._absent(error)
            except Expired as error:
                self._version = ""
                await self._pause(f"expired: {error.message}")
            except wire.WireError as error:
                self._version = ""
                await self._pause(str(error))
            except ClusterError as error:
                self._failures += 1
                if self._failures >= FAILURES_BEFORE_LIST:
                    self._version = ""
                least = error.retry_after_seconds if isinstance(error, Unavailable) else 0.0
                await self._pause(f"{type(error).__name__}: {error.message}", least)

    async def reread(self, namespace: str, name: str) -> None:
        """GET one object and tell what it is now, or that it is gone. Raises the port's other errors."""
        try:
            body = await self._cluster.get(self.kind, namespace, name)
        except NotFound:
            found = None
        else:
            found = wire.decode_object(self.kind, body)
        self.sightings.read((namespace, name), found, self._timing.timer(), self.last_seen)

    async def catch_up(self) -> None:
        """A consistent list beside the watch: what it shows is told before this returns. A new leader knows then
        every object an older one may have written to (J5). Raises the port's errors."""
        with self.sightings.beside() as removed:
            body = await self._cluster.list(self.kind, **self._selection)
            try:
                found = wire.decode_list(self.kind, body)
            except wire.WireError as error:
                raise Unavailable(str(error)) from error
            self.sightings.caught_up(found, removed, self._timing.timer(), self.last_seen)

    async def _list(self) -> None:
        self.sightings.list_begins()
        found = wire.decode_list(self.kind, await self._cluster.list(self.kind, **self._selection))
        news = self.sightings.listed(found, self._timing.timer(), self.last_seen)
        if news or self.missing or not self.listed:
            self._emit(KindListed(kind=self.kind.name))
        self.listed, self.missing = True, False
        self._absences = 0
        self._version = found.resource_version
        self._hear()

    async def _watch(self) -> None:
        """One watch from the known version to its orderly end."""
        began = self._timing.timer()
        spoke = False
        stream = self._cluster.watch(
            self.kind, self._version, timeout_seconds=self._timing.watch_seconds, **self._selection
        )
        try:
            async for line in stream:
                self._take(wire.decode_line(self.kind, line))
                spoke = True
                self._recover()
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        if not spoke and self._timing.timer() - began < SHORT_WATCH_SECONDS:
            raise Unavailable("the watch ended as soon as it had begun")
        self._recover()

    def _take(self, line: wire.Line) -> None:
        if isinstance(line, wire.Failed):
            self._version = ""
            raise Expired(line.message) if line.code == wire.GONE else Unavailable(line.message)
        if isinstance(line, wire.Unreadable) and not line.key.name:
            raise wire.WireError(f"a watch line of {self.kind.plural} cannot be read: {line.error}")
        if not isinstance(line, wire.Bookmark):
            self.sightings.told(line, self._timing.timer(), self.last_seen)
        version = line.object.resource_version if isinstance(line, wire.Changed) else line.resource_version
        self._version = version or self._version

    def _hear(self) -> None:
        self._heard = self._timing.timer()
        self.last_seen = self._timing.clock()
        self.problem = ""

    def _recover(self) -> None:
        self._hear()
        self._failures = 0
        self._backoff.reset()

    async def _absent(self, error: KindMissing) -> None:
        """The kind is not there. What was known of it stays: nobody saw it go, and a version that is no longer
        served leaves its objects alive; the list after its return tells."""
        self._version = ""
        self._absences += 1
        self._hear()
        if self.kind.foreign and self._absences >= ABSENCES and not self.missing:
            self.missing = True
            self._emit(KindListed(kind=self.kind.name, missing=True))
        await self._pause(f"not installed: {error.message}")

    async def _pause(self, why: str, least_seconds: float = 0.0) -> None:
        self.restarts += 1
        self.problem = why
        if self._restarted is not None:
            self._restarted(self.kind.name, why)
        await self._timing.sleep(max(least_seconds, self._backoff.delay()))


class Informers:
    """All kinds the model reads. `emit` is the loop's queue; `run` is one task."""

    def __init__(
        self,
        cluster: Cluster,
        emit: Callable[[Event], None],
        timing: Timing,
        *,
        settings_namespace: str,
        report_stale_ms: int,
        restarted: Callable[[str, str], None] | None = None,
    ) -> None:
        """`settings_namespace`: where the settings ConfigMap lives, the only one that is read (K4)."""
        selections = {
            SETTINGS.name: {"namespace": settings_namespace, "name": SETTINGS_CONFIGMAP},
            RELEASE.name: {"label_selector": f"{TENANT_KIND_LABEL}={TENANT_KIND}"},
        }
        self._timing = timing
        self.of: dict[str, Informer] = {
            kind.name: Informer(
                kind,
                cluster,
                emit,
                timing,
                report_stale_seconds=report_stale_ms / 1000,
                selection=selections.get(kind.name),
                restarted=restarted,
            )
            for kind in KINDS.values()
        }

    def seed(self, state: PlacementState) -> None:
        """Start from a state folded from a journal: an object that went while no process looked is then told
        as deleted, one that stayed as it was makes no event (U2, J3). Before `run`."""
        now = self._timing.timer()
        for name, informer in self.of.items():
            informer.last_seen = state.now
            informer.sightings.seed(
                state.objects[name].values(),
                (
                    ((found.namespace, found.name), found.uid, found.error)
                    for found in state.unreadable.values()
                    if found.kind == name
                ),
                state.silent if name == GPU_NODE.name else (),
                now,
            )

    @property
    def synced(self) -> bool:
        return all(informer.synced for informer in self.of.values())

    @property
    def missing(self) -> list[str]:
        """Kinds that are not installed (N8)."""
        return [name for name, informer in self.of.items() if informer.missing]

    @property
    def restarts(self) -> dict[str, int]:
        """Kind to how often its list or watch had to be done again (N4)."""
        return {name: informer.restarts for name, informer in self.of.items()}

    def unhealthy(self, now: float) -> list[str]:
        """A sentence for each kind not heard of for too long (N7); `now` by the timer. While there is one,
        liveness fails and a leader decides nothing."""
        return [
            f"{name}: silent for {informer.silent_seconds(now):.0f} s"
            + (f" ({informer.problem})" if informer.problem else "")
            for name, informer in self.of.items()
            if informer.silent_seconds(now) > self._timing.deaf_seconds
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Follow every kind until `stop`. Raises `InformerEnded` as soon as one of them cannot go on."""
        tasks = {asyncio.create_task(informer.run(), name=f"informer {name}") for name, informer in self.of.items()}
        tasks.add(asyncio.create_task(self._silence(), name="report silence"))
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
        for task in sorted(done & tasks, key=asyncio.Task.get_name):
            error = None if task.cancelled() else task.exception()
            raise InformerEnded(f"{task.get_name()} ended: {error!r}") from error

    async def reread(self, kind: str, namespace: str, name: str) -> None:
        """GET one object until there is an answer, and tell it: after a conflict the object counts as unknown
        until then (B6). Ends without an answer only where the kind is not installed."""
        backoff = Backoff(self._timing.jitter)
        with contextlib.suppress(KindMissing):
            while True:
                try:
                    return await self.of[kind].reread(namespace, name)
                except KindMissing:
                    raise
                except ClusterError as error:
                    least = error.retry_after_seconds if isinstance(error, Unavailable) else 0.0
                    await self._timing.sleep(max(least, backoff.delay()))

    async def _silence(self) -> None:
        """Tell of reports that become stale, at most a second late."""
        reports = self.of[GPU_NODE.name].sightings
        while True:
            reports.silence(self._timing.timer())
            await self._timing.sleep(1.0)
