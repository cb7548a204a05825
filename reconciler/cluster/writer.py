"""Sends the writes of committed decisions and reports their outcomes to the loop (B6, J4, J5).

Owns the pipeline and the interpretation of responses. A conflict is never retried: the object is read and decided
again. A lost response is: the same write with the same precondition can apply only once. Nothing is sent once the
lease may have been lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from journal import events
from journal.events import Event
from reconciler.cluster.port import (
    AlreadyExists,
    Cluster,
    Conflict,
    KindMissing,
    NotFound,
    Preconditions,
    Rejected,
)
from reconciler.cluster.retry_policies import WRITE
from reconciler.core.model.objects import KINDS
from reconciler.core.state.decisions import Action, Decision, Verb, Write

MAX_IN_FLIGHT = 64
"""Writes under way at once; more only queue in the API server's priority level."""

TAKING = (Action.BIND, Action.RESTORE)
"""Decisions that put units on a node."""

Reread = Callable[[str, str, str], Awaitable[None]]
"""(kind, namespace, name): GET the object and submit what it is now."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Answer(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class ClusterWriter:
    """The pipeline. `may_write` is checked right before each request."""

    def __init__(
        self,
        cluster: Cluster,
        submit: Callable[[Event], None],
        reread: Reread,
        may_write: Callable[[], bool],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._submit = submit
        self._reread = reread
        self._may_write = may_write
        self._sleep = sleep
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self.tasks: set[asyncio.Task[Event]] = set()
        self._freeing: dict[asyncio.Task[Event], str] = {}

    def send(self, seq: int, decision: Decision) -> None:
        """Start the writes of one decision; they run concurrently. A write that places units on a node is sent only
        after writes that free units of that node have succeeded; otherwise another leader could find both there."""
        taking = decision.action in TAKING
        first = [task for task, node in self._freeing.items() if taking and node in (decision.node, "")]
        for index, write in enumerate(decision.writes):
            task = asyncio.ensure_future(self._run(f"{seq}.{index}", write, first))
            self.tasks.add(task)
            if _frees(write):
                self._freeing[task] = decision.node
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Event]) -> None:
        self.tasks.discard(task)
        self._freeing.pop(task, None)

    @property
    def in_flight(self) -> int:
        return len(self.tasks)

    async def drain(self) -> None:
        """Wait until every write sent has an outcome (N1)."""
        while self.tasks:
            await asyncio.wait(set(self.tasks))

    async def _run(self, identity: str, write: Write, first: list[asyncio.Task[Event]]) -> Event:
        if first and not await _landed(first):
            outcome: Event = events.WriteDropped(identity)
            self._submit(outcome)
            return outcome
        async with self._slots:
            try:
                outcome = await self._attempts(identity, write)
            except Exception as error:  # without an outcome the object would stay pending forever
                outcome = events.WriteConflicted(identity, f"no outcome is known: {error!r}")
        self._submit(outcome)
        if isinstance(outcome, events.WriteConflicted | events.WriteFoundGone):
            await self._reread(write.kind, write.namespace, write.name)
        return outcome

    async def _attempts(self, identity: str, write: Write) -> Event:
        sent = False

        async def send() -> Event:
            nonlocal sent
            if not self._may_write():
                if sent:
                    return events.WriteConflicted(identity, "leadership ended before the answer came")
                return events.WriteDropped(identity)
            sent = True
            return events.WriteSucceeded(identity, await self._send(write))

        try:
            return await WRITE.call(send, self._sleep)
        except (Conflict, AlreadyExists) as error:
            return events.WriteConflicted(identity, error.message)
        except (NotFound, KindMissing):
            return events.WriteFoundGone(identity)
        except Rejected as error:
            return events.WriteRejected(identity, error.message)

    async def _send(self, write: Write) -> str:
        """Send once; returns the new resourceVersion, "" if the response has none."""
        kind = KINDS[write.kind]
        if write.verb is Verb.DELETE:
            preconditions = Preconditions(uid=write.uid, resource_version=write.resource_version)
            await self._cluster.delete(kind, write.namespace, write.name, preconditions=preconditions)
            return ""
        if write.verb is Verb.CREATE:
            body = {
                "apiVersion": kind.api_version,
                "kind": kind.name,
                "metadata": {"name": write.name, "namespace": write.namespace},
                **write.body,
            }
            return _version(await self._cluster.create(kind, write.namespace, body))
        answer = await self._cluster.patch(
            kind,
            write.namespace,
            write.name,
            _conditional(write),
            subresource="status" if write.verb is Verb.STATUS else "",
        )
        return _version(answer)


async def _landed(tasks: list[asyncio.Task[Event]]) -> bool:
    await asyncio.wait(tasks)
    return all(not task.cancelled() and isinstance(task.result(), events.WriteSucceeded) for task in tasks)


def _frees(write: Write) -> bool:
    """The write removes a device from its node. A lost device frees no usable unit."""
    status = write.body.get("status") or {}
    return "placement" in status and status["placement"] is None


def _conditional(write: Write) -> dict[str, Any]:
    """The merge patch with its preconditions: the object's uid and the version the decision is based on (B6, R10)."""
    metadata = {
        **write.body.get("metadata", {}),
        "uid": write.uid,
        "resourceVersion": write.resource_version,
    }
    return {**write.body, "metadata": metadata}


def _version(answer: bytes) -> str:
    return msgspec.json.decode(answer, type=_Answer).metadata.resource_version
