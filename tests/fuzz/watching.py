"""Targets: lists, watch lines and reads through a real informer into the state (R10, N7), and agents' reports (R5).

A bad object is set aside; an informer ends for nothing that the API server says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from hypothesis import strategies as st

from journal import events
from reconciler.cluster.informers import Informer, Timing
from reconciler.core.admission import catalog
from reconciler.core.model.objects import CLASS, GPU_NODE, KINDS, NODE, Kind
from reconciler.demo.virtual_time import VirtualTime
from tests.core.world import World
from tests.fuzz.mutations import bodies, damaged, documents, written
from tests.fuzz.samples import NS, samples
from tests.fuzz.targets import Target
from tests.simulation.safety import same_when_counted_anew

LINES = ("ADDED", "MODIFIED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")


class Over(Exception):
    """The script has nothing more to say; an informer passes on what is no error of the cluster."""


class Step(NamedTuple):
    """`verb`: what the informer is told by; list, line, read or wait."""

    kind: str
    verb: str
    body: bytes


class Script:
    """An API server that answers with what was drawn; `run` of an informer ends when it has nothing more to say."""

    def __init__(self) -> None:
        self.lists: list[bytes] = []
        self.lines: list[bytes] = []
        self.body = b""

    async def list(self, kind: Kind, **_: Any) -> bytes:
        if not self.lists:
            raise Over
        return self.lists.pop(0)

    async def get(self, kind: Kind, namespace: str, name: str) -> bytes:
        return self.body

    async def watch(self, kind: Kind, version: str, **_: Any) -> AsyncIterator[bytes]:
        while self.lines:
            yield self.lines.pop(0)
        raise Over


class Watched:
    """Informers of every kind over one state; a leader decides after each step."""

    def __init__(self) -> None:
        self.time = VirtualTime(1_767_225_600_000)
        self.script = Script()
        self.world = World()
        self.informers: dict[str, Informer] = {}
        for kind in KINDS.values():
            timing = Timing(clock=self.time.clock, timer=self.time.timer, sleep=self._rest, jitter=lambda: 0.5)
            self.informers[kind.name] = Informer(
                kind, self.script, self._told, timing, report_stale_seconds=60, report_margin_seconds=5
            )

    async def begin(self) -> None:
        """Everything is listed as it is and a replica leads."""
        for name, objects in samples().objects.items():
            await self.step(Step(name, "list", listed(objects)))
        self.world.tell(events.LeadershipAcquired("binder-0", 1))
        assert self.world.state.synced

    async def step(self, step: Step) -> None:
        informer = self.informers[step.kind]
        match step.verb:
            case "list":
                self.script.lists.append(step.body)
                informer._version = ""
                await self._run(informer)
            case "line":
                self.script.lines.append(step.body)
                informer._version = informer._version or "900"
                await self._run(informer)
            case "read":
                self.script.body = step.body
                await informer.reread(NS, "d1")
            case "wait":
                self.time.skip(40)
                self.world.at = self.time.clock()
                informer.cache.silence(self.time.timer())
                self.world.tell(events.TimeReached())

    async def _run(self, informer: Informer) -> None:
        with contextlib.suppress(Over):
            await informer.run()
        self.script.lists.clear()
        self.script.lines.clear()

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def _told(self, event: events.Event) -> None:
        assert events.decode(*events.encode(event)) == event, "the journal gives another event back"
        self.world.tell(event)

    def look(self) -> None:
        """What is counted and offered is in order."""
        state = self.world.state
        same_when_counted_anew(state)
        for node, found in state.accounts.items():
            for name in found:
                units = state.units_on(node, name)
                assert min(units.placed, units.raw, units.free) >= 0
                assert units.served is None or units.free <= units.served
        for offer in catalog.offers(state, NS):
            assert offer.orderable >= 0


def listed(objects: list[Any], version: str = "900") -> bytes:
    return written({"metadata": {"resourceVersion": version}, "items": objects}).encode()


def check(steps: list[Step]) -> None:
    asyncio.run(_check(steps))


async def _check(steps: list[Step]) -> None:
    watched = Watched()
    await watched.begin()
    for step in steps:
        await watched.step(step)
        watched.look()
    decisions(watched.world)
    watched.look()


def decisions(world: World) -> None:
    """A leader decides on what is there, and comes to an end."""
    world.refuse_writes = True
    for _ in range(3):
        assert len(world.run()) < 500
        world.held_writes.clear()
        world.at += 61_000
        world.tell(events.TimeReached())


@st.composite
def steps(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(KINDS)) -> Step:
    kind = draw(st.sampled_from(kinds))
    objects = samples().objects[kind]
    match draw(st.sampled_from(("list", "line", "line", "read", "wait"))):
        case "list":
            sample = {"metadata": {"resourceVersion": "901"}, "items": objects}
            return Step(kind, "list", draw(bodies([sample])))
        case "line":
            found = draw(documents(objects))
            line = {"type": draw(st.sampled_from(LINES)), "object": found}
            return Step(kind, "line", draw(damaged(written(line).encode())))
        case "read":
            return Step(kind, "read", draw(bodies(objects)))
    return Step(kind, "wait", b"")


WATCH = Target("watch", st.deferred(lambda: st.lists(steps(), min_size=1, max_size=6)), check, 60)
REPORTS = Target(
    "reports",
    st.deferred(lambda: st.lists(steps((GPU_NODE.name, GPU_NODE.name, NODE.name, CLASS.name)), min_size=1, max_size=6)),
    check,
    60,
)
