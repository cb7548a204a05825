"""Watches of the in-memory cluster: events, bookmarks, timeouts and failures of streams (N7).

Owns selection, bookmarks and the server's own timeout, by the cluster's clock. Watches run concurrently and
independently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

import msgspec

from reconciler.cluster.memory.faults import Call, Fault, FaultInjector
from reconciler.cluster.memory.json_objects import labels_of, parse_selector, selects
from reconciler.cluster.memory.store import Change, Store
from reconciler.cluster.port import ClusterError, Expired, Rejected, Unavailable
from reconciler.core.model.objects import Key, Kind

BOOKMARK_INTERVAL_MS = 60_000
"""How often an API server sends a bookmark on a stream."""


class Selection(msgspec.Struct, frozen=True):
    """Which objects of a kind a caller selected; "" selects all."""

    namespace: str = ""
    name: str = ""
    labels: str = ""


class Stream:
    """One open watch and its unsent lines."""

    def __init__(self, kind: Kind, selection: Selection) -> None:
        self.kind = kind
        self.wake = asyncio.Event()
        self.lines: deque[tuple[Key, bytes]] = deque()
        self.ended = False
        self.silent = False
        self.error: ClusterError | None = None
        self._selection = selection
        self._requirements = parse_selector(selection.labels)

    def offer(self, change: Change) -> None:
        """Queue a change; an object that stops matching the selector is DELETED for this stream, one that starts
        matching is ADDED."""
        chosen = self._selection
        if chosen.namespace not in ("", change.key.namespace) or chosen.name not in ("", change.key.name):
            return
        was = change.old is not None and selects(self._requirements, labels_of(change.old))
        now = change.new is not None and selects(self._requirements, labels_of(change.new))
        if was or now:
            type_ = b"DELETED" if not now else b"MODIFIED" if was else b"ADDED"
            self.lines.append((change.key, b'{"type":"' + type_ + b'","object":' + change.raw + b"}"))
            self.wake.set()


class Watches:
    """All streams of a cluster."""

    def __init__(self, store: Store, fault_injector: FaultInjector) -> None:
        self._store = store
        self._fault_injector = fault_injector
        self._streams: list[Stream] = []

    @property
    def open(self) -> list[Kind]:
        """The kinds that are watched, oldest stream first."""
        return [stream.kind for stream in self._streams]

    async def run(
        self, kind: Kind, resource_version: str, selection: Selection, timeout_seconds: float, user: str
    ) -> AsyncGenerator[bytes, None]:
        """The lines of one watch. Raises `KindMissing`, `Expired` (before any line) and `Unavailable`."""
        call = Call("watch", kind.name, Key(kind.name, selection.namespace, selection.name), user=user)
        fault = self._fault_injector.of(call)
        if fault in (Fault.UNAVAILABLE, Fault.DROPPED):
            raise Unavailable(f"watch of {kind.plural}: connection refused")
        if fault is Fault.EXPIRED:
            raise Expired(f"too old resource version: {resource_version}")
        self._store.require_kind(kind)
        stream = self._opened(kind, resource_version, selection)
        stream.silent = fault is Fault.SILENT
        self._streams.append(stream)
        self._store.listeners.append(stream)
        try:
            async for line in self._lines(stream, timeout_seconds, call, resource_version):
                yield line
        finally:
            self._streams.remove(stream)
            self._store.listeners.remove(stream)

    def _opened(self, kind: Kind, resource_version: str, selection: Selection) -> Stream:
        stream = Stream(kind, selection)
        if resource_version in ("", "0"):
            for stored in self._store.of_kind(kind):
                stream.offer(Change(self._store.version, stored.key, None, stored.document, stored.raw))
            return stream
        if not (resource_version.isascii() and resource_version.isdigit()):
            raise Rejected(f'resourceVersion: Invalid value: "{resource_version}": must be a number')
        for change in self._store.since(kind, int(resource_version)):
            stream.offer(change)
        return stream

    async def _lines(
        self, stream: Stream, timeout_seconds: float, call: Call, resource_version: str
    ) -> AsyncGenerator[bytes, None]:
        """A watch from a version the server does not have yet gets no bookmark before it has."""
        deadline = self._store.clock() + int(timeout_seconds * 1000)
        bookmark_at = self._store.clock() + BOOKMARK_INTERVAL_MS
        while True:
            while stream.lines and not stream.silent:
                key, line = stream.lines[0]
                fault = self._fault_injector.of(Call("event", stream.kind.name, key, user=call.user))
                if fault is Fault.EXPIRED:
                    yield _expired_line()
                    return
                if fault is Fault.DROPPED:
                    raise Unavailable(f"watch of {stream.kind.plural}: connection reset")
                stream.silent = fault is Fault.SILENT
                if not stream.silent:
                    stream.lines.popleft()
                    yield line
            if stream.error is not None:
                raise stream.error
            if stream.ended:
                return
            now = self._store.clock()
            over = now >= deadline and not stream.silent
            future = resource_version.isdigit() and int(resource_version) > self._store.version
            if (over or now >= bookmark_at) and not stream.silent:
                bookmark_at = now + BOOKMARK_INTERVAL_MS
                if not future:
                    yield self._bookmark(stream.kind)
            if over:
                return
            if not stream.lines or stream.silent:
                await _wait(stream, None if stream.silent else min(deadline, bookmark_at) - now)

    def _bookmark(self, kind: Kind) -> bytes:
        metadata = {"resourceVersion": str(self._store.version)}
        bookmark = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}
        return msgspec.json.encode({"type": "BOOKMARK", "object": bookmark})

    def tick(self) -> None:
        """The clock advanced: end streams that timed out and send bookmarks that are due."""
        for stream in self._streams:
            stream.wake.set()

    def close(self, kind: Kind | None = None) -> None:
        """End the streams (of a kind) as a server shutting down does; queued events are still sent."""
        for stream in self._of(kind):
            stream.ended = True
            stream.wake.set()

    def drop(self, kind: Kind | None = None) -> None:
        """Break the connections (of a kind)."""
        for stream in self._of(kind):
            stream.error = Unavailable(f"watch of {stream.kind.plural}: connection reset")
            stream.lines.clear()
            stream.wake.set()

    def silence(self, kind: Kind | None = None) -> None:
        """Stall the streams (of a kind): they stay open without sending anything, not even their end (C38)."""
        for stream in self._of(kind):
            stream.silent = True

    def heal(self, kind: Kind | None = None) -> None:
        """Resume stalled streams and send what was held back."""
        for stream in self._of(kind):
            stream.silent = False
            stream.wake.set()

    def _of(self, kind: Kind | None) -> list[Stream]:
        return [stream for stream in self._streams if kind is None or stream.kind.name == kind.name]


def _expired_line() -> bytes:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "The resourceVersion for the provided watch is too old.",
        "reason": "Expired",
        "code": 410,
    }
    return msgspec.json.encode({"type": "ERROR", "object": status})


async def _wait(stream: Stream, milliseconds: int | None) -> None:
    """Wait for the stream or a short time by the event loop's clock, after which the caller checks the cluster's
    clock again."""
    stream.wake.clear()
    try:
        async with asyncio.timeout(None if milliseconds is None else milliseconds / 1000):
            await stream.wake.wait()
    except TimeoutError:
        return
