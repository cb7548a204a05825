"""The webhooks with real replicas: the product's own binder, reinvocation and release."""

import asyncio

import pytest

from journal.store import MemoryJournal
from reconciler.cluster.memory import Webhook
from reconciler.cluster.memory.manifests import vmi_body
from reconciler.cluster.port import Rejected
from reconciler.core.model.objects import DEVICE, POD, VMI
from reconciler.demo.embedded import SERVICE_ACCOUNT
from reconciler.demo.environment import Environment

A10 = "nvidia.com/GA102GL_A10"
NS = "tenant-acme"
MIXED = ["d1", "d2", {"className": "a10", "count": 2}]


@pytest.fixture
async def env():
    env = Environment()
    await env.open()
    for node, units in (("gpu-1", 4), ("gpu-2", 2)):
        await env.ecosystem.add_node(node, {A10: units})
    await env.ecosystem.kubevirt({A10: "10DE:2236"})
    await env.ecosystem.gpu_class("a10", A10)
    await env.ecosystem.tenant("acme", quotas={"gpu.cozystack.io/a10": "8"})
    await env.add_replica(MemoryJournal(), "binder-0")
    await env.later(5)
    for name in ("d1", "d2"):
        await env.do(env.ecosystem.order(NS, name, "a10"))
    await env.settle()
    yield env
    await env.close()


def devices(env):
    return {body["metadata"]["name"]: body for body in env.cluster.peek_all(DEVICE, NS)}


def writes(env, kind=DEVICE):
    return [found for found in env.cluster.writes if found.kind == kind.name and found.applied]


def by_webhook(env):
    """Device writes of starts: creations, attachments and what undoes them."""
    return [
        found
        for found in writes(env)
        if found.user == SERVICE_ACCOUNT
        and (found.verb in ("create", "delete") or "attachment" in (found.body or {}).get("status", {}))
    ]


def start(env, name="vm1", references=MIXED, **more):
    return env.do(env.ecosystem.vmi(NS, name, references, **more))


async def test_w2_w3_b4_a_start_survives_reinvocation_with_nothing_written_twice(env):
    before = len(by_webhook(env))
    vmi = await start(env)
    await env.settle()
    assert len(vmi["spec"]["domain"]["devices"]["gpus"]) == 4
    assert "resources" not in vmi["spec"]["domain"]
    assert vmi["spec"]["domain"]["machine"] == {"type": "q35"}, "virt-api's mutator ran, so ours ran again"
    assert len(by_webhook(env)) - before == 1 + 3
    nodes = {body["status"]["placement"]["node"] for body in devices(env).values()}
    assert nodes == {"gpu-1"}
    launcher = env.cluster.peek_all(POD, NS)[0]
    terms = launcher["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][-1]["matchFields"] == [
        {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
    ]
    assert launcher["spec"]["nodeName"] == "gpu-1"


async def test_b5_c16_a_dry_run_leaves_no_trace(env):
    before = (len(writes(env)), len(writes(env, VMI)))
    vmi = await start(env, dry_run=True)
    await env.later(1)
    assert len(vmi["spec"]["domain"]["devices"]["gpus"]) == 4
    assert (len(writes(env)), len(writes(env, VMI))) == before


async def test_b1_of_two_vmis_that_race_for_one_device_exactly_one_starts(env):
    results = await env.do(
        asyncio.gather(*(env.ecosystem.vmi(NS, name, ["d1"]) for name in ("vm1", "vm2")), return_exceptions=True)
    )
    refused = [found for found in results if isinstance(found, Rejected)]
    assert len(refused) == 1
    assert "DeviceAttached" in str(refused[0])
    await env.settle()
    winner = devices(env)["d1"]["status"]["attachment"]["vmiName"]
    assert env.cluster.peek(VMI, NS, winner) is not None


async def test_b3_a_refused_start_leaves_nothing_behind(env):
    before = devices(env)
    with pytest.raises(Rejected, match=r"NoFreeUnits|NoNodeFits"):
        await start(env, references=["d1", {"className": "a10", "count": 4}])
    await env.later(2)
    after = devices(env)
    assert sorted(after) == sorted(before)
    assert after["d1"]["status"]["phase"] == "Held"
    assert not {"attachment", "bindRequest", "bindAnswer", "placement"} & set(after["d1"]["status"])


async def test_b3_c17_a_start_behind_a_stuck_leader_is_late_undone_and_retried_into_one_set(env):
    stuck = env.replicas[0]
    stuck.controller.writer.send = lambda seq, decision: None
    for _ in range(3):
        with pytest.raises(Rejected, match=r"BindTimeout|DeviceAttached"):
            await start(env)
        for body in devices(env).values():
            assert "attachment" not in body["status"] or body["metadata"].get("deletionTimestamp")
    await stuck.kill()
    second = await env.add_replica(MemoryJournal(), "binder-1")
    await env.until(lambda: env.leader is second)
    await env.later(1)
    assert sorted(devices(env)) == ["d1", "d2"]
    await start(env)
    await env.settle()
    assert len(devices(env)) == 3
    assert {body["status"]["phase"] for body in devices(env).values()} == {"Bound"}


async def test_c06_p5_a_vm_that_restarts_at_once_gets_its_devices_again(env):
    await start(env)
    await env.settle()
    uids = {name: body["metadata"]["uid"] for name, body in devices(env).items()}
    await env.ecosystem.stop(NS, "vm1")
    await env.settle()
    vmi = await start(env)
    await env.settle()
    assert len(vmi["spec"]["domain"]["devices"]["gpus"]) == 4
    after = {name: body["metadata"]["uid"] for name, body in devices(env).items()}
    assert sorted(after) == sorted(uids)
    assert after["d1"] == uids["d1"]
    assert {body["status"]["phase"] for body in devices(env).values()} == {"Bound"}
    assert env.cluster.peek(VMI, NS, "vm1")["status"]["phase"] == "Running"


async def test_c16_a_vmi_that_exists_keeps_its_devices(env):
    await start(env)
    await env.settle()
    before = len(by_webhook(env))
    with pytest.raises(Exception, match="already exists"):
        await start(env)
    assert len(by_webhook(env)) == before


async def test_c16_b4_a_start_refused_by_a_later_webhook_is_given_back_after_the_grace_time(env):
    async def refuse(review):
        response = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": "not today"}}
        return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}

    env.cluster.admission.register(Webhook("zz-quota", refuse, (VMI.name,)))
    with pytest.raises(Rejected, match="not today"):
        await start(env)
    env.cluster.admission.unregister("zz-quota")
    await env.later(61)
    after = devices(env)
    assert sorted(after) == ["d1", "d2"]
    assert {body["status"]["phase"] for body in after.values()} == {"Held"}


async def test_b4_a_start_refused_by_a_later_webhook_gives_way_to_its_correction(env):
    """The VMI is corrected and refers to other devices: it starts once the first request has run out, long before the
    attachment's grace time."""

    async def refuse(review):
        response = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": "unknown disk"}}
        return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}

    env.cluster.admission.register(Webhook("zz-virt-api", refuse, (VMI.name,)))
    with pytest.raises(Rejected, match="unknown disk"):
        await start(env)
    env.cluster.admission.unregister("zz-virt-api")
    with pytest.raises(Rejected, match="earlier start"):
        await start(env, references=["d1"])
    await env.later(20)
    await start(env, references=["d1"])
    await env.settle()
    found = devices(env)
    assert sorted(found) == ["d1", "d2"], "the template went with the start that failed"
    assert (found["d1"]["status"]["phase"], found["d2"]["status"]["phase"]) == ("Bound", "Held")
    assert env.cluster.peek(VMI, NS, "vm1")["status"]["phase"] == "Running"


async def test_w1_k2_a_tenant_can_neither_mark_nor_unguard_a_device(env):
    port = env.ecosystem.tenant_port
    marked = {
        "metadata": {"name": "d9", "labels": {"gpu.cozystack.io/template-device": "true"}},
        "spec": {"className": "a10", "count": 1},
    }
    with pytest.raises(Rejected, match="TemplateMarkReserved"):
        await env.do(port.create(DEVICE, NS, marked))
    with pytest.raises(Rejected, match="ReservedField"):
        await env.do(port.patch(DEVICE, NS, "d1", {"metadata": {"finalizers": None}}))


async def test_b4_a_generated_name_is_refused(env):
    with pytest.raises(Rejected, match="NameRequired"):
        await env.do(env.ecosystem.tenant_port.create(VMI, NS, vmi_body("vm-", ["d1"])))
