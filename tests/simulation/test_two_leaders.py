"""Two leaders at once, step by step: the older one's writes in flight land too late (J5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from journal.store import MemoryJournal
from reconciler.cluster.memory import Call, Fault
from reconciler.core.model.objects import DEVICE, LEASE
from reconciler.demo.embedded import NAMESPACE, SERVICE_ACCOUNT, register
from tests.simulation.fault_story import FaultStory
from tests.simulation.safety import status
from tests.simulation.story import A


class TwoLeadersStory(FaultStory):
    """Two nodes of one unit; the grants to `vm-a` are held on the wire."""

    async def open(self) -> None:
        await self.env.open()
        for node in ("n1", "n2"):
            await self.ecosystem.add_node(node, {A: 1})
        await self.ecosystem.kubevirt({A: "10DE:2236"})
        await self.ecosystem.gpu_class("a10", A)
        await self.ecosystem.tenant("a")
        for name in ("r0", "r1"):
            await self._add_replica(MemoryJournal(), name)
        await self.env.later(3)
        self.env.cluster.faults = self.fault

    def fault(self, call: Call) -> Fault | None:
        placed = ((call.body or {}).get("status") or {}).get("placement")
        to_a = call.verb == "patch" and call.key.name.startswith("vm-a") and bool(placed)
        return Fault.DELAYED if call.user == SERVICE_ACCOUNT and to_a else None

    def start_of(self, name: str) -> asyncio.Future[Any]:
        references = [{"className": "a10", "count": 1}]
        return asyncio.ensure_future(self.ecosystem.vmi("tenant-a", name, references))

    def nodes(self) -> list[str]:
        placements = [status(d).get("placement") for d in self.env.cluster.peek_all(DEVICE)]
        return sorted(found["node"] for found in placements if found)

    async def take_over(self) -> tuple[Any, asyncio.Future[Any]]:
        """r0 grants n1 to vm-a and stops, its write on the wire; r1, which is to give vm-a the other node, leads.
        The webhook of vm-a stands still with r0."""
        old, new = self.env.leader, next(r for r in self.env.replicas if r is not self.env.leader)
        assert old is not None
        register(self.env.cluster, old)
        start = self.start_of("vm-a")
        await self.env.until(lambda: bool(self.env.cluster.held))
        self._gate(old).stop(sleeps_through=False)
        register(self.env.cluster, new)
        await self.ecosystem.cordon("n1")
        await self.env.until(lambda: len(self.env.cluster.held) == 2)
        await self.ecosystem.cordon("n1", False)
        return old, start

    def calm_down(self) -> None:
        """No more faults, everything goes on."""
        self.env.cluster.faults = None
        for replica in self.env.replicas:
            self._gate(replica).go_on()
        self.env.cluster.fault_injector.release_all()


class DeletedLeaseStory(TwoLeadersStory):
    """The order of `vm-a` is older than both replicas, so that every leader fences it; the Lease is deleted while the
    older leader's write is on the wire."""

    async def open(self) -> None:
        self.ordered = False
        await super().open()

    async def _add_replica(self, journal: Any, identity: str) -> None:
        if not self.ordered:
            self.ordered = True
            await self.ecosystem.order("tenant-a", "vm-a-order", "a10")
        await super()._add_replica(journal, identity)

    def start_of(self, name: str) -> asyncio.Future[Any]:
        if name != "vm-a":
            return super().start_of(name)
        return asyncio.ensure_future(self.ecosystem.vmi("tenant-a", name, ["vm-a-order"]))

    async def take_over(self) -> tuple[Any, asyncio.Future[Any]]:
        old, new = self.env.leader, next(r for r in self.env.replicas if r is not self.env.leader)
        assert old is not None
        register(self.env.cluster, old)
        start = self.start_of("vm-a")
        await self.env.until(lambda: bool(self.env.cluster.held))
        self._gate(old).stop(sleeps_through=False)
        if self.anew:
            await new.kill()
        await self.ecosystem.cordon("n1")
        await self.ecosystem.cluster.delete(LEASE, NAMESPACE, "gpu-binder")
        if self.anew:
            await self._add_replica(MemoryJournal(), "r2")
            new = self.env.replicas[-1]
        register(self.env.cluster, new)
        await self.env.until(lambda: len(self.env.cluster.held) == 2)
        await self.ecosystem.cordon("n1", False)
        return old, start

    anew = False


class DeletedLeaseAndJournalStory(DeletedLeaseStory):
    """The replica that takes over has an empty journal and never saw the Lease."""

    anew = True


async def duel(kind: type[TwoLeadersStory], *, resume_first: bool) -> None:
    story = kind(0)
    await story.open()
    old, start = await story.take_over()
    try:
        assert await story.env.do(story.start_of("vm-b"))
        assert story.nodes() == ["n1"], "vm-b has n1; what r1 grants vm-a is still on the wire"
        if resume_first:
            story._gate(old).go_on()
            await story.env.settle()
        story.env.cluster.held[0].release()
        await story.env.settle()
        assert story.nodes() == ["n1"], "the older leader's grant of n1 came too late"
    finally:
        story.calm_down()
        await story.env.later(90)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await story.close()
    assert len(set(story.nodes())) == len(story.nodes())


def test_j5_a_grant_of_an_older_leader_lands_on_no_unit_that_was_given_away() -> None:
    asyncio.run(duel(TwoLeadersStory, resume_first=False))


def test_j5_an_older_leader_that_goes_on_changes_nothing() -> None:
    asyncio.run(duel(TwoLeadersStory, resume_first=True))


@pytest.mark.parametrize("resume_first", [False, True])
@pytest.mark.parametrize("kind", [DeletedLeaseStory, DeletedLeaseAndJournalStory])
def test_j5_an_epoch_never_repeats_though_the_lease_is_deleted(kind: type[TwoLeadersStory], resume_first: bool) -> None:
    asyncio.run(duel(kind, resume_first=resume_first))
