"""The simulated KubeVirt, scheduler and kubelets behave like the real ones (C03, C04, C10, C26, R7)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reconciler.cluster.memory import MemoryCluster, Webhook
from reconciler.cluster.memory.ecosystem import Ecosystem
from reconciler.cluster.memory.pods import requests_of
from reconciler.cluster.port import Rejected
from reconciler.core.model import wire
from reconciler.core.model.objects import (
    CLASS,
    DEVICE,
    GPU_NODE,
    KUBEVIRT,
    NAMESPACE,
    NODE,
    POD,
    RELEASE,
    VMI,
    Function,
)
from reconciler.core.model.vocabulary import (
    CREATED_BY_LABEL,
    DEVICES_LABEL,
    DOMAIN_ANNOTATION,
    KUBEVIRT_LABEL,
    LAUNCHER,
    SCHEDULABLE_LABEL,
)
from tests.edges.memory_cluster import cluster, device

GPU = "nvidia.com/A100"


@pytest.fixture
def api() -> MemoryCluster:
    return cluster()


@pytest.fixture
async def ecosystem(api: MemoryCluster) -> Ecosystem:
    made = Ecosystem(api)
    await made.tenant("root")
    await made.tenant("a")
    return made


async def settled(ecosystem: Ecosystem) -> None:
    for _ in range(20):
        if not await ecosystem.settle_step():
            return
    raise AssertionError("the players never came to rest")


def gpus(count: int) -> dict[str, Any]:
    entries = [{"name": f"g{index}", "deviceName": GPU} for index in range(count)]
    return {"domain": {"memory": {"guest": "4Gi"}, "devices": {"gpus": entries}}}


def vmi_status(api: MemoryCluster, name: str = "v1") -> dict[str, Any]:
    found = api.peek(VMI, "tenant-a", name)
    assert found is not None
    return found.get("status", {})


async def test_a_vmi_gets_a_launcher_a_node_and_runs_r7(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    """R7: activePods lists the launcher's uid and node."""
    await ecosystem.add_node("n1", {GPU: 2})
    api.admission.unregister("virt-api-mutator")
    await ecosystem.vmi("tenant-a", "v1", ["d1"], spec={**gpus(2), "tolerations": [{"operator": "Exists"}]})
    await settled(ecosystem)
    vmi = api.peek(VMI, "tenant-a", "v1")
    (pod,) = api.peek_all(POD)
    assert vmi is not None
    uid = vmi["metadata"]["uid"]
    assert vmi["status"] == {
        "phase": "Running",
        "nodeName": "n1",
        "activePods": {pod["metadata"]["uid"]: "n1"},
    }
    labels = pod["metadata"]["labels"]
    assert labels[KUBEVIRT_LABEL] == LAUNCHER and labels[CREATED_BY_LABEL] == uid and labels[DEVICES_LABEL]
    assert pod["metadata"]["annotations"][DOMAIN_ANNOTATION] == "v1"
    assert pod["metadata"]["name"].startswith("virt-launcher-v1-")
    assert pod["metadata"]["ownerReferences"][0]["uid"] == uid
    assert pod["spec"]["nodeSelector"] == {SCHEDULABLE_LABEL: "true"}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert requests_of(pod) == {GPU: 2, "memory": 4 << 30}
    reader = wire.decode_object(POD, await api.get(POD, "tenant-a", pod["metadata"]["name"]))
    assert reader.launcher and reader.requests == {GPU: 2} and reader.vmi_name == "v1"


async def test_kubevirt_sums_devices_and_resources_c10(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    """C10b: one device and a limit of one is a request of two."""
    spec = gpus(1)
    spec["domain"]["resources"] = {"limits": {GPU: "1"}}
    await ecosystem.vmi("tenant-a", "v1", spec=spec)
    await settled(ecosystem)
    assert requests_of(api.peek_all(POD)[0])[GPU] == 2


async def test_a_launcher_that_admission_refuses_is_tried_again(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    async def deny(review: dict[str, Any]) -> dict[str, Any]:
        return {"response": {"uid": review["request"]["uid"], "allowed": False, "status": {"message": "no"}}}

    api.admission.register(Webhook("pods", deny, (POD.name,)))
    await ecosystem.add_node("n1", {})
    await ecosystem.vmi("tenant-a", "v1")
    await settled(ecosystem)
    assert vmi_status(api)["phase"] == "Pending"
    assert 'webhook "pods" denied' in vmi_status(api)["conditions"][0]["message"]
    api.admission.unregister("pods")
    await settled(ecosystem)
    assert vmi_status(api)["phase"] == "Running" and "conditions" not in vmi_status(api)


async def test_a_deleted_vmi_goes_after_its_launcher(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    await ecosystem.add_node("n1", {})
    await ecosystem.vmi("tenant-a", "v1")
    body = device("d1")
    body["metadata"]["ownerReferences"] = [
        {"kind": "VirtualMachineInstance", "uid": api.peek_all(VMI)[0]["metadata"]["uid"]}
    ]
    await api.create(DEVICE, "tenant-a", body)
    await settled(ecosystem)
    ecosystem.kubelets.hold("n1")
    await ecosystem.stop("tenant-a", "v1")
    await settled(ecosystem)
    assert api.peek_all(VMI) and api.peek_all(POD)[0]["metadata"]["deletionTimestamp"], "the kubelet is held"
    ecosystem.kubelets.let_go("n1")
    await settled(ecosystem)
    assert api.peek_all(VMI) == api.peek_all(POD) == api.peek_all(DEVICE) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_guest_that_ends_ends_its_vmi(api: MemoryCluster, ecosystem: Ecosystem, phase: str) -> None:
    await ecosystem.add_node("n1", {})
    await ecosystem.vmi("tenant-a", "v1")
    await settled(ecosystem)
    await ecosystem.finish("tenant-a", "v1", phase)
    await settled(ecosystem)
    assert vmi_status(api)["phase"] == phase
    assert len(api.peek_all(POD)) == 1, "a finished VMI gets no new launcher"


async def test_a_vmi_whose_launcher_vanishes_has_failed(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    await ecosystem.add_node("n1", {})
    await ecosystem.vmi("tenant-a", "v1")
    await settled(ecosystem)
    await api.delete(POD, "tenant-a", api.peek_all(POD)[0]["metadata"]["name"])
    await settled(ecosystem)
    assert vmi_status(api) == {"phase": "Failed", "nodeName": "n1", "activePods": {}}
    await api.delete(NODE, "", "n1")
    await settled(ecosystem)


async def test_a_pod_beyond_allocatable_fails_for_good(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    await ecosystem.add_node("n1", {GPU: 2})
    await ecosystem.vmi("tenant-a", "v1", spec=gpus(2))
    ecosystem.kubelets.hold("n1")
    await settled(ecosystem)
    await ecosystem.allocatable("n1", {GPU: 1})
    ecosystem.kubelets.let_go("n1")
    await settled(ecosystem)
    (pod,) = api.peek_all(POD)
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 2, Available: 1" in pod["status"]["message"]
    assert vmi_status(api)["phase"] == "Failed"


async def test_the_scheduler_counts_what_is_there_c03(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    """C03: finished pods hold nothing, pods that wait on a node do."""
    await ecosystem.add_node("n1", {GPU: 2})
    ecosystem.kubelets.hold("n1")
    await ecosystem.pod("tenant-a", "failed", {GPU: 2}, node="n1")
    await api.patch(POD, "tenant-a", "failed", {"status": {"phase": "Failed"}}, subresource="status")
    for name in ("p1", "p2", "p3"):
        await ecosystem.pod("tenant-a", name, {GPU: 1})
    await settled(ecosystem)
    nodes = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in api.peek_all(POD)}
    assert nodes == {"failed": "n1", "p1": "n1", "p2": "n1", "p3": None}
    waiting = api.peek(POD, "tenant-a", "p3")
    assert waiting is not None
    assert waiting["status"]["conditions"][0]["message"] == f"0/1 nodes are available: 1 Insufficient {GPU}."


def test_init_containers_and_sidecars_are_counted_as_the_scheduler_does_c04() -> None:
    """C04: 3 with the sidecar before the second init container, 2 with it last."""

    def container(units: int, **rest: str) -> dict[str, Any]:
        return {"resources": {"limits": {GPU: str(units)}}, **rest}

    side = container(1, restartPolicy="Always")
    main = [container(1)]
    early = {"spec": {"initContainers": [container(1), side, container(2)], "containers": main}}
    late = {"spec": {"initContainers": [container(1), container(2), side], "containers": main}}
    assert (requests_of(early)[GPU], requests_of(late)[GPU]) == (3, 2)


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "node"),
    [
        ({}, "n1"),
        ({"nodeSelector": {"zone": "b"}}, "n2"),
        (affinity(expression("zone", "In", "b", "c")), "n2"),
        (affinity(expression("zone", "NotIn", "a")), "n2"),
        (affinity(expression("cards", "Gt", "2")), "n2"),
        (affinity(expression("none", "Exists"), expression("zone", "In", "b")), "n2"),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), "n2"),
        (affinity({}), None),
        (affinity(), None),
        (
            affinity(expression("zone", "In", "c")) | {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
            "n3",
        ),
        (affinity(expression("zone", "In", "c")) | {"tolerations": [{"key": "gpu", "value": "x"}]}, None),
        ({"nodeSelector": {"zone": "d"}}, None),
    ],
)
async def test_the_scheduler_follows_node_rules_c26(
    api: MemoryCluster, ecosystem: Ecosystem, spec: dict[str, Any], node: str | None
) -> None:
    """C26, C22: cordons, taints, selectors, terms as alternatives, an empty term that matches nothing."""
    await ecosystem.add_node("n1", {}, {"zone": "a", "cards": "2"})
    await ecosystem.add_node("n2", {}, {"zone": "b", "cards": "4"})
    await ecosystem.add_node("n3", {}, {"zone": "c"}, taints=[{"key": "gpu", "effect": "NoSchedule"}])
    await ecosystem.add_node("n4", {}, {"zone": "d"})
    await ecosystem.cordon("n4")
    await ecosystem.vmi("tenant-a", "v1", spec={"domain": {}, **spec})
    await settled(ecosystem)
    assert api.peek_all(POD)[0]["spec"].get("nodeName") == node


async def test_a_silent_node_changes_nothing_and_a_removed_one_takes_its_pods_c05(
    api: MemoryCluster, ecosystem: Ecosystem
) -> None:
    """C05: a pod on an unreachable node stays Terminating; it goes with the node."""
    await ecosystem.add_node("n1", {})
    await ecosystem.vmi("tenant-a", "v1")
    await settled(ecosystem)
    await ecosystem.ready("n1", "Unknown")
    await ecosystem.stop("tenant-a", "v1")
    await settled(ecosystem)
    assert "deletionTimestamp" in api.peek_all(POD)[0]["metadata"]
    await api.delete(NODE, "", "n1")
    await settled(ecosystem)
    assert api.peek_all(POD) == api.peek_all(VMI) == []


async def test_what_the_hoster_lays_down_is_what_the_product_reads(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    """R1, R2, R5, K5: every helper's object decodes into the model."""
    below = await ecosystem.tenant("x", "tenant-a", {GPU: 2, "gpu.example/b": "1"}, entitled=True)
    assert below == "tenant-a-x"
    await ecosystem.tenant("x", "tenant-a", {GPU: 4})
    await ecosystem.kubevirt({GPU: "10DE:20B0", "nvidia.com/T4-4Q": "GRID T4-4Q"})
    await ecosystem.gpu_class("a100", GPU, max_count=8)
    await ecosystem.add_node("n1", {GPU: 2}, taints=[{"key": "gpu", "effect": "NoSchedule"}])
    await ecosystem.report("n1", [Function(id="0000:3b:00.0", resource_name=GPU)])
    await ecosystem.order("tenant-a", "d1", "a100", 2)

    async def only(kind: Any, namespace: str, name: str) -> Any:
        return wire.decode_object(kind, await api.get(kind, namespace, name))

    assert (await only(RELEASE, "tenant-a", "tenant-x")).quotas == {GPU: 4}
    assert (await only(NAMESPACE, "", "tenant-a-x")).entitlement == "true"
    permitted = (await only(KUBEVIRT, "cozy-kubevirt", "kubevirt")).permitted
    assert [(entry.resource_name, entry.mediated) for entry in permitted] == [
        (GPU, False),
        ("nvidia.com/T4-4Q", True),
    ]
    assert (await only(CLASS, "", "a100")).max_count == 8
    node = await only(NODE, "", "n1")
    assert node.ready and node.allocatable == {GPU: 2} and node.memory == 256 << 30 and node.taints
    report = await only(GPU_NODE, "", "n1")
    assert report.functions[0].resource_name == GPU and report.reported_at == api.store.clock() // 1000 * 1000
    assert (await only(DEVICE, "tenant-a", "d1")).count == 2
    with pytest.raises(ValueError, match="owns no namespace"):
        await ecosystem.tenant("", "tenant-a")


async def test_virt_api_makes_reinvocation_real_b4(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    """B4: a webhook that asks for it sees every VMI twice, the second time with virt-api's defaults."""
    seen: list[dict[str, Any]] = []

    async def ours(review: dict[str, Any]) -> dict[str, Any]:
        seen.append(review["request"]["object"])
        return {"response": {"uid": review["request"]["uid"], "allowed": True}}

    api.admission.register(Webhook("machines", ours, (VMI.name,), mutating=True, reinvocation=True))
    await ecosystem.vmi("tenant-a", "v1", ["d1", {"className": "a100", "count": 2}])
    assert ["machine" in each["spec"]["domain"] for each in seen] == [False, True]
    (annotation,) = seen[0]["metadata"]["annotations"].values()
    assert msgspec.json.decode(annotation) == [
        {"device": "d1"},
        {"template": {"className": "a100", "count": 2}},
    ]
    await ecosystem.vmi("tenant-a", "v2", dry_run=True)
    assert len(api.peek_all(VMI)) == 1


async def test_a_tenant_is_told_the_refusal(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    with pytest.raises(Rejected, match="greater than or equal to 1"):
        await ecosystem.order("tenant-a", "d1", "a100", 0)
