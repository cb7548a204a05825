"""The order of writes that free and take units of a node (J4, J5)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from journal import events
from journal.events import Event
from reconciler.cluster.port import Conflict, Preconditions, Unavailable
from reconciler.cluster.writer import ClusterWriter
from reconciler.core.model.objects import DEVICE
from reconciler.core.state.decisions import Action, Decision, Verb, Write
from reconciler.demo.virtual_time import VirtualTime
from tests.edges.memory_cluster import START_MS


class SlowCluster:
    """Answers a patch when told to."""

    def __init__(self) -> None:
        self.sent: dict[str, asyncio.Future[bytes]] = {}
        self.bodies: dict[str, Any] = {}
        self.deleted: list[Preconditions | None] = []

    async def patch(self, kind: Any, namespace: str, name: str, body: Any, *, subresource: str = "") -> bytes:
        self.bodies[name] = body
        self.sent[name] = asyncio.get_running_loop().create_future()
        return await self.sent[name]

    async def delete(self, kind: Any, namespace: str, name: str, *, preconditions: Preconditions | None = None) -> None:
        self.deleted.append(preconditions)


def decision(action: Action, name: str, node: str, placement: dict[str, Any] | None) -> Decision:
    write = Write(
        kind=DEVICE.name,
        namespace="tenant-a",
        name=name,
        uid=name,
        resource_version="1",
        verb=Verb.STATUS,
        body={"status": {"placement": placement}},
        after=msgspec.Raw(b"{}"),
    )
    return Decision(action=action, kind=DEVICE.name, subject=name, node=node, message="", writes=(write,))


class Writes:
    def __init__(self) -> None:
        self.cluster = SlowCluster()
        self.time = VirtualTime(START_MS)
        self.outcomes: list[Event] = []
        self.writer = ClusterWriter(
            self.cluster,  # type: ignore[arg-type]
            self.outcomes.append,
            self.reread,
            lambda: True,
            sleep=self.time.sleep,
        )

    async def reread(self, kind: str, namespace: str, name: str) -> None:
        pass

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


ANSWER = b'{"metadata": {"resourceVersion": "2"}}'


async def test_j5_a_grant_goes_out_after_the_release_that_made_room_for_it() -> None:
    """Else a leader that dies between the two leaves both on the node."""
    writes = Writes()
    writes.writer.send(1, decision(Action.RELEASE, "old", "n1", None))
    writes.writer.send(2, decision(Action.BIND, "new", "n1", {"node": "n1", "units": 1}))
    writes.writer.send(3, decision(Action.BIND, "other", "n2", {"node": "n2", "units": 1}))
    await writes.settle()
    assert sorted(writes.cluster.sent) == ["old", "other"], "another node's grant does not wait"
    writes.cluster.sent["old"].set_result(ANSWER)
    await writes.settle()
    writes.cluster.sent["new"].set_result(ANSWER)
    writes.cluster.sent["other"].set_result(ANSWER)
    await writes.writer.drain()
    assert {found.write for found in writes.outcomes if isinstance(found, events.WriteSucceeded)} == {
        "1.0",
        "2.0",
        "3.0",
    }


async def test_j5_a_grant_whose_room_was_not_made_is_dropped() -> None:
    writes = Writes()
    writes.writer.send(1, decision(Action.RELEASE, "old", "n1", None))
    writes.writer.send(2, decision(Action.BIND, "new", "n1", {"node": "n1", "units": 1}))
    await writes.settle()
    writes.cluster.sent["old"].set_exception(Conflict("modified"))
    await writes.writer.drain()
    assert sorted(writes.cluster.sent) == ["old"]
    assert writes.outcomes == [events.WriteConflicted("1.0", "modified"), events.WriteDropped("2.0")]


async def test_j4_a_write_that_fails_as_nobody_foresaw_still_has_an_outcome() -> None:
    writes = Writes()
    writes.writer.send(1, decision(Action.RELEASE, "old", "n1", None))
    await writes.settle()
    writes.cluster.sent["old"].set_result(b"<html>a proxy's error page</html>")
    await writes.writer.drain()
    assert isinstance(writes.outcomes[0], events.WriteConflicted)


@pytest.mark.parametrize("verb", [Verb.STATUS, Verb.PATCH, Verb.DELETE])
async def test_b6_a_write_carries_the_version_it_was_decided_on(verb: Verb) -> None:
    """And the uid: a new object under the old name is another one (R10)."""
    writes = Writes()
    made = decision(Action.RELEASE, "d", "n1", None)
    (write,) = made.writes
    made = msgspec.structs.replace(
        made, writes=(msgspec.structs.replace(write, verb=verb, uid="u7", resource_version="42"),)
    )
    writes.writer.send(1, made)
    await writes.settle()
    if verb is Verb.DELETE:
        assert writes.cluster.deleted == [Preconditions(uid="u7", resource_version="42")]
    else:
        assert writes.cluster.bodies["d"]["metadata"] == {"uid": "u7", "resourceVersion": "42"}
        writes.cluster.sent["d"].set_result(ANSWER)
    await writes.writer.drain()


async def test_n9_a_write_is_not_sent_again_before_retry_after_has_passed() -> None:
    writes = Writes()
    writes.writer.send(1, decision(Action.HOLD, "d", "n1", None))
    await writes.settle()
    first = writes.cluster.sent.pop("d")
    first.set_exception(Unavailable("429 too many requests", retry_after_seconds=7.0))
    await writes.time.advance(6.9)
    assert not writes.cluster.sent
    await writes.time.advance(0.2)
    writes.cluster.sent["d"].set_result(ANSWER)
    await writes.settle()
    assert writes.outcomes == [events.WriteSucceeded("1.0", "2")]
