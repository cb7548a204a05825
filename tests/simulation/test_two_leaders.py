"""Two leaders at once, move by move: what an older one has on the wire lands too late (J5)."""

from __future__ import annotations

import asyncio
from typing import Any

from journal.store import MemoryJournal
from reconciler.core.objects import DEVICE
from reconciler.embedded import SERVICE_ACCOUNT, register
from reconciler.memory import Call, Fault
from tests.simulation.harsh import HarshStory
from tests.simulation.safety import status
from tests.simulation.story import A


class Duel(HarshStory):
    """Two nodes of one unit; the grants to `vm-a` are held on the wire."""

    async def open(self) -> None:
        await self.stage.open()
        for node in ("n1", "n2"):
            await self.players.add_node(node, {A: 1})
        await self.players.kubevirt({A: "10DE:2236"})
        await self.players.gpu_class("a10", A)
        await self.players.tenant("a")
        for name in ("r0", "r1"):
            await self._add_replica(MemoryJournal(), name)
        await self.stage.later(3)
        self.stage.cluster.faults = self.fault

    def fault(self, call: Call) -> Fault | None:
        placed = ((call.body or {}).get("status") or {}).get("placement")
        to_a = call.verb == "patch" and call.key.name.startswith("vm-a") and bool(placed)
        return Fault.DELAYED if call.user == SERVICE_ACCOUNT and to_a else None

    def start_of(self, name: str) -> asyncio.Future[Any]:
        references = [{"className": "a10", "count": 1}]
        return asyncio.ensure_future(self.players.vmi("tenant-a", name, references))

    def nodes(self) -> list[str]:
        placements = [status(d).get("placement") for d in self.stage.cluster.peek_all(DEVICE)]
        return sorted(found["node"] for found in placements if found)

    async def take_over(self) -> tuple[Any, asyncio.Future[Any]]:
        """r0 grants n1 to vm-a and stops, its write on the wire; r1, which is to give vm-a the other node, leads.
        The webhook of vm-a stands still with r0."""
        old, new = self.stage.leader, next(r for r in self.stage.replicas if r is not self.stage.leader)
        assert old is not None
        register(self.stage.cluster, old)
        start = self.start_of("vm-a")
        await self.stage.until(lambda: bool(self.stage.cluster.held))
        self._gate(old).stop(sleeps_through=False)
        register(self.stage.cluster, new)
        await self.players.cordon("n1")
        await self.stage.until(lambda: len(self.stage.cluster.held) == 2)
        await self.players.cordon("n1", False)
        return old, start

    def calm_down(self) -> None:
        """No more faults, everything goes on."""
        self.stage.cluster.faults = None
        for replica in self.stage.replicas:
            self._gate(replica).go_on()
        self.stage.cluster.fate.release_all()


async def duel(*, resume_first: bool) -> None:
    story = Duel(0)
    await story.open()
    old, start = await story.take_over()
    try:
        assert await story.stage.do(story.start_of("vm-b"))
        assert story.nodes() == ["n1"], "vm-b has n1; what r1 grants vm-a is still on the wire"
        if resume_first:
            story._gate(old).go_on()
            await story.stage.settle()
        story.stage.cluster.held[0].release()
        await story.stage.settle()
        assert story.nodes() == ["n1"], "the older leader's grant of n1 came too late"
    finally:
        story.calm_down()
        await story.stage.later(90)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await story.close()
    assert len(set(story.nodes())) == len(story.nodes())


def test_j5_a_grant_of_an_older_leader_lands_on_no_unit_that_was_given_away() -> None:
    asyncio.run(duel(resume_first=False))


def test_j5_an_older_leader_that_goes_on_changes_nothing() -> None:
    asyncio.run(duel(resume_first=True))
