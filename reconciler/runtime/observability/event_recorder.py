"""Kubernetes Events on the tenant's own objects: why an order waits, where a VMI's GPUs are, what was lost (N4).

Owns the delivery of notices to the API server: a bounded queue, one Event per repeated notice (counted in its series),
the VMI's uid once known. Events are best effort: failures are logged and dropped.
Their content comes from `event_messages`. Only the leader decides, so only the leader sends Events of decisions; a
webhook's refusal is sent by the replica that refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from journal import events
from journal.events import Entry
from journal.store import Journal
from reconciler.cluster.port import AlreadyExists, Cluster, ClusterError, NotFound
from reconciler.core.model.objects import CLASS, EVENT, GPU_NODE, KUBEVIRT, RELEASE, VMI, Owner
from reconciler.core.model.vocabulary import GROUP
from reconciler.core.model.wire_base import from_ms
from reconciler.core.state.decisions import Action, Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.runtime.observability.event_messages import (
    Notice,
    Regarding,
    of_budgets,
    of_decision,
    of_refusal,
    of_unreadable,
    on_virtual_machine,
)

CONTROLLER = f"{GROUP}/binder"
WINDOW_MILLISECONDS = 600_000
"""What repeats within ten minutes is counted in its first Event; the API server keeps Events for an hour."""
MAX_QUEUED = 1_000
"""Beyond this the oldest notices are dropped."""
MAX_REMEMBERED = 4_096
ROUND_SECONDS = 1.0
"""Flush interval; repeats within a round cost one request."""
PATIENCE_MILLISECONDS = 10_000
"""How long a notice about a VMI waits for it to appear: its Event is listed with the VMI only under its uid."""
MAX_NOTE_BYTES = 1_024
MAX_REASON = 128
CLUSTER_NAMESPACE = "default"
"""Where Kubernetes keeps Events about objects without a namespace."""

_MATCHED_KINDS = (RELEASE.name, CLASS.name, KUBEVIRT.name, GPU_NODE.name)
"""A change of one of these may match a budget key, or no longer."""


class _Queued(msgspec.Struct):
    notice: Notice
    at: int


class _Series(msgspec.Struct):
    """An Event that was written: where, since when, how often its notice came."""

    namespace: str
    name: str
    since: int
    count: int = 1


class EventRecorder:
    """An observer of the loop; `run` sends what it queued."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        identity: str,
        clock: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        log: Any = None,
    ) -> None:
        """`identity`: the replica's name. `clock`: ms since the epoch."""
        self._cluster = cluster
        self._identity = identity[:128]
        self._clock = clock
        self._sleep = sleep
        self._log = log or structlog.get_logger("announce")
        self._queue: deque[_Queued] = deque(maxlen=MAX_QUEUED)
        self._series: OrderedDict[Notice, _Series] = OrderedDict()
        self._state: PlacementState | None = None
        self._problems_changed = False
        self._told: set[Notice] = set()
        self._dropped = 0

    # Called by the loop

    def folded(self, count: int, seconds: float, backlog: int) -> None:
        """Publishes nothing."""

    def recorded(self, entry: Entry) -> None:
        """Queue the Event of a refused start. Budgets are looked at again when something they are matched against has
        changed (C13)."""
        match entry.event:
            case events.AdmissionRefused() as refused:
                for notice in of_refusal(refused):
                    self._put(notice, entry.at)
            case events.ObjectObserved(kind) | events.ObjectDeleted(kind):
                self._problems_changed |= kind in _MATCHED_KINDS
            case events.ObjectUnreadable() | events.SettingsLoaded():
                self._problems_changed = True
            case events.KindListed() | events.LeadershipAcquired():
                self._problems_changed = True

    def decided(self, entry: Entry, decision: Decision, seconds: float) -> None:
        """Queue the Events of a decision."""
        try:
            for notice in of_decision(entry, decision):
                self._put(notice, entry.at)
        except Exception:
            self._log.exception("events not made", seq=entry.seq, action=decision.action.value)

    def committed(self, journal: Journal, state: PlacementState) -> None:
        """Keep the state to look up uids, owners and budgets; does no work in the loop."""
        self._state = state

    # Sending

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            try:
                await self.flush()
            except Exception:
                self._log.exception("events not sent")
            await self._sleep(ROUND_SECONDS)

    async def flush(self) -> None:
        """Send queued notices, except those whose VMI may still appear."""
        self._look_for_problems()
        now = self._clock()
        counts: dict[Notice, int] = {}
        waiting: list[_Queued] = []
        while self._queue:
            queued = self._queue.popleft()
            notice = self._with_uid(queued.notice)
            if self._may_appear(notice) and now - queued.at < PATIENCE_MILLISECONDS:
                waiting.append(queued)
            else:
                for told in (notice, *on_virtual_machine(notice, self._owner(notice.regarding))):
                    counts[told] = counts.get(told, 0) + 1
        self._queue.extend(waiting)
        if self._dropped:
            self._log.warning("events dropped, too many at once", entries=self._dropped)
            self._dropped = 0
        for notice, count in counts.items():
            try:
                await self._tell(notice, count, now)
            except ClusterError as error:
                about = notice.regarding
                self._log.warning(
                    "event not written",
                    kind=about.kind.name,
                    namespace=about.namespace,
                    name=about.name,
                    reason=notice.reason,
                    error=error.message,
                )

    def _look_for_problems(self) -> None:
        """Queue a notice for each budget key and object that has become a problem since the last look (C13)."""
        state = self._state
        if not self._problems_changed or state is None or not (state.leading and state.synced):
            return
        self._problems_changed = False
        found = set(of_unreadable(state))
        for tenant in state.charges.tenants():
            found.update(of_budgets(state, tenant))
        for notice in sorted(found - self._told, key=_by_subject):
            self._put(notice, self._clock())
        self._told = found

    def _put(self, notice: Notice, at: int) -> None:
        self._dropped += len(self._queue) == MAX_QUEUED
        self._queue.append(_Queued(notice, at))

    def _with_uid(self, notice: Notice) -> Notice:
        about = notice.regarding
        if about.kind is not VMI or about.uid or self._state is None:
            return notice
        vmi = self._state.vmi(about.namespace, about.name)
        return notice if vmi is None else msgspec.structs.replace(notice, regarding=_with(about, vmi.uid))

    def _owner(self, about: Regarding) -> Owner | None:
        """The VirtualMachine of a VMI; None for any other object."""
        if about.kind is not VMI or self._state is None:
            return None
        vmi = self._state.vmi(about.namespace, about.name)
        return None if vmi is None else vmi.owner

    def _may_appear(self, notice: Notice) -> bool:
        return notice.regarding.kind is VMI and not notice.regarding.uid and notice.action == Action.BIND

    async def _tell(self, notice: Notice, count: int, now: int) -> None:
        known = self._series.get(notice)
        if known is not None and now - known.since < WINDOW_MILLISECONDS:
            self._series.move_to_end(notice)
            known.count += count
            try:
                await self._repeat(known, now)
            except NotFound:
                del self._series[notice]
            else:
                return
        await self._begin(notice, count, now)

    async def _begin(self, notice: Notice, count: int, now: int) -> None:
        begun = _Series(notice.regarding.namespace or CLUSTER_NAMESPACE, _name(notice, now), now, count)
        self._series[notice] = begun
        while len(self._series) > MAX_REMEMBERED:
            self._series.popitem(last=False)
        try:
            await self._cluster.create(EVENT, begun.namespace, self._body(notice, begun))
        except AlreadyExists:
            pass  # our own, whose answer was lost
        except ClusterError:
            self._series.pop(notice, None)
            raise

    async def _repeat(self, known: _Series, now: int) -> None:
        await self._cluster.patch(EVENT, known.namespace, known.name, {"series": _series(known.count, now)})

    def _body(self, notice: Notice, begun: _Series) -> dict[str, Any]:
        about = notice.regarding
        body: dict[str, Any] = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"name": begun.name, "namespace": begun.namespace},
            "eventTime": from_ms(begun.since),
            "reportingController": CONTROLLER,
            "reportingInstance": self._identity,
            "action": notice.action[:MAX_REASON],
            "reason": notice.reason[:MAX_REASON],
            "type": notice.type,
            "note": _cut(notice.note),
            "regarding": {
                "apiVersion": about.kind.api_version,
                "kind": about.kind.name,
                "name": about.name,
                **({"namespace": about.namespace} if about.namespace else {}),
                **({"uid": about.uid} if about.uid else {}),
            },
        }
        if begun.count > 1:
            body["series"] = _series(begun.count, begun.since)
        return body


def _by_subject(notice: Notice) -> tuple[str, str, str, str]:
    about = notice.regarding
    return about.kind.name, about.namespace, about.name, notice.note


def _with(about: Regarding, uid: str) -> Regarding:
    return msgspec.structs.replace(about, uid=uid)


def _series(count: int, at: int) -> dict[str, Any]:
    return {"count": count, "lastObservedTime": from_ms(at)}


def _name(notice: Notice, at: int) -> str:
    """The object's name and a digest of content and time, so that resending is idempotent."""
    about = notice.regarding
    said = "\0".join((about.kind.name, about.uid, notice.reason, notice.note, str(at)))
    return f"{about.name[:200]}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def _cut(note: str) -> str:
    """Within the 1,024 bytes that the API server takes, whole characters."""
    raw = note.encode()
    return note if len(raw) <= MAX_NOTE_BYTES else raw[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
