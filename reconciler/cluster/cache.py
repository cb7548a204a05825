"""Cache of the last observed version of each object of one kind; turns raw observations into change events.

Turns lists, watch lines and single reads into journal events, so that an idle cluster makes none (J3). Owns
the order of facts: a deletion implied by absence, a new object under an old name, a read that overtook the watch, an
agent's report that went stale, a server whose versions went back. No I/O and no clock: callers pass times in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import msgspec

from journal.events import Event, ObjectDeleted, ObjectObserved, ObjectUnreadable, ReportSilenced
from reconciler.core.model import wire
from reconciler.core.model.objects import GpuNode, Kind, Object

Address = tuple[str, str]
"""(namespace, name)."""


class CachedObject(msgspec.Struct, frozen=True):
    """`model` None: the object could not be read, `error` says why."""

    uid: str
    version: str
    model: Object | None = None
    error: str = ""


class Report(msgspec.Struct):
    """`received`: local monotonic seconds when `reported_at` last changed. A report that was found by a list may have
    been written long before, so its own age counts, less a margin for the node's clock (R5)."""

    reported_at: int
    received: float


class ObjectCache:
    """The cache of one kind. Every method emits changes in order; `emit` is the loop's queue."""

    def __init__(
        self,
        kind: Kind,
        emit: Callable[[Event], None],
        *,
        report_stale_seconds: float,
        report_margin_seconds: float = 0.0,
    ) -> None:
        """`report_margin_seconds`: how far the clocks of nodes may differ from ours."""
        self._kind = kind
        self._emit = emit
        self._report_stale_seconds = report_stale_seconds
        self._report_margin_seconds = report_margin_seconds
        self._known: dict[Address, CachedObject] = {}
        self._gone: set[str] = set()
        self._read: set[Address] | None = None
        self._beside: list[set[str]] = []
        self._reports: dict[str, Report] = {}
        self._silent: set[str] = set()
        self._unheard: set[str] = set()
        self._highest = ""

    def seed(
        self,
        items: Iterable[Object],
        unreadable: Iterable[tuple[Address, str, str]],
        silent: Iterable[str],
    ) -> None:
        """Start from a journal's state, so that the first list emits only what changed since.
        `unreadable`: (address, uid, error)."""
        for item in items:
            self._known[(item.namespace, item.name)] = CachedObject(item.uid, item.resource_version, item)
            self._saw(item.resource_version)
        for address, uid, error in unreadable:
            self._known[address] = CachedObject(uid, "", None, error)
        self._silent.update(name for name in silent if ("", name) in self._known)

    def list_begins(self) -> None:
        """Mark a list as in progress: reads that complete before it may be newer."""
        self._read = set()

    @property
    def highest(self) -> str:
        """The highest version seen so far, "" for none."""
        return self._highest

    def went_back(self, found: wire.Listed, highest: str) -> tuple[str, str] | None:
        """(known, found) versions where a consistent list shows that the server's data was replaced: it is older than
        `highest`, a version seen before it was asked for, or shows a known object at an older version."""
        if _older(found.resource_version, highest):
            return highest, found.resource_version
        read = self._read or set()
        for item in found.objects:
            known = self._known.get((item.namespace, item.name))
            if known is None or known.uid != item.uid or (item.namespace, item.name) in read:
                continue
            if self._read is not None and _older(item.resource_version, known.version):
                return known.version, item.resource_version
        return None

    def start_anew(self) -> None:
        """The server's data was replaced: no version known so far counts, and every object is told again."""
        self._highest = ""
        self._gone.clear()
        self._reports.clear()
        self._known = {address: CachedObject(known.uid, "") for address, known in self._known.items()}

    def listed(self, found: wire.Listed, now: float, last_seen: int, at: int = 0) -> bool:
        """Apply a complete list as of `found.resource_version`; returns whether it changed anything. `last_seen`:
        ms since the epoch, until when a missing object is known to have been there (U2). `at`: now in the same unit,
        by which an agent's report is judged; 0 takes every report as just written."""
        read = self._read or set()
        self._read = None
        self._saw(found.resource_version)
        present = {(item.namespace, item.name) for item in found.objects}
        present.update((item.key.namespace, item.key.name) for item in found.unreadable)
        self._gone.intersection_update(item.uid for item in found.objects)
        news = False
        for address in sorted(self._known.keys() - present):
            if address not in read or not _older(found.resource_version, self._known[address].version):
                self._forget(address, seen=False, last_seen=last_seen)
                news = True
        for item in found.objects:
            address = (item.namespace, item.name)
            known = self._known.get(address)
            if address in read and known is not None and _older(item.resource_version, known.version):
                continue
            if isinstance(item, GpuNode) and at:
                news |= self._changed(item, "list", now - self._age(item, at), last_seen)
            else:
                news |= self._changed(item, "list", now, last_seen)
        self.silence(now)
        for broken in found.unreadable:
            news |= self._set_aside(broken, last_seen)
        return news

    def watched(self, line: wire.Changed | wire.Removed | wire.Unreadable, now: float, last_seen: int) -> None:
        """Apply a watch event."""
        if isinstance(line, wire.Changed):
            item = line.object
            known = self._known.get((item.namespace, item.name))
            if known is not None and known.uid == item.uid and _older(item.resource_version, known.version):
                return
            self._changed(item, "watch", now, last_seen)
        elif isinstance(line, wire.Removed):
            self._gone.discard(line.uid)
            self._note_removed(line.uid)
            address = (line.key.namespace, line.key.name)
            known = self._known.get(address)
            if known is not None and known.uid == line.uid:
                self._forget(address)
        else:
            self._set_aside(line, last_seen)

    def read(self, address: Address, found: Object | wire.Unreadable | None, now: float, last_seen: int) -> None:
        """The answer to a GET, None for NotFound. Emitted even when unchanged: the requester waits for it."""
        if self._read is not None:
            self._read.add(address)
        known = self._known.get(address)
        if found is None:
            if known is not None:
                self._gone.add(known.uid)
                self._forget(address)
        elif isinstance(found, wire.Unreadable):
            self._set_aside(found, last_seen)
        elif known is None or known.uid != found.uid or not _older(found.resource_version, known.version):
            self._changed(found, "read", now, last_seen)
        elif known.model is not None:
            self._observed(known.model, "read")

    @contextlib.contextmanager
    def listing_alongside(self) -> Iterator[set[str]]:
        """Start a list alongside the watch: the uids reported deleted meanwhile."""
        removed: set[str] = set()
        self._beside.append(removed)
        try:
            yield removed
        finally:
            self._beside = [other for other in self._beside if other is not removed]

    def caught_up(self, found: wire.Listed, removed: set[str], now: float, last_seen: int) -> None:
        """Apply a list taken alongside the watch, except where the watch delivered something newer. Deletions are left
        to the watch."""
        for item in found.objects:
            if item.uid in removed:
                continue
            if self._read is not None:
                self._read.add((item.namespace, item.name))
            self.watched(wire.Changed(item), now, last_seen)

    def silence(self, now: float) -> None:
        """Emit the reports that became stale since the last call (R5)."""
        for name in sorted(self._reports.keys() - self._silent):
            if now - self._reports[name].received >= self._report_stale_seconds:
                self._silent.add(name)
                self._emit(ReportSilenced(node=name))

    def _saw(self, version: str) -> None:
        if version.isdigit() and (not self._highest or _older(self._highest, version)):
            self._highest = version

    def _age(self, report: GpuNode, at: int) -> float:
        """Seconds since a report was written, at least; 0 where its node's clock is ahead of ours."""
        return max(0.0, (at - report.reported_at) / 1000 - self._report_margin_seconds)

    def _note_removed(self, uid: str) -> None:
        for removed in self._beside:
            removed.add(uid)

    def _changed(self, item: Object, source: str, now: float, last_seen: int) -> bool:
        address = (item.namespace, item.name)
        if item.uid in self._gone:
            return False
        known = self._known.get(address)
        if known is not None and known.uid != item.uid:
            self._forget(address, seen=False, last_seen=last_seen)
            known = None
        news = known is None or known.model is None or wire.significant(self._kind, known.model, item)
        if isinstance(item, GpuNode):
            news |= self._reported(item, news, now, source)
        self._known[address] = CachedObject(item.uid, item.resource_version, item)
        self._saw(item.resource_version)
        if news or source == "read":
            self._observed(item, source)
        return news

    def _reported(self, item: GpuNode, news: bool, received: float, source: str) -> bool:
        """Whether a report must be emitted because it ends a stale period, or is the first change seen since a list
        found it."""
        report = self._reports.get(item.name)
        if report is None and source == "list":
            return self._found(item, news, received)
        renewed = report is None or report.reported_at != item.reported_at
        if not renewed and not news:
            return False
        self._reports[item.name] = Report(item.reported_at, received)
        ends = item.name in self._silent or item.name in self._unheard
        self._silent.discard(item.name)
        self._unheard.discard(item.name)
        return ends

    def _found(self, item: GpuNode, news: bool, received: float) -> bool:
        """A list shows a report for the first time: a stale one stays stale unless it has changed since."""
        known = self._known.get((item.namespace, item.name))
        self._reports[item.name] = Report(item.reported_at, received)
        self._unheard.add(item.name)
        same = known is not None and isinstance(known.model, GpuNode) and known.model.reported_at == item.reported_at
        ends = item.name in self._silent and (news or not same)
        if ends:
            self._silent.discard(item.name)
        return ends

    def _observed(self, item: Object, source: str) -> None:
        self._emit(
            ObjectObserved(
                kind=self._kind.name,
                namespace=item.namespace,
                name=item.name,
                uid=item.uid,
                resource_version=item.resource_version,
                source=source,
                object=msgspec.Raw(msgspec.json.encode(item)),
            )
        )

    def _set_aside(self, found: wire.Unreadable, last_seen: int) -> bool:
        """An unreadable object; emitted once per error, not once per version (R10, J3)."""
        address = (found.key.namespace, found.key.name)
        known = self._known.get(address)
        uid = found.uid or (known.uid if known is not None else "")
        if known is not None and known.uid != uid:
            self._forget(address, seen=False, last_seen=last_seen)
            known = None
        self._known[address] = CachedObject(uid, found.resource_version, None, found.error)
        self._reports.pop(found.key.name, None)
        if known is not None and known.model is None and known.error == found.error:
            return False
        self._emit(
            ObjectUnreadable(
                kind=self._kind.name,
                namespace=found.key.namespace,
                name=found.key.name,
                uid=uid,
                resource_version=found.resource_version,
                error=found.error,
            )
        )
        return True

    def _forget(self, address: Address, *, seen: bool = True, last_seen: int = 0) -> None:
        known = self._known.pop(address)
        self._note_removed(known.uid)
        self._reports.pop(address[1], None)
        self._silent.discard(address[1])
        self._unheard.discard(address[1])
        namespace, name = address
        self._emit(
            ObjectDeleted(
                kind=self._kind.name,
                namespace=namespace,
                name=name,
                uid=known.uid,
                seen=seen,
                last_seen=0 if seen else last_seen,
            )
        )


def _older(version: str, known: str) -> bool:
    """Numeric versions are compared as numbers, others never (C41)."""
    return version.isdigit() and known.isdigit() and int(version) < int(known)
