"""Controllers replaced with an empty journal while the cluster goes on."""

from __future__ import annotations

import asyncio

import pytest

from journal.events import HistoryReplaced
from journal.store import MemoryJournal
from reconciler.cluster.memory import Fault
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
    await env.do(env.ecosystem.order("tenant-a", "d", "a10", 4))
    await env.later(1)
    assert await env.do(env.ecosystem.vmi("tenant-a", "vm", ["d"]))
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


@pytest.mark.parametrize("when", ["running", "restarted", "restarted on an empty journal"])
@pytest.mark.parametrize("ahead", [False, True])
def test_j5_a_restored_etcd_is_read_anew(when: str, ahead: bool) -> None:
    """Versions go back, `ahead`: but are beyond the old ones when they are read again."""

    async def story() -> None:
        env = await cluster()
        backup = env.cluster.backup()
        await env.do(env.ecosystem.stop("tenant-a", "vm"))
        await env.later(60)
        assert await env.do(env.ecosystem.vmi("tenant-a", "vm2", ["d"]))
        await env.later(30)
        (replica,) = env.replicas
        journal = replica.controller.journal
        if when != "running":
            await env.do(replica.kill())
        env.cluster.faults = lambda call: Fault.UNAVAILABLE
        env.cluster.watches.drop()
        await env.later(5)
        env.cluster.restore(backup)
        env.cluster.faults = None
        for number in range(200 if ahead else 0):
            await env.ecosystem.namespace("busy", {"number": str(number)})
        if when != "running":
            await env.add_replica(journal if when == "restarted" else MemoryJournal(), "r1")
        await env.later(300)
        assert env.leader is not None
        (device,) = env.cluster.peek_all(DEVICE)
        mirrored = next(iter(env.leader.state.all_devices()))
        assert mirrored.resource_version == device["metadata"]["resourceVersion"]
        assert mirrored.attachment.vmi_name == "vm"
        await env.do(env.ecosystem.stop("tenant-a", "vm"))
        await env.later(60)
        assert phases(env) == ["Held"], "the binder writes to restored objects"
        assert await env.do(env.ecosystem.vmi("tenant-a", "vm3", ["d"]))
        told = [entry for entry in env.leader.controller.journal.read() if isinstance(entry.event, HistoryReplaced)]
        assert len(told) == (when != "restarted on an empty journal")
        await env.close()

    asyncio.run(story())
