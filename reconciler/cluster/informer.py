"""List-watch loop for one kind, with backoff and relist (N7, N8).

Owns when to list, when to resume a watch, how long to wait, and how to detect a stalled watch. `cache` compares
answers with what was known, `wire` decodes them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from journal.events import Event, HistoryReplaced, KindListed
from reconciler.cluster.cache import ObjectCache
from reconciler.cluster.port import Cluster, ClusterError, Expired, KindMissing, NotFound, Unavailable
from reconciler.cluster.retry_policies import LIST_WATCH, Backoff
from reconciler.core.model import wire
from reconciler.core.model.objects import Kind

WATCH_SECONDS = 120.0
"""The server ends a watch after this long; a silent one is given up soon after (C38)."""
STALL_SECONDS = 300.0
"""WATCH_SECONDS plus the client's slack plus one list: a kind without a response for this long is unhealthy."""
SHORT_WATCH_SECONDS = 1.0
"""A watch that ends sooner without a line counts as failed, or a server that ends each at once would be asked
without a pause."""
ABSENCES = 3
"""A kind counts as not installed after this many answers in a row: a starting API server says so of every
custom resource for a moment, and a budget must not be skipped for it (R3)."""
FAILURES_BEFORE_LIST = 2
"""A version that the server can neither serve nor call expired is given up after this many failures (C41)."""


class Timing(msgspec.Struct, frozen=True):
    """`clock`: ms since the epoch. `timer`: seconds, monotonic. `jitter`: a number from 0 to 1."""

    clock: Callable[[], int]
    timer: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random
    watch_seconds: float = WATCH_SECONDS
    stall_seconds: float = STALL_SECONDS


class Informer:
    """Informer of one kind; `run` is one task."""

    def __init__(
        self,
        kind: Kind,
        cluster: Cluster,
        emit: Callable[[Event], None],
        timing: Timing,
        *,
        report_stale_seconds: float,
        report_margin_seconds: float = 0.0,
        selection: dict[str, str] | None = None,
        restarted: Callable[[str, str], None] | None = None,
        replaced: Callable[[], None] | None = None,
    ) -> None:
        """`selection`: namespace, name and label_selector of the port's list and watch. `restarted`: called with kind
        and reason whenever a list or watch has to be repeated. `replaced`: called when the server's data turns out to
        be another than before, so that every informer starts anew."""
        self.kind = kind
        self.cache = ObjectCache(
            kind, emit, report_stale_seconds=report_stale_seconds, report_margin_seconds=report_margin_seconds
        )
        self.listed = False
        self.missing = False
        self.restarts = 0
        self.problem = ""
        self._cluster = cluster
        self._emit = emit
        self._timing = timing
        self._selection: dict[str, Any] = selection or {}
        self._restarted = restarted
        self._replaced = replaced or self.start_anew
        self._watching: asyncio.Task[None] | None = None
        self._beginnings = 0
        self._backoff = Backoff(LIST_WATCH, timing.sleep, timing.jitter)
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
        """Seconds since the server last answered for this kind: a list, a watch event, an orderly end, "not
        installed"."""
        return now - self._heard

    async def run(self) -> None:
        """List and watch the kind until cancelled. Errors of the cluster are retried; anything else is raised."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch_until_replaced()
            except KindMissing as error:
                await self._absent(error)
            except Expired as error:
                self._version = ""
                await self._pause(f"expired: {error.message}", error)
            except wire.WireError as error:
                self._version = ""
                await self._pause(str(error), error)
            except ClusterError as error:
                self._failures += 1
                if self._failures >= FAILURES_BEFORE_LIST:
                    self._version = ""
                await self._pause(f"{type(error).__name__}: {error.message}", error)

    def start_anew(self) -> None:
        """The server's data was replaced: list again, whatever is under way."""
        self._beginnings += 1
        self._version = ""
        self.listed = False
        self.cache.start_anew()
        if self._watching is not None:
            self._watching.cancel()

    async def _watch_until_replaced(self) -> None:
        """One watch; given up where `start_anew` is called meanwhile."""
        if not self._version:
            return
        self._watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({self._watching})
        finally:
            watching, self._watching = self._watching, None
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if not watching.cancelled():
            watching.result()

    def _check_history(self, found: wire.Listed, highest: str) -> bool:
        """Whether the list shows the data that was known; otherwise it is told and everything starts anew."""
        back = self.cache.went_back(found, highest)
        if back is None:
            return True
        self._emit(HistoryReplaced(self.kind.name, *back))
        self._replaced()
        return False

    async def reread(self, namespace: str, name: str) -> None:
        """GET one object and emit its current version or its deletion. Raises the port's other errors."""
        try:
            body = await self._cluster.get(self.kind, namespace, name)
        except NotFound:
            found = None
        else:
            found = wire.decode_object(self.kind, body)
        self.cache.read((namespace, name), found, self._timing.timer(), self.last_seen)

    async def catch_up(self) -> None:
        """Take a consistent list alongside the watch and emit what it shows before returning. A new leader then knows
        every object an older one may have written to (J5). Raises the port's errors."""
        with self.cache.listing_alongside() as removed:
            highest = self.cache.highest
            body = await self._cluster.list(self.kind, **self._selection)
            try:
                found = wire.decode_list(self.kind, body)
            except wire.WireError as error:
                raise Unavailable(str(error)) from error
            if not self._check_history(found, highest):
                raise Unavailable("the server's data was replaced; it is read again")
            self.cache.caught_up(found, removed, self._timing.timer(), self.last_seen)

    async def _list(self) -> None:
        self.cache.list_begins()
        beginnings, highest = self._beginnings, self.cache.highest
        found = wire.decode_list(self.kind, await self._cluster.list(self.kind, **self._selection))
        if beginnings != self._beginnings or not self._check_history(found, highest):
            return
        news = self.cache.listed(found, self._timing.timer(), self.last_seen, self._timing.clock())
        if news or self.missing or not self.listed:
            self._emit(KindListed(kind=self.kind.name))
        self.listed, self.missing = True, False
        self._absences = 0
        self._version = found.resource_version
        self._observe()

    async def _watch(self) -> None:
        """Run one watch from the known version to its orderly end."""
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
        if not spoke:
            # A server whose versions went back sends no bookmark for a version it has not reached again.
            self._version = ""
        self._recover()

    def _take(self, line: wire.Line) -> None:
        if isinstance(line, wire.Failed):
            self._version = ""
            raise Expired(line.message) if line.code == wire.GONE else Unavailable(line.message)
        if isinstance(line, wire.Unreadable) and not line.key.name:
            raise wire.WireError(f"a watch line of {self.kind.plural} cannot be read: {line.error}")
        if not isinstance(line, wire.Bookmark):
            self.cache.watched(line, self._timing.timer(), self.last_seen)
        version = line.object.resource_version if isinstance(line, wire.Changed) else line.resource_version
        self._version = version or self._version

    def _observe(self) -> None:
        self._heard = self._timing.timer()
        self.last_seen = self._timing.clock()
        self.problem = ""

    def _recover(self) -> None:
        self._observe()
        self._failures = 0
        self._backoff.reset()

    async def _absent(self, error: KindMissing) -> None:
        """The kind is not installed. Known objects are kept: nobody observed their deletion, and objects outlive a
        version that is no longer served. The first list after its return settles it."""
        self._version = ""
        self._absences += 1
        self._observe()
        if self.kind.foreign and self._absences >= ABSENCES and not self.missing:
            self.missing = True
            self._emit(KindListed(kind=self.kind.name, missing=True))
        await self._pause(f"not installed: {error.message}", error)

    async def _pause(self, why: str, error: Exception) -> None:
        self.restarts += 1
        self.problem = why
        if self._restarted is not None:
            self._restarted(self.kind.name, why)
        await self._backoff.pause(error)
