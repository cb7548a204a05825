"""The real test cluster behaves like a cluster before anything of gpu-binder runs on it."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from reconciler.cluster.memory.pods import node_of, phase_of, requests_of
from reconciler.cluster.memory.virt_api import MUTATOR
from reconciler.cluster.port import NotFound, Rejected
from reconciler.core.model.objects import CLASS, DEVICE, GPU_NODE, NAMESPACE, NODE, POD, RELEASE, VMI, Function
from reconciler.core.model.vocabulary import (
    CLASS_FINALIZER,
    CREATED_BY_LABEL,
    DEVICE_FINALIZER,
    DEVICES_LABEL,
    DOMAIN_ANNOTATION,
    KUBEVIRT_LABEL,
    LAUNCHER,
    MIGRATION_LABEL,
)
from tests.realserver.controlplane import ControlPlane
from tests.realserver.ecosystem import RealEcosystem
from tests.realserver.kubevirt import VM, WebhookServer, webhook_configuration
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

GPU = "nvidia.com/GA102GL_A10"
pytestmark = pytest.mark.realserver


def gpus(count: int, **spec: Any) -> dict[str, Any]:
    entries = [{"name": f"g{index}", "deviceName": GPU} for index in range(count)]
    return {"domain": {"memory": {"guest": "1Gi"}, "devices": {"gpus": entries}}, **spec}


def on(node: str) -> dict[str, dict[str, str]]:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


async def phase(ecosystem: RealEcosystem, namespace: str, name: str) -> str:
    return phase_of(await ecosystem.get(VMI, namespace, name) or {})


async def running(ecosystem: RealEcosystem, namespace: str, name: str) -> dict[str, Any]:
    """Wait until the VMI runs; its status."""

    async def status() -> Any:
        vmi = await ecosystem.get(VMI, namespace, name)
        return vmi is not None and phase_of(vmi) == "Running" and vmi["status"]

    return await ecosystem.until(status, f"VMI {name} runs")


async def gone(ecosystem: RealEcosystem, kind: Any, namespace: str, name: str, seconds: float = 60) -> None:
    async def absent() -> bool:
        return await ecosystem.get(kind, namespace, name) is None

    await ecosystem.until(absent, f"{kind.name} {name} is gone", seconds)


async def test_a_vmi_gets_a_launcher_on_a_node_of_the_real_scheduler_and_runs(
    ecosystem: RealEcosystem, name: str
) -> None:
    """R7: activePods lists the launcher's uid; the scheduler takes the one node that has the units."""
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-small", {GPU: 1})
    await ecosystem.add_node(f"{name}-large", {GPU: 2})
    await ecosystem.vmi(namespace, "v1", ["d1"], spec=gpus(2))
    status = await running(ecosystem, namespace, "v1")
    (pod,) = await ecosystem.launchers(namespace, "v1")
    vmi = await ecosystem.get(VMI, namespace, "v1")
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


async def test_a_pod_beyond_allocatable_fails_for_good(ecosystem: RealEcosystem, name: str) -> None:
    """C01: allocatable falls to 0 between the scheduler and the kubelet."""
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 1})
    ecosystem.hold(f"{name}-n1")
    await ecosystem.vmi(namespace, "v1", spec=gpus(1))

    async def bound() -> Any:
        pods = await ecosystem.launchers(namespace, "v1")
        return bool(pods) and node_of(pods[0])

    assert await ecosystem.until(bound, "the launcher is bound") == f"{name}-n1"
    await ecosystem.allocatable(f"{name}-n1", {GPU: 0})
    await ecosystem.until(
        lambda: ecosystem.mirrors.get(NODE, "", f"{name}-n1")["status"]["allocatable"][GPU] == "0", "seen"
    )
    ecosystem.let_go(f"{name}-n1")

    async def failed() -> bool:
        return await phase(ecosystem, namespace, "v1") == "Failed"

    await ecosystem.until(failed, "the VMI fails")
    (pod,) = await ecosystem.launchers(namespace, "v1")
    assert phase_of(pod) == "Failed" and pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 1, Available: 0" in pod["status"]["message"]


async def test_a_launcher_that_does_not_fit_waits_for_units(ecosystem: RealEcosystem, name: str) -> None:
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 1})
    await ecosystem.vmi(namespace, "v1", spec=gpus(1))
    await running(ecosystem, namespace, "v1")
    await ecosystem.vmi(namespace, "v2", spec=gpus(1))

    async def unschedulable() -> bool:
        pods = await ecosystem.launchers(namespace, "v2")
        conditions = pods[0]["status"].get("conditions") or [] if pods else []
        return any(each.get("reason") == "Unschedulable" and GPU in each["message"] for each in conditions)

    await ecosystem.until(unschedulable, "the real scheduler says why")

    async def scheduling() -> bool:
        return await phase(ecosystem, namespace, "v2") == "Scheduling"

    await ecosystem.until(scheduling, "virt-controller says so too")
    await ecosystem.delete_vmi(namespace, "v1")
    await running(ecosystem, namespace, "v2")


async def test_a_guest_that_ends_takes_its_vmi_along(ecosystem: RealEcosystem, name: str) -> None:
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 2})
    for vmi, end in (("v1", "Succeeded"), ("v2", "Failed")):
        await ecosystem.vmi(namespace, vmi, spec=gpus(1))
        await running(ecosystem, namespace, vmi)
        await ecosystem.finish(namespace, vmi, end)

        async def ended(vmi: str = vmi, end: str = end) -> bool:
            return await phase(ecosystem, namespace, vmi) == end

        await ecosystem.until(ended, f"{vmi} is {end}")
        (pod,) = await ecosystem.launchers(namespace, vmi)
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]


async def test_a_virtual_machine_starts_stops_and_is_collected(ecosystem: RealEcosystem, name: str) -> None:
    """K1: the template's label and annotation reach VMI and launcher; the real garbage collector takes the VMI."""
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 1})
    await ecosystem.vm(namespace, "m1", ["d1"], spec=gpus(1))
    await running(ecosystem, namespace, "m1")
    (pod,) = await ecosystem.launchers(namespace, "m1")
    assert pod["metadata"]["labels"][DEVICES_LABEL] == "true" and "d1" in str(pod["metadata"]["annotations"])

    async def shown() -> bool:
        machine = await ecosystem.get(VM, namespace, "m1")
        return machine is not None and machine["status"].get("ready") is True

    await ecosystem.until(shown, "the machine is ready")
    await ecosystem.run_strategy(namespace, "m1", "Halted")
    await gone(ecosystem, VMI, namespace, "m1")
    await gone(ecosystem, POD, namespace, pod["metadata"]["name"])
    await ecosystem.run_strategy(namespace, "m1", "Always")
    await running(ecosystem, namespace, "m1")
    await ecosystem.tenant_port.delete(VM, namespace, "m1")
    await gone(ecosystem, VMI, namespace, "m1", 90)
    assert await ecosystem.launchers(namespace, "m1") == []


async def test_the_garbage_collector_takes_what_a_vmi_owned(ecosystem: RealEcosystem, name: str) -> None:
    """K2: an object that names the VMI as its owner goes with it, without a player's help."""
    namespace = await ecosystem.tenant(name)
    vmi = await ecosystem.vmi(namespace, "v1")
    owner = {"apiVersion": "kubevirt.io/v1", "kind": VMI.name, "name": "v1", "uid": vmi["metadata"]["uid"]}
    body = {"metadata": {"name": "d1", "ownerReferences": [owner]}, "spec": {"className": "a10", "count": 1}}
    await ecosystem.admin.create(DEVICE, namespace, body)
    await ecosystem.delete_vmi(namespace, "v1")
    await gone(ecosystem, VMI, namespace, "v1")
    await gone(ecosystem, DEVICE, namespace, "d1", 90)


async def test_a_pod_that_does_not_stop_stays_until_its_kubelet_lets_go(ecosystem: RealEcosystem, name: str) -> None:
    """C05: a launcher that is being deleted keeps its VMI."""
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 2})
    await ecosystem.vmi(namespace, "v1", spec=gpus(1))
    await running(ecosystem, namespace, "v1")
    ecosystem.hold_terminating(f"{name}-n1")
    await ecosystem.delete_vmi(namespace, "v1")

    async def terminating() -> bool:
        return any("deletionTimestamp" in pod["metadata"] for pod in await ecosystem.launchers(namespace, "v1"))

    await ecosystem.until(terminating, "the launcher is terminating")
    await ecosystem.vmi(namespace, "v2", spec=gpus(1))
    await running(ecosystem, namespace, "v2")
    assert await ecosystem.get(VMI, namespace, "v1") is not None and await terminating()
    ecosystem.let_go(f"{name}-n1")
    await gone(ecosystem, VMI, namespace, "v1")


async def test_reinvocation_is_real(control_plane: ControlPlane, ecosystem: RealEcosystem, name: str) -> None:
    """B4: a webhook before virt-api's is called a second time, with another review uid and virt-api's change."""
    seen: list[dict[str, Any]] = []

    async def watcher(review: dict[str, Any]) -> dict[str, Any]:
        seen.append(review["request"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

    namespace = await ecosystem.tenant(name)
    server = WebhookServer(control_plane.authority, {"/watch": watcher})
    await server.start()
    configuration = f"gpu-binder-watcher-{name}"
    assert configuration < MUTATOR and CONFIGURATION < MUTATOR
    rule = {
        "apiGroups": [VMI.group],
        "apiVersions": [VMI.version],
        "resources": [VMI.plural],
        "operations": ["CREATE"],
    }
    inside = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    body = webhook_configuration(
        configuration,
        "watcher.example.org",
        f"{server.base_url}/watch",
        server.ca_pem,
        rule,
        reinvocationPolicy="IfNeeded",
        namespaceSelector=inside,
    )
    try:
        await put(ecosystem.admin, MUTATING, body)
        await in_force(ecosystem.admin)
        await ecosystem.vmi(namespace, "v1", spec=gpus(1))
        first, second = seen
        assert first["uid"] != second["uid"]
        assert "machine" not in first["object"]["spec"]["domain"]
        assert second["object"]["spec"]["domain"]["machine"] == {"type": "q35"}
        assert "uid" not in second["object"]["metadata"], "a VMI being created has none yet"
        once = copy.deepcopy(body)
        once["webhooks"][0]["reinvocationPolicy"] = "Never"
        await put(ecosystem.admin, MUTATING, once)
        await in_force(ecosystem.admin)
        await ecosystem.vmi(namespace, "v2", dry_run=True)
        assert len(seen) == 3 and seen[2]["dryRun"] is True
        assert await ecosystem.get(VMI, namespace, "v2") is None
    finally:
        await remove(ecosystem.admin, MUTATING, configuration)
        await server.stop()


async def test_a_refused_launcher_is_tried_again(
    control_plane: ControlPlane, ecosystem: RealEcosystem, name: str
) -> None:
    """W3: while a webhook refuses the launcher, the VMI says so; afterwards it starts by itself."""
    refusing = True

    async def guard(review: dict[str, Any]) -> dict[str, Any]:
        response = {"uid": review["request"]["uid"], "allowed": not refusing, "status": {"message": "not placed"}}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 1})
    server = WebhookServer(control_plane.authority, {"/guard": guard})
    await server.start()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    inside = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    url = f"{server.base_url}/guard"
    configuration = f"guard-{name}"
    body = webhook_configuration(configuration, "guard.example.org", url, server.ca_pem, rule, namespaceSelector=inside)
    try:
        await put(ecosystem.admin, MUTATING, body)
        await in_force(ecosystem.admin)
        await ecosystem.vmi(namespace, "v1", spec=gpus(1))

        async def says_why() -> bool:
            vmi = await ecosystem.get(VMI, namespace, "v1")
            return "not placed" in str((vmi or {}).get("status", {}).get("conditions"))

        await ecosystem.until(says_why, "the VMI shows the refusal")
        assert await ecosystem.launchers(namespace, "v1") == []
        refusing = False
        await running(ecosystem, namespace, "v1")
    finally:
        await remove(ecosystem.admin, MUTATING, configuration)
        await server.stop()


async def test_a_migration_target_is_another_launcher_of_the_vmi(ecosystem: RealEcosystem, name: str) -> None:
    """C09, C24: both pods are in activePods, on two nodes."""
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 1})
    await ecosystem.add_node(f"{name}-n2", {GPU: 1})
    await ecosystem.vmi(namespace, "v1", spec=gpus(1))
    source = (await running(ecosystem, namespace, "v1"))["nodeName"]
    target = await ecosystem.migrate(namespace, "v1", "job-1")
    assert target["metadata"]["labels"][MIGRATION_LABEL] == "job-1"

    async def both() -> bool:
        vmi = await ecosystem.get(VMI, namespace, "v1")
        active = (vmi or {}).get("status", {}).get("activePods") or {}
        return set(active.values()) == {f"{name}-n1", f"{name}-n2"}

    await ecosystem.until(both, "both launchers are listed on their nodes")
    vmi = await ecosystem.get(VMI, namespace, "v1")
    assert vmi is not None and vmi["status"]["nodeName"] == source


async def test_a_namespace_with_machines_goes_away(ecosystem: RealEcosystem, name: str) -> None:
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 1})
    await ecosystem.vm(namespace, "m1", spec=gpus(1))
    await running(ecosystem, namespace, "m1")
    await ecosystem.admin.delete(NAMESPACE, "", namespace)
    await gone(ecosystem, NAMESPACE, "", namespace, 120)


async def test_nodes_are_cordoned_reported_and_deleted(ecosystem: RealEcosystem, name: str) -> None:
    """O3: a report is dated; a cordoned, tainted or silent node takes no launcher, one that is let go again does."""
    namespace = await ecosystem.tenant(name)
    node = f"{name}-n1"
    await ecosystem.add_node(node, {GPU: 1})
    await ecosystem.cordon(node)

    async def closed() -> bool:
        found = await ecosystem.get(NODE, "", node)
        taints = (found or {}).get("spec", {}).get("taints") or []
        return any(taint["key"] == "node.kubernetes.io/unschedulable" for taint in taints)

    await ecosystem.until(closed, "the real node controller taints the cordoned node")
    await ecosystem.vmi(namespace, "v1", spec=gpus(1, **on(node)))

    async def waiting() -> bool:
        pods = await ecosystem.launchers(namespace, "v1")
        return bool(pods) and bool(pods[0]["status"].get("conditions")) and not node_of(pods[0])

    await ecosystem.until(waiting, "the scheduler has tried")
    await ecosystem.cordon(node, on=False)
    await running(ecosystem, namespace, "v1")
    function = Function(id="0000:3b:00.0", stable_id="GPU-1", resource_name=GPU)
    await ecosystem.report(node, [function])
    first = await ecosystem.get(GPU_NODE, "", node)
    assert first is not None and first["status"]["functions"][0]["resourceName"] == GPU
    await ecosystem.report(node)
    again = await ecosystem.get(GPU_NODE, "", node)
    assert again is not None and again["status"]["functions"] == first["status"]["functions"]
    assert again["status"]["reportedAt"] >= first["status"]["reportedAt"]
    await ecosystem.delete_node(node)
    await gone(ecosystem, NODE, "", node)


async def test_a_tenant_has_no_more_rights_than_it_needs(ecosystem: RealEcosystem, name: str) -> None:
    """O2: no tenant writes a status."""
    namespace = await ecosystem.tenant(name, quotas={GPU: "2"}, entitled=True)
    await ecosystem.order(namespace, "d1", "a10", 2)
    with pytest.raises(Rejected, match="forbidden"):
        await ecosystem.tenant_port.patch(DEVICE, namespace, "d1", {"status": {"phase": "Held"}}, subresource="status")
    await ecosystem.tenant(name, quotas={"nvidia.com/other": "1"})
    release = await ecosystem.get(RELEASE, "tenant-root", f"tenant-{name}")
    assert release is not None
    assert release["spec"]["values"]["resourceQuotas"] == {"nvidia.com/other": "1"}
    labels = (await ecosystem.get(NAMESPACE, "", namespace) or {})["metadata"]["labels"]
    assert labels["gpu.cozystack.io/vgpu-entitlement"] == "true"


async def test_the_charts_webhooks_by_url(control_plane: ControlPlane, ecosystem: RealEcosystem, name: str) -> None:
    """W1-W4: each of the four paths is asked for what the chart selects, from the moment of registration to that
    of its end."""
    asked: list[str] = []

    def answer(path: str) -> Any:
        async def call(review: dict[str, Any]) -> dict[str, Any]:
            asked.append(f"{path} {review['request']['operation']}")
            response = {"uid": review["request"]["uid"], "allowed": True}
            return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

        return call

    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 2})
    paths = ("/admit/devices", "/admit/machines", "/admit/pods", "/admit/tenants")
    server = WebhookServer(control_plane.authority, {path: answer(path) for path in paths})
    await server.start()
    try:
        await register_webhooks(control_plane, server.base_url, server.ca_pem)
        for kind in (MUTATING, VALIDATING):
            assert await ecosystem.get(kind, "", CONFIGURATION) is not None
        await ecosystem.order(namespace, "d1", "a10")
        assert asked == ["/admit/devices CREATE"]
        await ecosystem.vmi(namespace, "v1", ["d1"], spec=gpus(1))
        await running(ecosystem, namespace, "v1")
        assert asked[1:] == ["/admit/machines CREATE", "/admit/machines CREATE", "/admit/pods CREATE"]
        await ecosystem.vmi(namespace, "v2", spec=gpus(1))
        await running(ecosystem, namespace, "v2")
        assert len(asked) == 4, "neither a VMI without references nor its launcher concerns us"
        await ecosystem.tenant(name, quotas={"gpu.cozystack.io/a10": 1})
        assert asked[4:] == ["/admit/tenants UPDATE"]
        await unregister(control_plane)
        await ecosystem.order(namespace, "d2", "a10")
        assert len(asked) == 5
    finally:
        await unregister(control_plane)
        await server.stop()


async def test_players_survive_an_api_server_that_restarts(
    control_plane: ControlPlane, ecosystem: RealEcosystem, name: str
) -> None:
    """C38: every watch breaks; what happens afterwards is seen."""
    namespace = await ecosystem.tenant(name)
    await ecosystem.add_node(f"{name}-n1", {GPU: 1})
    await asyncio.to_thread(control_plane.restart_apiserver)
    await ecosystem.vmi(namespace, "v1", spec=gpus(1))
    await running(ecosystem, namespace, "v1")


async def test_stop_leaves_nothing_behind(control_plane: ControlPlane, name: str) -> None:
    """The next test finds an empty cluster, whatever finalizers a binder that is gone has left."""
    ecosystem = RealEcosystem(control_plane)
    await ecosystem.start()
    reader = RealEcosystem(control_plane)
    try:
        namespace = await ecosystem.tenant(name)
        await ecosystem.kubevirt({GPU: "10DE:2236"})
        await ecosystem.gpu_class(f"{name}-class", GPU)
        await ecosystem.add_node(f"{name}-n1", {GPU: 1})
        await ecosystem.report(f"{name}-n1", [])
        await ecosystem.vm(namespace, "m1", spec=gpus(1))
        await running(ecosystem, namespace, "m1")
        await ecosystem.order(namespace, "d1", f"{name}-class")
        for kind, inside, each, finalizer in (
            (DEVICE, namespace, "d1", DEVICE_FINALIZER),
            (CLASS, "", f"{name}-class", CLASS_FINALIZER),
        ):
            await ecosystem.admin.patch(kind, inside, each, {"metadata": {"finalizers": [finalizer]}})
    finally:
        await ecosystem.stop()
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
