"""After an uninstall nothing waits for the removed controller (N6, C47)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from journal.store import MemoryJournal
from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.memory import Call, Fault, MemoryCluster
from reconciler.cluster.memory.cluster import MemoryPort
from reconciler.cluster.port import Unavailable
from reconciler.core.model.objects import (
    CLASS,
    DEVICE,
    MUTATING_WEBHOOKS,
    NAMESPACE,
    STATEFUL_SET,
    VALIDATING_WEBHOOKS,
    VMI,
)
from reconciler.core.model.vocabulary import CLASS_FINALIZER, DEVICE_FINALIZER
from reconciler.demo.environment import Environment
from reconciler.demo.virtual_time import VirtualTime
from reconciler.runtime.uninstall import ROUNDS, Preview, Uninstalled, UninstallIncomplete, preview, uninstall
from tests.edges.cli import run
from tests.edges.memory_cluster import START_MS, named

A10 = "nvidia.com/GA102GL_A10"
CONFIG, NS, WORKLOAD = "cozy-gpu-binder-x", "cozy-gpu-binder", "gpu-binder"


async def no_sleep(seconds: float) -> None:
    """Time is of no interest."""


class Scaling:
    """The port, with the scale subresource and the StatefulSet controller that an API server adds: pods end after
    `lasting` looks."""

    def __init__(self, port: MemoryPort, lasting: int = 2) -> None:
        self._port = port
        self.lasting = lasting
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def patch(self, kind: Any, namespace: str, name: str, body: Any, *, subresource: str = "") -> bytes:
        if subresource == "scale":
            self.done.append("scale")
            assert body == {"spec": {"replicas": 0}}
            return await self._port.patch(kind, namespace, name, body)
        self.done.append(f"patch {kind.name}")
        return await self._port.patch(kind, namespace, name, body, subresource=subresource)

    async def get(self, kind: Any, namespace: str, name: str) -> bytes:
        self.done.append("look")
        if kind is STATEFUL_SET and self.lasting:
            self.lasting -= 1
            if not self.lasting:
                await self._port.patch(kind, namespace, name, {"status": {"replicas": 0}})
        return await self._port.get(kind, namespace, name)

    async def delete(self, kind: Any, namespace: str, name: str, **more: Any) -> None:
        self.done.append(f"delete {kind.name}")
        await self._port.delete(kind, namespace, name, **more)


async def installed(cluster: MemoryCluster) -> Scaling:
    """The chart's objects, a class and two devices in two namespaces, with finalizers of ours and of others."""
    for name in (NS, "tenant-a", "tenant-b"):
        await cluster.create(NAMESPACE, "", named(name))
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        await cluster.create(kind, "", named(CONFIG, webhooks=[]))
    workload = named(WORKLOAD, spec={"replicas": 2}, status={"replicas": 2})
    await cluster.create(STATEFUL_SET, NS, workload)
    spec = {"resourceName": A10, "mode": "Passthrough"}
    await cluster.create(CLASS, "", {"metadata": {"name": "a10", "finalizers": [CLASS_FINALIZER]}, "spec": spec})
    for namespace, finalizers in (("tenant-a", [DEVICE_FINALIZER]), ("tenant-b", ["other/one", DEVICE_FINALIZER])):
        metadata = {"name": "one", "finalizers": finalizers}
        await cluster.create(DEVICE, namespace, {"metadata": metadata, "spec": {"className": "a10"}})
    return Scaling(cluster.as_user("uninstall"))


async def remove(port: Any) -> Uninstalled:
    return await uninstall(port, CONFIG, namespace=NS, workload=WORKLOAD, sleep=no_sleep)


def finalizers(cluster: MemoryCluster) -> list[str]:
    return [
        name
        for kind in (DEVICE, CLASS)
        for found in cluster.peek_all(kind)
        for name in found["metadata"].get("finalizers") or []
    ]


async def test_C47_configurations_go_first_then_the_controller_then_finalizers() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    port = await installed(cluster)
    done = await remove(port)
    assert done == Uninstalled(configurations=2, stopped=True, devices=2, classes=1)
    steps = [step for step in port.done if step != "look"]
    assert steps[:2] == ["delete ValidatingWebhookConfiguration", "delete MutatingWebhookConfiguration"]
    assert steps[2] == "scale"
    assert steps[3:] == ["patch GPUDevice", "patch GPUDevice", "patch GPUClass"]
    assert port.done.count("look") == 2, "it waited for the controller's pods to end"
    assert finalizers(cluster) == ["other/one"]


class ReadOnly:
    """The port without its writes."""

    def __init__(self, port: Any) -> None:
        self.get, self.list = port.get, port.list


async def test_C47_a_dry_run_says_what_an_uninstall_would_do_and_changes_nothing() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    port = await installed(cluster)
    before = cluster.resource_version
    planned = await preview(ReadOnly(cluster.as_user("x")), CONFIG, namespace=NS, workload=WORKLOAD, sleep=no_sleep)
    assert planned == Preview(
        configurations=(VALIDATING_WEBHOOKS.name, MUTATING_WEBHOOKS.name), replicas=2, devices=2, classes=1
    )
    assert cluster.resource_version == before
    done = await remove(port)
    assert (done.configurations, done.devices, done.classes) == (2, planned.devices, planned.classes)
    after = await preview(cluster.as_user("x"), CONFIG, namespace=NS, workload=WORKLOAD, sleep=no_sleep)
    assert after == Preview(replicas=0)


async def test_C47_a_dry_run_where_nothing_is_installed_finds_nothing() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    for kind in (DEVICE, CLASS, MUTATING_WEBHOOKS, STATEFUL_SET):
        cluster.uninstall_kind(kind)
    assert await preview(cluster.as_user("x"), CONFIG, namespace=NS, workload=WORKLOAD) == Preview()


async def test_N6_a_dry_run_waits_for_an_api_server_that_is_away_for_a_moment() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    await installed(cluster)
    answers: dict[str, int] = {}

    def twice(call: Call) -> Fault | None:
        where = f"{call.verb} {call.kind}"
        answers[where] = answers.get(where, 0) + 1
        return Fault.UNAVAILABLE if answers[where] <= 2 else None

    cluster.faults = twice
    planned = await preview(cluster.as_user("x"), CONFIG, namespace=NS, workload=WORKLOAD, sleep=no_sleep)
    assert (planned.replicas, planned.devices) == (2, 2)


def test_C47_the_command_prints_a_line_for_each_change_of_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    asyncio.run(installed(cluster))

    class Closing(ReadOnly):
        async def close(self) -> None:
            """Nothing is open."""

    async def connect(kubeconfig: str | None) -> Any:
        return Closing(cluster.as_user("x"))

    monkeypatch.setattr(KubeCluster, "connect", connect)
    chart = ("--webhook-config-name", CONFIG, "--namespace", NS, "--workload", WORKLOAD)
    result = run("uninstall", *chart, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        f"would delete ValidatingWebhookConfiguration {CONFIG}",
        f"would delete MutatingWebhookConfiguration {CONFIG}",
        f"would scale StatefulSet {NS}/{WORKLOAD} from 2 replicas to 0",
        f"would remove the finalizer {DEVICE_FINALIZER} from 2 GPUDevices",
        f"would remove the finalizer {CLASS_FINALIZER} from 1 GPUClass",
        "nothing was changed",
    ]
    for kind in (DEVICE, CLASS, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, STATEFUL_SET):
        cluster.uninstall_kind(kind)
    assert run("uninstall", *chart, "--dry-run").output.splitlines() == ["nothing to remove", "nothing was changed"]


async def test_C47_a_second_run_finds_nothing_to_do() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    port = await installed(cluster)
    await remove(port)
    before = cluster.resource_version
    assert await remove(port) == Uninstalled(stopped=True)
    assert len([write for write in cluster.writes if write.applied and int(write.version) > int(before)]) == 0


async def test_C47_nothing_installed_is_nothing_to_do() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    for kind in (DEVICE, CLASS, MUTATING_WEBHOOKS, STATEFUL_SET):
        cluster.uninstall_kind(kind)
    assert await remove(Scaling(cluster.as_user("x"))) == Uninstalled()


async def test_N6_without_a_workload_only_configurations_and_finalizers_are_looked_at() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    port = await installed(cluster)
    done = await uninstall(port, CONFIG, sleep=no_sleep)
    assert (done.stopped, done.devices) == (False, 2) and "scale" not in port.done


async def test_B6_what_moves_meanwhile_is_read_again() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    port = await installed(cluster)
    met: set[str] = set()

    def conflict_once(call: Call) -> Fault | None:
        name = str(call.key)
        first = call.verb == "patch" and call.kind in (DEVICE.name, CLASS.name) and name not in met
        met.add(name)
        return Fault.CONFLICT if first else None

    cluster.faults = conflict_once
    done = await remove(port)
    assert (done.devices, done.classes) == (2, 1) and finalizers(cluster) == ["other/one"]


async def test_N6_an_api_server_that_is_away_for_a_moment_is_waited_for() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    port = await installed(cluster)
    answers: dict[str, int] = {}

    def twice(call: Call) -> Fault | None:
        where = f"{call.verb} {call.kind}"
        answers[where] = answers.get(where, 0) + 1
        return Fault.UNAVAILABLE if answers[where] <= 2 else None

    cluster.faults = twice
    await remove(port)
    assert finalizers(cluster) == ["other/one"] and not cluster.peek_all(MUTATING_WEBHOOKS)
    cluster.faults = lambda call: Fault.UNAVAILABLE
    with pytest.raises(Unavailable):
        await remove(port)


async def test_N6_whoever_puts_a_finalizer_back_is_told_of_after_bounded_rounds() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    await installed(cluster)
    lists = 0

    class Stubborn(Scaling):
        async def list(self, kind: Any, **more: Any) -> bytes:
            nonlocal lists
            lists += 1
            await cluster.patch(DEVICE, "tenant-a", "one", {"metadata": {"finalizers": [DEVICE_FINALIZER]}})
            return await cluster.list(kind, **more)

    with pytest.raises(UninstallIncomplete, match="gpudevices still carry the finalizer"):
        await remove(Stubborn(cluster.as_user("x")))
    assert lists == ROUNDS


async def test_N6_a_controller_that_does_not_end_is_told_of() -> None:
    cluster = MemoryCluster(VirtualTime(START_MS).clock)
    port = await installed(cluster)
    port.lasting = 10_000
    with pytest.raises(UninstallIncomplete, match="did not end"):
        await remove(port)
    assert DEVICE_FINALIZER in finalizers(cluster), "it would only be put back"


async def test_C47_a_tenant_namespace_with_devices_and_a_running_machine_can_be_deleted_afterwards() -> None:
    env = Environment()
    await env.open()
    await env.ecosystem.add_node("n1", {A10: 2})
    await env.ecosystem.kubevirt({A10: "10DE:2236"})
    await env.ecosystem.gpu_class("a10", A10)
    await env.ecosystem.tenant("acme")
    await env.add_replica(MemoryJournal(), "r0")
    await env.later(3)
    await env.do(env.ecosystem.order("tenant-acme", "one", "a10"))
    await env.do(env.ecosystem.vmi("tenant-acme", "vm", ["one"]))
    await env.later(2)
    await env.close()
    for hook in ("devices", "machines", "pods", "tenants"):
        env.cluster.admission.unregister(f"{hook}.gpu-binder")
    await env.do(uninstall(env.cluster.as_user("uninstall"), CONFIG, sleep=env.time.sleep))
    await env.cluster.delete(NAMESPACE, "", "tenant-acme")
    await env.later(60)
    for kind in (DEVICE, VMI):
        assert env.cluster.peek_all(kind, "tenant-acme") == []
    assert env.cluster.peek(NAMESPACE, "", "tenant-acme") is None
