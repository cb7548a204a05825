"""The real cluster of the tests does what a cluster does, before anything of gpu-binder runs on it."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from reconciler.cluster import NotFound, Rejected
from reconciler.core.objects import CLASS, DEVICE, GPU_NODE, NAMESPACE, NODE, POD, RELEASE, VMI, Function
from reconciler.core.vocabulary import (
    CLASS_FINALIZER,
    CREATED_BY_LABEL,
    DEVICE_FINALIZER,
    DEVICES_LABEL,
    DOMAIN_ANNOTATION,
    KUBEVIRT_LABEL,
    LAUNCHER,
    MIGRATION_LABEL,
)
from reconciler.memory.pods import node_of, phase_of, requests_of
from tests.realserver.controlplane import ControlPlane
from tests.realserver.players import RealPlayers
from tests.realserver.registration import (
    CONFIGURATION,
    MUTATING,
    VALIDATING,
    in_force,
    put,
    register_webhooks,
    remove,
    unregister,
)
from tests.realserver.virt import VIRT_API_CONFIGURATION, VM, WebhookServer, mutating_configuration

GPU = "nvidia.com/GA102GL_A10"
pytestmark = pytest.mark.realserver


@pytest_asyncio.fixture
async def players(control_plane: ControlPlane) -> AsyncIterator[RealPlayers]:
    made = RealPlayers(control_plane)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
def name() -> str:
    """Part of every name of a test."""
    return uuid.uuid4().hex[:6]


def gpus(count: int, **spec: Any) -> dict[str, Any]:
    entries = [{"name": f"g{index}", "deviceName": GPU} for index in range(count)]
    return {"domain": {"memory": {"guest": "1Gi"}, "devices": {"gpus": entries}}, **spec}


def on(node: str) -> dict[str, dict[str, str]]:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


async def phase(players: RealPlayers, namespace: str, name: str) -> str:
    return phase_of(await players.get(VMI, namespace, name) or {})


async def running(players: RealPlayers, namespace: str, name: str) -> dict[str, Any]:
    """Wait until the VMI runs; its status."""

    async def status() -> Any:
        vmi = await players.get(VMI, namespace, name)
        return vmi is not None and phase_of(vmi) == "Running" and vmi["status"]

    return await players.until(status, f"VMI {name} runs")


async def gone(players: RealPlayers, kind: Any, namespace: str, name: str, seconds: float = 60) -> None:
    async def absent() -> bool:
        return await players.get(kind, namespace, name) is None

    await players.until(absent, f"{kind.name} {name} is gone", seconds)


async def test_a_vmi_gets_a_launcher_on_a_node_of_the_real_scheduler_and_runs(players: RealPlayers, name: str) -> None:
    """R7: activePods lists the launcher's uid; the scheduler takes the one node that has the units."""
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-small", {GPU: 1})
    await players.add_node(f"{name}-large", {GPU: 2})
    await players.vmi(namespace, "v1", ["d1"], spec=gpus(2))
    status = await running(players, namespace, "v1")
    (pod,) = await players.launchers(namespace, "v1")
    vmi = await players.get(VMI, namespace, "v1")
    assert vmi is not None
    uid = vmi["metadata"]["uid"]
    assert status["nodeName"] == node_of(pod) == f"{name}-large"
    assert status["activePods"] == {pod["metadata"]["uid"]: f"{name}-large"}
    labels = pod["metadata"]["labels"]
    assert labels[KUBEVIRT_LABEL] == LAUNCHER and labels[CREATED_BY_LABEL] == uid and labels[DEVICES_LABEL] == "true"
    assert pod["metadata"]["annotations"][DOMAIN_ANNOTATION] == "v1"
    assert requests_of(pod)[GPU] == 2
    assert pod["status"]["startTime"] and pod["spec"]["automountServiceAccountToken"] is False
    assert {each["type"] for each in pod["status"]["conditions"]} >= {"PodScheduled", "Ready"}
    assert vmi["spec"]["domain"]["machine"] == {"type": "q35"}, "virt-api's mutator was called"


async def test_a_pod_beyond_allocatable_fails_for_good(players: RealPlayers, name: str) -> None:
    """C01: allocatable falls to 0 between the scheduler and the kubelet."""
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 1})
    players.hold(f"{name}-n1")
    await players.vmi(namespace, "v1", spec=gpus(1))

    async def bound() -> Any:
        pods = await players.launchers(namespace, "v1")
        return bool(pods) and node_of(pods[0])

    assert await players.until(bound, "the launcher is bound") == f"{name}-n1"
    await players.allocatable(f"{name}-n1", {GPU: 0})
    await players.until(
        lambda: players.mirrors.get(NODE, "", f"{name}-n1")["status"]["allocatable"][GPU] == "0", "seen"
    )
    players.let_go(f"{name}-n1")

    async def failed() -> bool:
        return await phase(players, namespace, "v1") == "Failed"

    await players.until(failed, "the VMI fails")
    (pod,) = await players.launchers(namespace, "v1")
    assert phase_of(pod) == "Failed" and pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 1, Available: 0" in pod["status"]["message"]


async def test_a_launcher_that_does_not_fit_waits_for_units(players: RealPlayers, name: str) -> None:
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 1})
    await players.vmi(namespace, "v1", spec=gpus(1))
    await running(players, namespace, "v1")
    await players.vmi(namespace, "v2", spec=gpus(1))

    async def unschedulable() -> bool:
        pods = await players.launchers(namespace, "v2")
        conditions = pods[0]["status"].get("conditions") or [] if pods else []
        return any(each.get("reason") == "Unschedulable" and GPU in each["message"] for each in conditions)

    await players.until(unschedulable, "the real scheduler says why")
    assert await phase(players, namespace, "v2") == "Scheduling"
    await players.delete_vmi(namespace, "v1")
    await running(players, namespace, "v2")


async def test_a_guest_that_ends_takes_its_vmi_along(players: RealPlayers, name: str) -> None:
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 2})
    for vmi, end in (("v1", "Succeeded"), ("v2", "Failed")):
        await players.vmi(namespace, vmi, spec=gpus(1))
        await running(players, namespace, vmi)
        await players.finish(namespace, vmi, end)

        async def ended(vmi: str = vmi, end: str = end) -> bool:
            return await phase(players, namespace, vmi) == end

        await players.until(ended, f"{vmi} is {end}")
        (pod,) = await players.launchers(namespace, vmi)
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]


async def test_a_virtual_machine_starts_stops_and_is_collected(players: RealPlayers, name: str) -> None:
    """K1: the template's label and annotation reach VMI and launcher; the real garbage collector takes the VMI."""
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 1})
    await players.vm(namespace, "m1", ["d1"], spec=gpus(1))
    await running(players, namespace, "m1")
    (pod,) = await players.launchers(namespace, "m1")
    assert pod["metadata"]["labels"][DEVICES_LABEL] == "true" and "d1" in str(pod["metadata"]["annotations"])

    async def shown() -> bool:
        machine = await players.get(VM, namespace, "m1")
        return machine is not None and machine["status"].get("ready") is True

    await players.until(shown, "the machine is ready")
    await players.run_strategy(namespace, "m1", "Halted")
    await gone(players, VMI, namespace, "m1")
    await gone(players, POD, namespace, pod["metadata"]["name"])
    await players.run_strategy(namespace, "m1", "Always")
    await running(players, namespace, "m1")
    await players.tenant_port.delete(VM, namespace, "m1")
    await gone(players, VMI, namespace, "m1", 90)
    assert await players.launchers(namespace, "m1") == []


async def test_the_garbage_collector_takes_what_a_vmi_owned(players: RealPlayers, name: str) -> None:
    """K2: an object that names the VMI as its owner goes with it, without a player's help."""
    namespace = await players.tenant(name)
    vmi = await players.vmi(namespace, "v1")
    owner = {"apiVersion": "kubevirt.io/v1", "kind": VMI.name, "name": "v1", "uid": vmi["metadata"]["uid"]}
    body = {"metadata": {"name": "d1", "ownerReferences": [owner]}, "spec": {"className": "a10", "count": 1}}
    await players.admin.create(DEVICE, namespace, body)
    await players.delete_vmi(namespace, "v1")
    await gone(players, VMI, namespace, "v1")
    await gone(players, DEVICE, namespace, "d1", 90)


async def test_a_pod_that_does_not_stop_stays_until_its_kubelet_lets_go(players: RealPlayers, name: str) -> None:
    """C05: a launcher that is being deleted keeps its VMI."""
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 2})
    await players.vmi(namespace, "v1", spec=gpus(1))
    await running(players, namespace, "v1")
    players.hold_terminating(f"{name}-n1")
    await players.delete_vmi(namespace, "v1")

    async def terminating() -> bool:
        return any("deletionTimestamp" in pod["metadata"] for pod in await players.launchers(namespace, "v1"))

    await players.until(terminating, "the launcher is terminating")
    await players.vmi(namespace, "v2", spec=gpus(1))
    await running(players, namespace, "v2")
    assert await players.get(VMI, namespace, "v1") is not None and await terminating()
    players.let_go(f"{name}-n1")
    await gone(players, VMI, namespace, "v1")


async def test_reinvocation_is_real(control_plane: ControlPlane, players: RealPlayers, name: str) -> None:
    """B4: a webhook before virt-api's is called a second time, with another review uid and virt-api's change."""
    seen: list[dict[str, Any]] = []

    async def watcher(review: dict[str, Any]) -> dict[str, Any]:
        seen.append(review["request"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

    namespace = await players.tenant(name)
    server = WebhookServer(control_plane.authority, {"/watch": watcher})
    await server.start()
    configuration = f"gpu-binder-watcher-{name}"
    assert configuration < VIRT_API_CONFIGURATION and CONFIGURATION < VIRT_API_CONFIGURATION
    rule = {
        "apiGroups": [VMI.group],
        "apiVersions": [VMI.version],
        "resources": [VMI.plural],
        "operations": ["CREATE"],
    }
    inside = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    body = mutating_configuration(
        configuration,
        "watcher.example.org",
        f"{server.base_url}/watch",
        server.ca_pem,
        rule,
        reinvocationPolicy="IfNeeded",
        namespaceSelector=inside,
    )
    try:
        await put(players.admin, MUTATING, body)
        await in_force(players.admin)
        await players.vmi(namespace, "v1", spec=gpus(1))
        first, second = seen
        assert first["uid"] != second["uid"]
        assert "machine" not in first["object"]["spec"]["domain"]
        assert second["object"]["spec"]["domain"]["machine"] == {"type": "q35"}
        assert "uid" not in second["object"]["metadata"], "a VMI being created has none yet"
        once = copy.deepcopy(body)
        once["webhooks"][0]["reinvocationPolicy"] = "Never"
        await put(players.admin, MUTATING, once)
        await in_force(players.admin)
        await players.vmi(namespace, "v2", dry_run=True)
        assert len(seen) == 3 and seen[2]["dryRun"] is True
        assert await players.get(VMI, namespace, "v2") is None
    finally:
        await remove(players.admin, MUTATING, configuration)
        await server.stop()


async def test_a_refused_launcher_is_tried_again(control_plane: ControlPlane, players: RealPlayers, name: str) -> None:
    """W3: while a webhook refuses the launcher, the VMI says so; afterwards it starts by itself."""
    refusing = True

    async def guard(review: dict[str, Any]) -> dict[str, Any]:
        response = {"uid": review["request"]["uid"], "allowed": not refusing, "status": {"message": "not placed"}}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 1})
    server = WebhookServer(control_plane.authority, {"/guard": guard})
    await server.start()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    inside = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    url = f"{server.base_url}/guard"
    configuration = f"guard-{name}"
    body = mutating_configuration(
        configuration, "guard.example.org", url, server.ca_pem, rule, namespaceSelector=inside
    )
    try:
        await put(players.admin, MUTATING, body)
        await in_force(players.admin)
        await players.vmi(namespace, "v1", spec=gpus(1))

        async def says_why() -> bool:
            vmi = await players.get(VMI, namespace, "v1")
            return "not placed" in str((vmi or {}).get("status", {}).get("conditions"))

        await players.until(says_why, "the VMI shows the refusal")
        assert await players.launchers(namespace, "v1") == []
        refusing = False
        await running(players, namespace, "v1")
    finally:
        await remove(players.admin, MUTATING, configuration)
        await server.stop()


async def test_a_migration_target_is_another_launcher_of_the_vmi(players: RealPlayers, name: str) -> None:
    """C09, C24: both pods are in activePods, on two nodes."""
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 1})
    await players.add_node(f"{name}-n2", {GPU: 1})
    await players.vmi(namespace, "v1", spec=gpus(1))
    source = (await running(players, namespace, "v1"))["nodeName"]
    target = await players.migrate(namespace, "v1", "job-1")
    assert target["metadata"]["labels"][MIGRATION_LABEL] == "job-1"

    async def both() -> bool:
        vmi = await players.get(VMI, namespace, "v1")
        active = (vmi or {}).get("status", {}).get("activePods") or {}
        return set(active.values()) == {f"{name}-n1", f"{name}-n2"}

    await players.until(both, "both launchers are listed on their nodes")
    vmi = await players.get(VMI, namespace, "v1")
    assert vmi is not None and vmi["status"]["nodeName"] == source


async def test_a_namespace_with_machines_goes_away(players: RealPlayers, name: str) -> None:
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 1})
    await players.vm(namespace, "m1", spec=gpus(1))
    await running(players, namespace, "m1")
    await players.admin.delete(NAMESPACE, "", namespace)
    await gone(players, NAMESPACE, "", namespace, 120)


async def test_nodes_are_cordoned_reported_and_deleted(players: RealPlayers, name: str) -> None:
    """O3: a report is dated; a cordoned, tainted or silent node takes no launcher, one that is let go again does."""
    namespace = await players.tenant(name)
    node = f"{name}-n1"
    await players.add_node(node, {GPU: 1})
    await players.cordon(node)

    async def closed() -> bool:
        found = await players.get(NODE, "", node)
        taints = (found or {}).get("spec", {}).get("taints") or []
        return any(taint["key"] == "node.kubernetes.io/unschedulable" for taint in taints)

    await players.until(closed, "the real node controller taints the cordoned node")
    await players.vmi(namespace, "v1", spec=gpus(1, **on(node)))

    async def waiting() -> bool:
        pods = await players.launchers(namespace, "v1")
        return bool(pods) and bool(pods[0]["status"].get("conditions")) and not node_of(pods[0])

    await players.until(waiting, "the scheduler has tried")
    await players.cordon(node, on=False)
    await running(players, namespace, "v1")
    function = Function(id="0000:3b:00.0", stable_id="GPU-1", resource_name=GPU)
    await players.report(node, [function])
    first = await players.get(GPU_NODE, "", node)
    assert first is not None and first["status"]["functions"][0]["resourceName"] == GPU
    await players.report(node)
    again = await players.get(GPU_NODE, "", node)
    assert again is not None and again["status"]["functions"] == first["status"]["functions"]
    assert again["status"]["reportedAt"] >= first["status"]["reportedAt"]
    await players.delete_node(node)
    await gone(players, NODE, "", node)


async def test_a_tenant_has_no_more_rights_than_it_needs(players: RealPlayers, name: str) -> None:
    """O2: no tenant writes a status."""
    namespace = await players.tenant(name, quotas={GPU: "2"}, entitled=True)
    await players.order(namespace, "d1", "a10", 2)
    with pytest.raises(Rejected, match="forbidden"):
        await players.tenant_port.patch(DEVICE, namespace, "d1", {"status": {"phase": "Held"}}, subresource="status")
    await players.tenant(name, quotas={"nvidia.com/other": "1"})
    release = await players.get(RELEASE, "tenant-root", f"tenant-{name}")
    assert release is not None
    assert release["spec"]["values"]["resourceQuotas"] == {"nvidia.com/other": "1"}
    labels = (await players.get(NAMESPACE, "", namespace) or {})["metadata"]["labels"]
    assert labels["gpu.cozystack.io/vgpu-entitlement"] == "true"


async def test_the_charts_webhooks_by_url(control_plane: ControlPlane, players: RealPlayers, name: str) -> None:
    """W1-W4: each of the four paths is asked for what the chart selects, from the moment of registration to that
    of its end."""
    asked: list[str] = []

    def answer(path: str) -> Any:
        async def call(review: dict[str, Any]) -> dict[str, Any]:
            asked.append(f"{path} {review['request']['operation']}")
            response = {"uid": review["request"]["uid"], "allowed": True}
            return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

        return call

    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 2})
    paths = ("/admit/devices", "/admit/machines", "/admit/pods", "/admit/tenants")
    server = WebhookServer(control_plane.authority, {path: answer(path) for path in paths})
    await server.start()
    try:
        await register_webhooks(control_plane, server.base_url, server.ca_pem)
        for kind in (MUTATING, VALIDATING):
            assert await players.get(kind, "", CONFIGURATION) is not None
        await players.order(namespace, "d1", "a10")
        assert asked == ["/admit/devices CREATE"]
        await players.vmi(namespace, "v1", ["d1"], spec=gpus(1))
        await running(players, namespace, "v1")
        assert asked[1:] == ["/admit/machines CREATE", "/admit/machines CREATE", "/admit/pods CREATE"]
        await players.vmi(namespace, "v2", spec=gpus(1))
        await running(players, namespace, "v2")
        assert len(asked) == 4, "neither a VMI without references nor its launcher concerns us"
        await players.tenant(name, quotas={"gpu.cozystack.io/a10": 1})
        assert asked[4:] == ["/admit/tenants UPDATE"]
        await unregister(control_plane)
        await players.order(namespace, "d2", "a10")
        assert len(asked) == 5
    finally:
        await unregister(control_plane)
        await server.stop()


async def test_players_survive_an_api_server_that_restarts(
    control_plane: ControlPlane, players: RealPlayers, name: str
) -> None:
    """C38: every watch breaks; what happens afterwards is seen."""
    namespace = await players.tenant(name)
    await players.add_node(f"{name}-n1", {GPU: 1})
    await asyncio.to_thread(control_plane.restart_apiserver)
    await players.vmi(namespace, "v1", spec=gpus(1))
    await running(players, namespace, "v1")


async def test_stop_leaves_nothing_behind(control_plane: ControlPlane, name: str) -> None:
    """The next test finds an empty cluster, whatever finalizers a binder that is gone has left."""
    players = RealPlayers(control_plane)
    await players.start()
    reader = RealPlayers(control_plane)
    try:
        namespace = await players.tenant(name)
        await players.kubevirt({GPU: "10DE:2236"})
        await players.gpu_class(f"{name}-class", GPU)
        await players.add_node(f"{name}-n1", {GPU: 1})
        await players.report(f"{name}-n1", [])
        await players.vm(namespace, "m1", spec=gpus(1))
        await running(players, namespace, "m1")
        await players.order(namespace, "d1", f"{name}-class")
        for kind, inside, each, finalizer in (
            (DEVICE, namespace, "d1", DEVICE_FINALIZER),
            (CLASS, "", f"{name}-class", CLASS_FINALIZER),
        ):
            await players.admin.patch(kind, inside, each, {"metadata": {"finalizers": [finalizer]}})
    finally:
        await players.stop()
    await reader.start()
    try:
        for kind in (VM, VMI, DEVICE, POD):
            assert await reader.list(kind, namespace) == []
        for kind, each in ((NODE, f"{name}-n1"), (GPU_NODE, f"{name}-n1"), (CLASS, f"{name}-class")):
            with pytest.raises(NotFound):
                await reader.admin.get(kind, "", each)
        assert await reader.get(RELEASE, "tenant-root", f"tenant-{name}") is None
        await gone(reader, NAMESPACE, "", namespace, 120)
    finally:
        await reader.stop()
