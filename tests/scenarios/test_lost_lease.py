"""A leader whose lease has run out sends nothing more, whatever is still to be sent (J5)."""

from __future__ import annotations

import asyncio

from journal.store import MemoryJournal
from reconciler.cluster.memory import Call, Fault
from reconciler.core.model.objects import DEVICE, LEASE
from reconciler.demo.embedded import SERVICE_ACCOUNT
from reconciler.demo.environment import Environment

GPU = "nvidia.com/GA102"


def test_j5_a_write_is_not_sent_again_after_the_lease_is_lost() -> None:
    """The write of a decided order fails until the lease is gone; then the API server would take it."""

    async def story() -> None:
        env = Environment()
        await env.open()
        await env.ecosystem.add_node("n1", {GPU: 4})
        await env.ecosystem.kubevirt({GPU: "10DE:2236"})
        await env.ecosystem.gpu_class("a10", GPU)
        await env.ecosystem.tenant("a")
        replica = await env.add_replica(MemoryJournal(), "r0")
        await env.later(3)
        failing = {DEVICE.name, LEASE.name}
        sent: list[str] = []

        def fault(call: Call) -> Fault | None:
            ours = call.user == SERVICE_ACCOUNT and call.verb == "patch"
            if ours and call.kind == DEVICE.name:
                sent.append(call.key.name)
            return Fault.UNAVAILABLE if ours and call.kind in failing else None

        env.cluster.faults = fault
        await env.ecosystem.order("tenant-a", "d", "a10")
        await env.time.advance(2, env._watched, env.cluster.tick)
        assert sent and replica.state.leading
        while replica.controller.elector.leading:
            await env.time.advance(0.25, env._watched, env.cluster.tick)
        failing.discard(DEVICE.name)
        sent.clear()
        await env.later(30)
        assert sent == []
        failing.clear()
        await env.later(30)
        assert [device["status"]["phase"] for device in env.cluster.peek_all(DEVICE)] == ["Held"]
        await env.close()

    asyncio.run(story())
