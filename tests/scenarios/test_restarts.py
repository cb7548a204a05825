"""Controllers replaced with an empty journal while the cluster goes on."""

from __future__ import annotations

import asyncio

from journal.store import MemoryJournal
from reconciler.core.model.objects import DEVICE, Function
from reconciler.demo.environment import Environment

GPU = "nvidia.com/GA102"


async def cluster() -> Environment:
    """One node of four units, all of them with a running VM."""
    env = Environment()
    await env.open()
    await env.ecosystem.add_node("n1", {GPU: 4})
    await env.ecosystem.kubevirt({GPU: "10DE:2236"})
    await env.ecosystem.gpu_class("a10", GPU)
    await env.ecosystem.tenant("a")
    await env.add_replica(MemoryJournal(), "r0")
    await env.later(3)
    assert await env.do(env.ecosystem.vmi("tenant-a", "vm", [{"className": "a10", "count": 4}]))
    await env.later(5)
    return env


def phases(env: Environment) -> list[str]:
    return [device["status"]["phase"] for device in env.cluster.peek_all(DEVICE)]


def cards(healthy: int) -> list[Function]:
    return [
        Function(id=f"0000:{n:02x}:00.0", stable_id=f"c{n}", resource_name=GPU, healthy=n < healthy) for n in range(4)
    ]


def test_p4_a_stale_report_takes_no_device_from_a_vm_after_a_restart_without_journal() -> None:
    async def story() -> None:
        env = await cluster()
        await env.ecosystem.report("n1", cards(2))
        await env.later(30)
        await env.ecosystem.report("n1", cards(4))
        await env.ecosystem.report("n1", cards(2))
        (old,) = env.replicas
        await env.do(old.kill())
        await env.later(3600)
        await env.add_replica(MemoryJournal(), "r1")
        await env.later(600)
        assert env.leader is not None and phases(env) == ["Bound"]
        assert env.leader.state.units_on("n1", GPU).served == 4, "the kubelet's number, the agent is silent"
        await env.ecosystem.report("n1", cards(2))
        await env.later(61)
        assert phases(env) == ["Lost"]
        await env.later(125)
        assert phases(env) == ["Bound"], "silent again, and the kubelet serves four"
        await env.close()

    asyncio.run(story())
