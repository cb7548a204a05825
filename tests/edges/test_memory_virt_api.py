"""The simulated virt-api behaves like the real one: no status subresource of VMIs, refusals after ours (R7, V3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reconciler.cluster.memory import MemoryCluster, Webhook
from reconciler.cluster.memory.admission import Review
from reconciler.cluster.memory.ecosystem import Ecosystem
from reconciler.cluster.port import ClusterError, Rejected
from reconciler.core.model.objects import POD, VMI
from tests.edges.memory_cluster import cluster

DISK = {"domain": {"devices": {"disks": [{"name": "root"}]}}}


@pytest.fixture
def api() -> MemoryCluster:
    return cluster()


@pytest.fixture
async def ecosystem(api: MemoryCluster) -> Ecosystem:
    made = Ecosystem(api)
    await made.tenant("root")
    await made.tenant("a")
    await made.add_node("n1", {})
    return made


async def settled(ecosystem: Ecosystem) -> None:
    while await ecosystem.settle_step():
        pass


def vmi(api: MemoryCluster) -> dict[str, Any]:
    found = api.peek(VMI, "tenant-a", "v1")
    assert found is not None
    return found


async def test_a_status_given_at_creation_is_pending_and_lasts_until_the_first_sync(
    api: MemoryCluster, ecosystem: Ecosystem
) -> None:
    given = {"phase": "Running", "activePods": {"forged": "n1"}}
    await ecosystem.tenant_port.create(VMI, "tenant-a", {"metadata": {"name": "v1"}, "spec": {}, "status": given})
    assert vmi(api)["status"] == {"phase": "Pending", "activePods": {"forged": "n1"}}
    await settled(ecosystem)
    (launcher,) = api.peek_all(POD, "tenant-a")
    assert vmi(api)["status"] == {
        "phase": "Running",
        "nodeName": "n1",
        "activePods": {launcher["metadata"]["uid"]: "n1"},
    }


async def test_a_tenants_status_is_reverted_on_update(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    await ecosystem.vmi("tenant-a", "v1")
    await settled(ecosystem)
    before = vmi(api)["status"]
    change = {"metadata": {"labels": {"kept": "yes"}}, "status": {"phase": "Succeeded", "activePods": {"forged": "n1"}}}
    await ecosystem.tenant_port.patch(VMI, "tenant-a", "v1", change)
    assert vmi(api)["status"] == before and vmi(api)["metadata"]["labels"] == {"kept": "yes"}
    with pytest.raises(ClusterError):
        await ecosystem.tenant_port.patch(VMI, "tenant-a", "v1", change, subresource="status")


async def test_a_tenant_cannot_change_the_spec(ecosystem: Ecosystem) -> None:
    await ecosystem.vmi("tenant-a", "v1")
    with pytest.raises(Rejected, match="update of VMI object is restricted"):
        await ecosystem.tenant_port.patch(VMI, "tenant-a", "v1", {"spec": {"hostname": "other"}})


async def test_b4_an_unknown_disk_is_refused_after_every_mutating_webhook(
    api: MemoryCluster, ecosystem: Ecosystem
) -> None:
    called: list[str] = []

    async def ours(review: Review) -> Review:
        called.append(review["request"]["uid"])
        return {"response": {"uid": review["request"]["uid"], "allowed": True}}

    api.admission.register(Webhook("gpu-binder", ours, (VMI.name,), mutating=True))
    with pytest.raises(Rejected, match="'root' not found"):
        await ecosystem.vmi("tenant-a", "v1", spec=DISK)
    assert called and api.peek(VMI, "tenant-a", "v1") is None
    await ecosystem.vmi("tenant-a", "v1", spec=DISK | {"volumes": [{"name": "root"}]})


async def test_r8_only_pods_with_a_kubevirt_label_are_listed(api: MemoryCluster, ecosystem: Ecosystem) -> None:
    await ecosystem.vmi("tenant-a", "v1")
    await settled(ecosystem)
    listed = vmi(api)["status"]["activePods"]
    owner = {"apiVersion": VMI.api_version, "kind": VMI.name, "name": "v1", "controller": True}
    owner["uid"] = vmi(api)["metadata"]["uid"]
    pods = {}
    for name, labels in (("labelled", {"kubevirt.io": "any"}), ("bare", {})):
        body = {
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "main"}]},
        }
        pods[name] = msgspec.json.decode(await api.create(POD, "tenant-a", body))["metadata"]["uid"]
    await settled(ecosystem)
    assert vmi(api)["status"]["activePods"] == {**listed, pods["labelled"]: "n1"}
