"""The webhooks on the folded state of real replicas: binder, reinvocation and release are the product's own."""

import asyncio

import pytest

from journal.store import MemoryJournal
from reconciler.cluster import Rejected
from reconciler.core.objects import DEVICE, POD, VMI
from reconciler.embedded import SERVICE_ACCOUNT
from reconciler.memory import Webhook
from reconciler.memory.manifests import vmi_body
from reconciler.stage import Stage

A10 = "nvidia.com/GA102GL_A10"
NS = "tenant-acme"
MIXED = ["d1", "d2", {"className": "a10", "count": 2}]


@pytest.fixture
async def stage():
    stage = Stage()
    await stage.open()
    for node, units in (("gpu-1", 4), ("gpu-2", 2)):
        await stage.players.add_node(node, {A10: units})
    await stage.players.kubevirt({A10: "10DE:2236"})
    await stage.players.gpu_class("a10", A10)
    await stage.players.tenant("acme", quotas={"gpu.cozystack.io/a10": "8"})
    await stage.add_replica(MemoryJournal(), "binder-0")
    await stage.later(5)
    for name in ("d1", "d2"):
        await stage.do(stage.players.order(NS, name, "a10"))
    await stage.settle()
    yield stage
    await stage.close()


def devices(stage):
    return {body["metadata"]["name"]: body for body in stage.cluster.peek_all(DEVICE, NS)}


def writes(stage, kind=DEVICE):
    return [found for found in stage.cluster.writes if found.kind == kind.name and found.applied]


def by_webhook(stage):
    """Device writes of starts: creations, attachments and what undoes them."""
    return [
        found
        for found in writes(stage)
        if found.user == SERVICE_ACCOUNT
        and (found.verb in ("create", "delete") or "attachment" in (found.body or {}).get("status", {}))
    ]


def start(stage, name="vm1", references=MIXED, **more):
    return stage.do(stage.players.vmi(NS, name, references, **more))


async def test_w2_w3_b4_a_start_survives_reinvocation_with_nothing_written_twice(stage):
    before = len(by_webhook(stage))
    vmi = await start(stage)
    await stage.settle()
    assert len(vmi["spec"]["domain"]["devices"]["gpus"]) == 4
    assert "resources" not in vmi["spec"]["domain"]
    assert vmi["spec"]["domain"]["machine"] == {"type": "q35"}, "virt-api's mutator ran, so ours ran again"
    assert len(by_webhook(stage)) - before == 1 + 3
    nodes = {body["status"]["placement"]["node"] for body in devices(stage).values()}
    assert nodes == {"gpu-1"}
    launcher = stage.cluster.peek_all(POD, NS)[0]
    terms = launcher["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][-1]["matchFields"] == [
        {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
    ]
    assert launcher["spec"]["nodeName"] == "gpu-1"


async def test_b5_c16_a_dry_run_leaves_no_trace(stage):
    before = (len(writes(stage)), len(writes(stage, VMI)))
    vmi = await start(stage, dry_run=True)
    await stage.later(1)
    assert len(vmi["spec"]["domain"]["devices"]["gpus"]) == 4
    assert (len(writes(stage)), len(writes(stage, VMI))) == before


async def test_b1_of_two_vmis_that_race_for_one_device_exactly_one_starts(stage):
    results = await stage.do(
        asyncio.gather(*(stage.players.vmi(NS, name, ["d1"]) for name in ("vm1", "vm2")), return_exceptions=True)
    )
    refused = [found for found in results if isinstance(found, Rejected)]
    assert len(refused) == 1
    assert "DeviceAttached" in str(refused[0])
    await stage.settle()
    winner = devices(stage)["d1"]["status"]["attachment"]["vmiName"]
    assert stage.cluster.peek(VMI, NS, winner) is not None


async def test_b3_a_refused_start_leaves_nothing_behind(stage):
    before = devices(stage)
    with pytest.raises(Rejected, match=r"NoFreeUnits|NoNodeFits"):
        await start(stage, references=["d1", {"className": "a10", "count": 4}])
    await stage.later(2)
    after = devices(stage)
    assert sorted(after) == sorted(before)
    assert after["d1"]["status"]["phase"] == "Held"
    assert not {"attachment", "bindRequest", "bindAnswer", "placement"} & set(after["d1"]["status"])


async def test_b3_c17_a_start_behind_a_stuck_leader_is_late_undone_and_retried_into_one_set(stage):
    stuck = stage.replicas[0]
    stuck.controller.writer.send = lambda seq, decision: None
    for _ in range(3):
        with pytest.raises(Rejected, match=r"BindTimeout|DeviceAttached"):
            await start(stage)
        for body in devices(stage).values():
            assert "attachment" not in body["status"] or body["metadata"].get("deletionTimestamp")
    await stuck.kill()
    second = await stage.add_replica(MemoryJournal(), "binder-1")
    await stage.until(lambda: stage.leader is second)
    await stage.later(1)
    assert sorted(devices(stage)) == ["d1", "d2"]
    await start(stage)
    await stage.settle()
    assert len(devices(stage)) == 3
    assert {body["status"]["phase"] for body in devices(stage).values()} == {"Bound"}


async def test_c06_p5_a_vm_that_restarts_at_once_gets_its_devices_again(stage):
    await start(stage)
    await stage.settle()
    uids = {name: body["metadata"]["uid"] for name, body in devices(stage).items()}
    await stage.players.stop(NS, "vm1")
    await stage.settle()
    vmi = await start(stage)
    await stage.settle()
    assert len(vmi["spec"]["domain"]["devices"]["gpus"]) == 4
    after = {name: body["metadata"]["uid"] for name, body in devices(stage).items()}
    assert sorted(after) == sorted(uids)
    assert after["d1"] == uids["d1"]
    assert {body["status"]["phase"] for body in devices(stage).values()} == {"Bound"}
    assert stage.cluster.peek(VMI, NS, "vm1")["status"]["phase"] == "Running"


async def test_c16_a_vmi_that_exists_keeps_its_devices(stage):
    await start(stage)
    await stage.settle()
    before = len(by_webhook(stage))
    with pytest.raises(Exception, match="already exists"):
        await start(stage)
    assert len(by_webhook(stage)) == before


async def test_c16_b4_a_start_refused_by_a_later_webhook_is_given_back_after_the_grace_time(stage):
    async def refuse(review):
        response = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": "not today"}}
        return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}

    stage.cluster.admission.register(Webhook("zz-quota", refuse, (VMI.name,)))
    with pytest.raises(Rejected, match="not today"):
        await start(stage)
    stage.cluster.admission.unregister("zz-quota")
    await stage.later(61)
    after = devices(stage)
    assert sorted(after) == ["d1", "d2"]
    assert {body["status"]["phase"] for body in after.values()} == {"Held"}


async def test_w1_k2_a_tenant_can_neither_mark_nor_unguard_a_device(stage):
    port = stage.players.tenant_port
    marked = {
        "metadata": {"name": "d9", "labels": {"gpu.cozystack.io/template-device": "true"}},
        "spec": {"className": "a10", "count": 1},
    }
    with pytest.raises(Rejected, match="TemplateMarkReserved"):
        await stage.do(port.create(DEVICE, NS, marked))
    with pytest.raises(Rejected, match="ReservedField"):
        await stage.do(port.patch(DEVICE, NS, "d1", {"metadata": {"finalizers": None}}))


async def test_b4_a_generated_name_is_refused(stage):
    with pytest.raises(Rejected, match="NameRequired"):
        await stage.do(stage.players.tenant_port.create(VMI, NS, vmi_body("vm-", ["d1"])))
