"""W2, B1, B3, B4, B5: the start of a VMI with its devices, on a scripted cluster."""

import asyncio

import pytest

from reconciler.cluster.port import Conflict, Rejected, Unavailable
from reconciler.core.admission.checks import Refusal
from reconciler.core.model.objects import DEVICE, VMI, Namespace, Node, Requirement, Settings, Term, Toleration
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.vocabulary import (
    DEVICE_FINALIZER,
    DEVICES_ANNOTATION,
    DEVICES_LABEL,
    SCHEDULABLE_LABEL,
    TEMPLATE_LABEL,
    RawNamePolicy,
    Reason,
)
from tests.webhooks.fakes import (
    A100,
    KUBEVIRT,
    NS,
    WRITER,
    FakeView,
    World,
    device_body,
    patched,
    review,
    vmi_body,
)
from webhooks.review import Denied
from webhooks.sets import template_name

ONE = [{"device": "d1"}]
MIXED = [{"device": "d1"}, {"device": "d2"}, {"template": {"className": "a100", "count": 2}}]
TEMPLATE = [{"template": {"className": "a100", "count": 1}}]


@pytest.fixture
def world():
    return World()


async def start(world, references=ONE, name="vm1", seconds=9.5, machines=None, body=None, **more):
    body = body or vmi_body(name, references)
    answer = await (machines or world.machines)(review(body, **more), seconds)
    return patched(body, answer.patch), answer.patch


async def refused(world, *args, **kwargs):
    with pytest.raises(Denied) as caught:
        await start(world, *args, **kwargs)
    await world.binding.finish_undoing()
    return caught.value


def untouched(world, *names):
    for name in names:
        device = world.cluster.device(name)
        assert (device.phase, device.attachment, device.bind_request, device.bind_answer) == (
            "Held",
            None,
            None,
            None,
        )


# The start itself


async def test_w2_b1_a_set_of_held_devices_and_a_template_starts_with_one_entry_a_unit(world):
    world.held("d1", "d2")
    started, _ = await start(world, MIXED)
    assert started["spec"]["domain"] == {
        "devices": {
            "gpus": [
                {"name": "gpu-binder-0-0", "deviceName": A100},
                {"name": "gpu-binder-1-0", "deviceName": A100},
                {"name": "gpu-binder-2-0", "deviceName": A100},
                {"name": "gpu-binder-2-1", "deviceName": A100},
            ]
        }
    }
    devices = world.cluster.devices()
    assert [device.phase for device in devices] == ["Bound"] * 3
    assert {device.attachment.request_id for device in devices} == {"request-1"}
    assert {device.bind_request.set_size for device in devices} == {3}
    template = world.cluster.device(template_name("vm1", 0))
    assert template.template
    assert template.finalizers == (DEVICE_FINALIZER,)
    assert (template.class_name, template.count) == ("a100", 2)
    body = world.cluster.objects[(DEVICE.name, NS, template.name)]
    assert "ownerReferences" not in body["metadata"]
    assert body["metadata"]["labels"] == {TEMPLATE_LABEL: "true"}
    assert world.outcomes == ["Bound"]


async def test_b1_attached_devices_say_for_whom_while_they_wait_and_a_template_stays_pending(world):
    world.held("d1")
    seen = []
    world.time.on_sleep.insert(0, lambda: seen or seen.extend(world.cluster.devices()))
    await start(world, [{"device": "d1"}, *TEMPLATE])
    held, template = seen
    assert (held.phase, template.phase) == ("Attached", "")
    assert held.attachment.vmi_name == template.attachment.vmi_name == "vm1"


async def test_p2_what_the_vmi_asks_of_its_node_stands_in_the_request(world):
    world.held("d1")
    body = vmi_body(
        references=ONE,
        nodeSelector={"zone": "a"},
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]},
                        {},
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": None,
            }
        },
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        domain={"memory": {"guest": "4Gi"}, "resources": {"requests": {"memory": "1Gi"}}},
    )
    await start(world, body=body)
    constraints = world.cluster.device("d1").bind_request.constraints
    assert constraints.node_selector == {"zone": "a"}
    assert constraints.terms == (Term((Requirement("rack", "In", ("r1",)),)), Term())
    assert constraints.tolerations == (Toleration("gpu", "Exists"),)
    assert constraints.memory == 2**30, "what KubeVirt requests, not what the guest sees"
    assert world.starts[0][4] == constraints


GI = 2**30


@pytest.mark.parametrize(
    ("domain", "memory"),
    [
        ({}, 0),
        ({"memory": {"guest": "4Gi"}}, 4 * GI),
        ({"memory": {"guest": "20Gi"}, "resources": {"requests": {"memory": "2Gi"}}}, 2 * GI),
        ({"memory": {"guest": "20Gi"}, "resources": {"limits": {"memory": "24Gi"}}}, 24 * GI),
        ({"memory": {"guest": "20Gi", "hugepages": {"pageSize": "1Gi"}}}, 0),
        (
            {
                "memory": {"guest": "4Gi", "hugepages": {"pageSize": "2Mi"}},
                "resources": {"requests": {"memory": "6Gi"}},
            },
            2 * GI,
        ),
        ({"memory": {"hugepages": {"pageSize": "2Mi"}}, "resources": {"requests": {"memory": "6Gi"}}}, 0),
    ],
    ids=["none", "guest", "request", "limit", "hugepages", "beyond the hugepages", "all on hugepages"],
)
async def test_p2_memory_is_what_kubevirt_requests_for_the_manifest(world, domain, memory):
    world.held("d1")
    await start(world, body=vmi_body(references=ONE, domain=domain))
    assert world.cluster.device("d1").bind_request.constraints.memory == memory


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ({"domain": {"cpu": {"dedicatedCpuPlacement": True, "cores": 4}}}, {"cpumanager": "true"}),
        ({"domain": {"cpu": {"model": "EPYC"}}}, {"cpu-model.node.kubevirt.io/EPYC": "true"}),
        ({"domain": {"cpu": {"model": "host-model"}}}, {}),
        ({"domain": {"cpu": {"model": "host-passthrough", "dedicatedCpuPlacement": False}}}, {}),
        ({"architecture": "ARM64"}, {"kubernetes.io/arch": "arm64"}),
        ({"architecture": "amd64", "nodeSelector": {"kubernetes.io/arch": "arm64"}}, {"kubernetes.io/arch": "arm64"}),
        (
            {"domain": {"cpu": {"model": "EPYC"}}, "nodeSelector": {"zone": "a"}},
            {
                "zone": "a",
                "cpu-model.node.kubevirt.io/EPYC": "true",
            },
        ),
    ],
    ids=["dedicated", "model", "host-model", "host-passthrough", "architecture", "own selector", "beside a selector"],
)
async def test_p2_the_labels_that_kubevirt_selects_on_are_asked_of_the_node(world, spec, labels):
    world.held("d1")
    await start(world, body=vmi_body(references=ONE, **spec))
    assert world.cluster.device("d1").bind_request.constraints.node_selector == labels


async def test_p2_memory_comes_from_the_requests_where_no_guest_memory_stands(world):
    world.held("d1")
    await start(world, body=vmi_body(references=ONE, domain={"resources": {"requests": {"memory": "512Mi"}}}))
    assert world.cluster.device("d1").bind_request.constraints.memory == 512 * 2**20


async def test_w2_a_vmi_without_the_label_is_none_of_ours(world):
    body = vmi_body(references=ONE)
    del body["metadata"]["labels"]
    assert await start(world, body=body) == (body, ())


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
async def test_w2_only_the_creation_is_looked_at(world, operation):
    _, patch = await start(world, operation=operation)
    assert (patch, world.cluster.calls) == ((), [])


# Refusals before any write


@pytest.mark.parametrize(
    ("references", "reason"),
    [
        (None, Reason.MISSING_REFERENCES),
        ("[", Reason.MALFORMED_REFERENCES),
        ([{"device": "d1"}, {"device": "d1"}], Reason.DUPLICATE_REFERENCE),
        ([{"device": "other"}], Reason.UNKNOWN_DEVICE),
        ([{"template": {"className": "nope"}}], Reason.UNKNOWN_CLASS),
    ],
)
async def test_w2_k1_references_that_cannot_be_taken(world, references, reason):
    world.held("d1")
    denied = await refused(world, references)
    assert denied.reason is reason
    assert world.cluster.writes == []


async def test_w2_malformed_json_is_refused_with_its_position(world):
    denied = await refused(world, '[{"device":"a"} {"device":"b"}]')
    assert "line 1, column 17" in denied.message


async def test_w2_w5_a_vmi_without_a_spec_is_refused_before_anything_is_attached(world):
    world.held("d1")
    body = vmi_body(references=ONE)
    del body["spec"]
    with pytest.raises(Denied) as caught:
        await start(world, body=body)
    assert caught.value.reason == Reason.MALFORMED_REVIEW
    assert world.cluster.device("d1").attachment is None


async def test_w2_a_device_of_another_namespace_is_unknown(world):
    world.held("d1", namespace="tenant-other")
    assert (await refused(world)).reason is Reason.UNKNOWN_DEVICE
    assert world.cluster.writes == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"phase": "Pending"}, Reason.DEVICE_NOT_HELD),
        ({"phase": "Lost", "placement": {"node": "n1", "units": 1}}, Reason.DEVICE_LOST),
        ({"phase": "Bound", "attachment": {"vmiName": "vm2", "requestID": "x"}}, Reason.DEVICE_ATTACHED),
    ],
)
async def test_w2_devices_that_are_not_free(world, fields, reason):
    world.held("d1")
    world.held("d0", **fields)
    assert (await refused(world, [{"device": "d1"}, {"device": "d0"}])).reason is reason
    assert world.cluster.writes == []
    untouched(world, "d1")


async def test_w2_a_device_that_is_being_deleted(world):
    body = device_body("d1")
    body["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:20Z"
    world.cluster.put(DEVICE, body)
    assert (await refused(world)).reason is Reason.DEVICE_DELETED


async def test_k2_a_template_device_cannot_be_referred_to_by_name(world):
    body = device_body("d1")
    body["metadata"]["labels"] = {TEMPLATE_LABEL: "true"}
    world.cluster.put(DEVICE, body)
    denied = await refused(world)
    assert denied.reason is Reason.DEVICE_ATTACHED
    assert "made for one start" in denied.message


async def test_k2_an_order_under_a_template_devices_name_is_not_taken_for_one(world):
    name = template_name("vm1", 0)
    world.held(name)
    denied = await refused(world, TEMPLATE)
    assert denied.reason is Reason.DEVICE_NOT_HELD
    assert name in denied.message
    untouched(world, name)


async def test_r10_a_device_with_a_broken_status_is_refused_naming_the_field(world):
    world.held("d1")
    world.cluster.objects[(DEVICE.name, NS, "d1")]["status"]["placement"] = "n1"
    world.view.device = lambda namespace, name: None
    denied = await refused(world)
    assert denied.reason is Reason.DEVICE_NOT_HELD
    assert "placement" in denied.message


async def test_b4_a_vmi_with_references_and_no_name_is_refused(world):
    world.held("d1")
    body = vmi_body(references=ONE)
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "vm-"
    assert (await refused(world, body=body)).reason is Reason.NAME_REQUIRED


async def test_b5_the_early_answer_comes_before_the_first_write(world):
    world.held("d1")
    world.start_refusal = Refusal(reason=Reason.BUDGET_EXCEEDED, message="2 of 2 used", missing=1)
    denied = await refused(world, [{"device": "d1"}, *TEMPLATE])
    assert (denied.reason, denied.message) == (Reason.BUDGET_EXCEEDED, "2 of 2 used")
    assert world.starts[0][:4] == (NS, "vm1", ["d1"], [TemplateReference("a100", 1)])
    assert world.cluster.writes == []


async def test_c47_a_namespace_that_ends_starts_nothing(world):
    world.view.namespaces[NS] = Namespace(name=NS, uid="u", deleting=1)
    assert (await refused(world, TEMPLATE)).reason is Reason.NAMESPACE_TERMINATING
    assert world.cluster.calls == []


async def test_c47_a_create_the_api_refuses_is_a_clean_denial_without_retries(world):
    def terminating(verb, name):
        if verb == "create":
            raise Rejected("namespace tenant-acme is being terminated")

    world.cluster.on_call = terminating
    denied = await refused(world, TEMPLATE)
    assert "being terminated" in denied.message
    assert [verb for verb, _ in world.cluster.calls].count("create") == 1


# Raw names


RAW = {
    "gpus": {"devices": {"gpus": [{"name": "g", "deviceName": A100}]}},
    "hostDevices": {"devices": {"hostDevices": [{"name": "g", "deviceName": A100}]}},
    "requests": {"resources": {"requests": {A100: 1}}},
    "limits": {"resources": {"limits": {A100: "1"}}},
}


@pytest.mark.parametrize("where", sorted(RAW))
@pytest.mark.parametrize("user", ["alice", KUBEVIRT])
async def test_w2_v1_raw_gpu_names_are_refused_where_the_policy_forbids_them(world, where, user):
    world.held("d1")
    world.view.settings = Settings(writer=WRITER, raw_name_policy=RawNamePolicy.FORBIDDEN, manager_users=(KUBEVIRT,))
    denied = await refused(world, body=vmi_body(references=ONE, domain=RAW[where]), user=user)
    assert denied.reason is Reason.RAW_NAME_FORBIDDEN
    assert where in denied.message
    assert A100 in denied.message


async def test_c21_v1_entries_of_ours_in_an_exported_manifest_are_no_raw_use(world):
    world.held("d1")
    world.view.settings = Settings(writer=WRITER, raw_name_policy=RawNamePolicy.FORBIDDEN)
    exported = [{"name": f"gpu-binder-0-{unit}", "deviceName": A100} for unit in range(3)]
    started, _ = await start(world, body=vmi_body(references=ONE, domain={"devices": {"gpus": exported}}))
    assert started["spec"]["domain"]["devices"]["gpus"] == exported[:1]


async def test_v1_outside_of_tenants_raw_names_are_nobodys_business(world):
    world.view.settings = Settings(writer=WRITER, raw_name_policy=RawNamePolicy.FORBIDDEN)
    world.held("d1", namespace="cozy-system")
    body = vmi_body(references=ONE, domain=RAW["limits"])
    with pytest.raises(Denied) as caught:
        await world.machines(review(body, namespace="cozy-system"), 1.0)
    assert caught.value.reason is not Reason.RAW_NAME_FORBIDDEN


async def test_r1_another_vendors_device_is_no_gpu(world):
    world.held("d1")
    world.view.settings = Settings(writer=WRITER, raw_name_policy=RawNamePolicy.FORBIDDEN)
    network = {"name": "nic", "deviceName": "intel.com/vf"}
    started, _ = await start(world, body=vmi_body(references=ONE, domain={"devices": {"hostDevices": [network]}}))
    assert started["spec"]["domain"]["devices"]["hostDevices"] == [network]


async def test_w2_allowed_raw_entries_stay_and_ours_get_other_names(world):
    world.held("d1")
    mine = {"name": "gpu-binder-0-0", "deviceName": "intel.com/vf", "tag": "t"}
    raw = {"name": "mine", "deviceName": A100}
    domain = {"devices": {"gpus": [raw, mine], "hostDevices": [{"name": "gpu-binder-0-0-x", "deviceName": "y"}]}}
    started, _ = await start(world, body=vmi_body(references=ONE, domain=domain))
    assert started["spec"]["domain"]["devices"]["gpus"] == [
        raw,
        mine,
        {"name": "gpu-binder-0-0-xx", "deviceName": A100},
    ]
    again, patch = await start(world, body=started)
    assert (again, patch) == (started, ())


@pytest.mark.parametrize("name", [None, 1, {"a": "b"}, ["gpu-binder-0-0"]])
async def test_w2_entries_without_a_usable_name_stay_for_the_api_server_to_judge(world, name):
    world.held("d1")
    entry = {"name": name, "deviceName": "intel.com/vf"}
    domain = {"devices": {"gpus": [entry], "hostDevices": [entry]}}
    started, _ = await start(world, body=vmi_body(references=ONE, domain=domain))
    assert started["spec"]["domain"]["devices"]["gpus"] == [entry, {"name": "gpu-binder-0-0", "deviceName": A100}]


@pytest.mark.parametrize("domain", [None, {}, {"devices": None}, {"devices": {"gpus": None}}])
async def test_w2_entries_are_added_wherever_the_manifest_ends(world, domain):
    world.held("d1")
    started, _ = await start(world, body=vmi_body(references=ONE, domain=domain))
    assert started["spec"]["domain"]["devices"]["gpus"] == [{"name": "gpu-binder-0-0", "deviceName": A100}]


# Called again, existing, dry run


async def test_b4_c21_the_second_call_gives_an_empty_patch_and_writes_nothing(world):
    world.held("d1", "d2")
    started, _ = await start(world, MIXED)
    writes = list(world.cluster.writes)
    started["spec"]["domain"]["cpu"] = {"cores": 4}
    started["spec"]["domain"]["devices"]["gpus"][0]["tag"] = "by another webhook"
    again, patch = await start(world, body=started)
    assert (again, patch) == (started, ())
    assert world.cluster.writes == writes


async def test_b4_c17_a_retry_on_another_replica_takes_the_same_answer(world):
    world.held("d1", "d2")
    other = FakeView(world.cluster)
    other.freeze()
    machines, _, _ = world.replica(other)
    first, _ = await start(world, MIXED)
    writes = list(world.cluster.writes)
    second, _ = await start(world, MIXED, machines=machines)
    assert second == first
    assert world.cluster.writes == writes


async def test_b4_a_lagging_cache_meets_its_own_start_as_a_conflict(world):
    world.held("d1")
    lagging = FakeView(world.cluster)
    lagging.freeze()
    machines, _, _ = world.replica(lagging)
    first, _ = await start(world)
    second, _ = await start(world, machines=machines)
    assert second == first
    assert world.conflicts == 1
    assert world.cluster.device("d1").attachment.request_id == "request-1"


async def test_b4_c17_concurrent_starts_of_one_vmi_make_one_set(world):
    world.held("d1", "d2")
    replicas = [world.replica(FakeView(world.cluster))[0] for _ in range(3)]
    results = await asyncio.gather(*(start(world, MIXED, machines=machines) for machines in replicas))
    assert all(result[0] == results[0][0] for result in results)
    assert len(world.cluster.devices()) == 3
    assert len({device.attachment.request_id for device in world.cluster.devices()}) == 1


async def test_b4_a_start_that_is_joined_late_is_refused_without_undoing_it(world):
    world.held("d1", attachment={"vmiName": "vm1", "requestID": "r0"}, phase="Attached")
    world.cluster.status("d1", {"bindRequest": {"id": "r0", "vmiName": "vm1", "setSize": 1}})
    world.time.on_sleep.clear()
    assert (await refused(world)).reason is Reason.BIND_TIMEOUT
    assert world.cluster.writes == []
    assert world.cluster.device("d1").attachment.request_id == "r0"


async def test_b4_a_joined_start_that_is_undone_is_followed_by_one_of_our_own(world):
    world.held("d1", attachment={"vmiName": "vm1", "requestID": "r0"}, phase="Attached")
    world.cluster.status("d1", {"bindRequest": {"id": "r0", "vmiName": "vm1", "setSize": 2}})
    body = device_body("d2", phase="Held")
    world.cluster.put(DEVICE, body)
    gone = {"phase": "Held", "attachment": None, "bindRequest": None}
    undone = []

    def undo_once():
        if not undone:
            undone.append(world.cluster.status("d1", gone))

    world.time.on_sleep.insert(0, undo_once)
    await start(world, [{"device": "d1"}, {"device": "d2"}])
    assert {d.attachment.request_id for d in world.cluster.devices()} == {"request-1"}


async def test_b4_a_refused_earlier_start_gives_its_reason(world):
    world.held("d1", attachment={"vmiName": "vm1", "requestID": "r0"}, phase="Attached")
    world.cluster.status("d1", {"bindRequest": {"id": "r0", "vmiName": "vm1", "setSize": 1}})
    world.binder.refuse = ("NoNodeFits", "no node")
    world.binder.step()
    assert (await refused(world)).reason == "NoNodeFits"
    assert world.cluster.writes == []


async def test_c21_an_earlier_start_with_other_devices_is_not_taken(world):
    world.held("d1", "d2")
    await start(world, [{"device": "d1"}, {"device": "d2"}])
    writes = list(world.cluster.writes)
    denied = await refused(world, ONE)
    assert denied.reason is Reason.DEVICE_ATTACHED
    assert "earlier start" in denied.message
    denied = await refused(world, [{"device": "d1"}, {"device": "d2"}, *TEMPLATE])
    assert denied.reason is Reason.DEVICE_ATTACHED
    assert world.cluster.writes == writes


EXPIRED_SECONDS = 12
"""Above the timeout with which the tests call, below the attachment's grace time."""


async def test_b4_an_old_answer_is_nobodys_own(world):
    """Its VMI never came, so the start is made anew."""
    world.held("d1")
    await start(world)
    world.time.seconds += world.view.settings.attach_grace / 1000 + 1
    await start(world)
    assert world.cluster.device("d1").attachment.request_id == "request-2"


@pytest.mark.parametrize(
    "references",
    [
        [{"device": "d1"}],
        [{"device": "d2"}],
        [{"device": "d1"}, {"device": "d2"}, *TEMPLATE],
        [{"template": {"className": "l4"}}],
        TEMPLATE,
    ],
    ids=["fewer", "another", "more", "another template", "the template alone"],
)
async def test_b4_a_start_whose_vmi_never_came_gives_way_to_the_next_of_its_name(world, references):
    """A later webhook refused the VMI and its owner corrected it: once the API server can no longer be waiting for the
    first request, the second takes over, and nothing of the first is left."""
    world.held("d1", "d2")
    await start(world, [{"device": "d1"}, *TEMPLATE])
    assert (await refused(world, references)).reason is Reason.DEVICE_ATTACHED
    world.time.seconds += EXPIRED_SECONDS
    await start(world, references)
    world.binder.step()
    attached = [d for d in world.cluster.devices() if d.attachment is not None]
    assert len(attached) == len(references)
    assert {device.attachment.request_id for device in attached} == {"request-2"}
    others = [d for d in world.cluster.devices() if d.attachment is None]
    assert all((d.phase, d.placement, d.bind_request) == ("Held", None, None) for d in others)
    assert not any(d.template for d in others)


async def test_b4_an_old_start_whose_vmi_is_there_after_all_keeps_its_devices(world):
    """A GET decides, at the moment of taking over; the API server then says that the VMI exists."""
    world.held("d1", "d2")
    await start(world)
    world.time.seconds += EXPIRED_SECONDS
    writes = list(world.cluster.writes)
    gets = []

    def appears(verb, name):
        if (verb, name) == ("get", "vm1"):
            gets.append(name)
            if len(gets) == 2:
                world.cluster.put(VMI, vmi_body())

    world.cluster.on_call = appears
    assert (await refused(world, [{"device": "d2"}])).reason is Reason.DEVICE_ATTACHED
    assert world.cluster.writes == writes


async def test_b4_an_old_start_without_an_answer_gives_way(world):
    world.held("d1", attachment={"vmiName": "vm1", "requestID": "r0"}, phase="Attached")
    world.cluster.status("d1", {"bindRequest": {"id": "r0", "vmiName": "vm1", "setSize": 2}})
    assert world.view.device(NS, "d1") is not None
    world.time.seconds += EXPIRED_SECONDS
    await start(world)
    assert world.cluster.device("d1").attachment.request_id == "request-1"


async def test_b5_b4_a_dry_run_after_an_old_start_writes_nothing(world):
    world.held("d1", "d2")
    await start(world, [{"device": "d1"}, *TEMPLATE])
    world.time.seconds += EXPIRED_SECONDS
    writes = list(world.cluster.writes)
    _, patch = await start(world, [{"device": "d1"}, {"device": "d2"}], dry_run=True)
    assert patch and world.cluster.writes == writes
    assert world.starts[-1][2] == ["d1", "d2"]


async def test_b4_an_answer_whose_node_no_longer_suits_the_vmi_is_not_taken(world):
    world.held("d1")
    labels = {SCHEDULABLE_LABEL: "true", "zone": "a"}
    world.view.nodes["n1"] = Node(name="n1", uid="n", ready=True, labels=labels)
    await start(world)
    _, patch = await start(world, body=vmi_body(references=ONE, nodeSelector={"zone": "a"}))
    assert patch
    denied = await refused(world, body=vmi_body(references=ONE, nodeSelector={"zone": "b"}))
    assert denied.reason is Reason.DEVICE_ATTACHED


async def test_b1_an_answer_to_an_older_request_is_cleared_with_the_new_one(world):
    world.held("d1", bindAnswer={"requestID": "old", "outcome": "Refused"})
    await start(world)
    assert world.cluster.device("d1").bind_answer.request_id == "request-1"


async def test_c06_a_restart_waits_for_the_release_of_the_run_before(world):
    world.held("d1")
    await start(world, [{"device": "d1"}, *TEMPLATE])
    for device in world.cluster.devices():
        world.view.seen_vmis[device.uid] = "request-1/vmi-uid"
    name = template_name("vm1", 0)
    steps = []

    def release():
        steps.append(1)
        if len(steps) == 3:
            world.cluster.status(
                "d1",
                {"phase": "Held", "attachment": None, "bindRequest": None, "bindAnswer": None, "placement": None},
            )
            world.cluster.remove(DEVICE, name)

    world.time.on_sleep.insert(0, release)
    await start(world, [{"device": "d1"}, *TEMPLATE])
    assert {d.attachment.request_id for d in world.cluster.devices()} == {"request-2"}


async def test_c06_a_release_that_does_not_come_is_a_refusal_that_may_pass(world):
    world.held("d1")
    await start(world)
    world.view.seen_vmis[world.cluster.device("d1").uid] = "request-1/vmi-uid"
    denied = await refused(world)
    assert denied.reason is Reason.DEVICE_ATTACHED
    assert "still being released" in denied.message


async def test_b4_c16_an_existing_vmi_changes_nothing(world):
    world.held("d1")
    world.cluster.put(VMI, vmi_body())
    _, patch = await start(world, [{"device": "d1"}, *TEMPLATE])
    assert patch == ()
    assert world.cluster.writes == []


async def test_b5_c16_a_dry_run_checks_and_patches_and_writes_nothing(world):
    world.held("d1", "d2")
    dry, _ = await start(world, MIXED, dry_run=True)
    assert world.cluster.writes == []
    assert world.time.seconds == 0
    assert world.outcomes == []
    wet, _ = await start(world, MIXED)
    assert wet == dry


async def test_b5_a_dry_run_is_refused_like_the_real_one(world):
    world.held("d1")
    world.start_refusal = Refusal(reason=Reason.NO_FREE_UNITS, message="none")
    assert (await refused(world, dry_run=True)).reason is Reason.NO_FREE_UNITS


async def test_b5_a_dry_run_does_not_wait_for_a_release(world):
    world.held("d1", phase="Bound")
    assert (await refused(world, dry_run=True)).reason is Reason.DEVICE_ATTACHED
    assert world.time.seconds == 0


async def test_c21_an_exported_manifest_gets_its_own_devices_and_no_more(world):
    world.held("d1")
    exported, _ = await start(world, [{"template": {"className": "a100", "count": 2}}], name="vm-old")
    exported["metadata"]["name"] = "vm-new"
    exported["metadata"]["annotations"][DEVICES_ANNOTATION] = '[{"device":"d1"},{"template":{"className":"l4"}}]'
    started, _ = await start(world, body=exported)
    assert started["spec"]["domain"]["devices"]["gpus"] == [
        {"name": "gpu-binder-0-0", "deviceName": A100},
        {"name": "gpu-binder-1-0", "deviceName": "nvidia.com/L4"},
    ]
    assert world.cluster.device(template_name("vm-old", 0)).attachment.vmi_name == "vm-old"
    assert world.cluster.device("d1").attachment.vmi_name == "vm-new"


async def test_c21_an_exported_manifest_does_not_share_a_device(world):
    world.held("d1")
    exported, _ = await start(world, name="vm-old")
    exported["metadata"]["name"] = "vm-new"
    assert (await refused(world, body=exported)).reason is Reason.DEVICE_ATTACHED
    assert world.cluster.device("d1").attachment.vmi_name == "vm-old"


# Conflicts


async def test_b1_two_vmis_racing_for_one_device_exactly_one_wins(world):
    world.held("d1", "d2", "d3")

    async def one(name, own):
        try:
            await start(world, [{"device": own}, {"device": "d2"}], name=name)
        except Denied as denied:
            return denied.reason
        return "Bound"

    results = await asyncio.gather(one("vm1", "d1"), one("vm2", "d3"))
    await world.binding.finish_undoing()
    assert sorted(results) == ["Bound", Reason.DEVICE_ATTACHED]
    owner = world.cluster.device("d2").attachment.vmi_name
    loser_only = "d3" if owner == "vm1" else "d1"
    untouched(world, loser_only)


async def test_b1_a_conflict_that_shows_another_owner_undoes_everything(world):
    world.held("d1", "d2")
    name = template_name("vm1", 0)

    def steal(verb, target):
        if (verb, target) == ("patch", "d2"):
            world.cluster.on_call = lambda verb, name: None
            world.cluster.status("d2", {"phase": "Attached", "attachment": {"vmiName": "vm9", "requestID": "x"}})

    world.cluster.on_call = steal
    assert (await refused(world, MIXED)).reason is Reason.DEVICE_ATTACHED
    untouched(world, "d1")
    assert world.cluster.device("d2").attachment.vmi_name == "vm9"
    assert world.cluster.device(name).deleting is not None


async def test_b6_a_conflict_over_a_version_alone_is_decided_anew(world):
    world.held("d1")

    def bump(verb, target):
        if verb == "patch":
            world.cluster.on_call = lambda verb, name: None
            world.cluster.status("d1", {"observedGeneration": 7})

    world.cluster.on_call = bump
    await start(world)
    assert world.conflicts == 1
    assert world.cluster.device("d1").phase == "Bound"


async def test_b6_a_device_that_never_stands_still_is_given_up(world):
    world.held("d1")

    def conflict(verb, target):
        if verb == "patch":
            raise Conflict("again")

    world.cluster.on_call = conflict
    assert (await refused(world)).reason is Reason.DEVICE_ATTACHED
    assert world.conflicts == 3


async def test_b1_a_write_with_an_unknown_outcome_is_looked_at_not_repeated(world):
    world.held("d1")
    patch = world.cluster.patch

    async def landed_but_lost(*args, **kwargs):
        world.cluster.patch = patch
        await patch(*args, **kwargs)
        raise Unavailable("connection reset")

    world.cluster.patch = landed_but_lost
    await start(world)
    assert [write for write in world.cluster.writes if write[0] == "patch"] == [("patch", "d1")]


async def test_w5_an_api_server_that_is_away_is_a_clean_denial(world):
    world.held("d1")

    def away(verb, name):
        raise Unavailable("connection refused")

    world.cluster.on_call = away
    denied = await refused(world)
    assert (denied.reason, denied.code) == (Reason.NOT_READY, 503)


def _taken_by_r9(world, name):
    world.cluster.status(
        name,
        {
            "attachment": {"vmiName": "vm1", "requestID": "r9"},
            "bindRequest": {"id": "r9", "vmiName": "vm1", "setSize": 2},
        },
    )


async def test_b4_c17_the_loser_of_two_starts_leaves_the_winner_the_template_it_made(world):
    first, second = template_name("vm1", 0), template_name("vm1", 1)
    body = device_body(first, phase="Pending")
    body["metadata"]["labels"] = {TEMPLATE_LABEL: "true"}
    world.cluster.put(DEVICE, body)

    def win(verb, target):
        if verb == "patch":
            world.cluster.on_call = lambda verb, name: None
            _taken_by_r9(world, first)
            world.time.on_sleep.insert(0, lambda: _taken_by_r9(world, second))

    world.cluster.on_call = win
    await start(world, [*TEMPLATE, *TEMPLATE])
    assert ("create", second) in world.cluster.writes
    assert not [write for write in world.cluster.writes if write[0] == "delete"]
    assert {device.attachment.request_id for device in world.cluster.devices()} == {"r9"}


async def test_b3_a_template_that_another_start_has_taken_meanwhile_is_not_deleted(world):
    world.held("d1")
    name = template_name("vm1", 0)

    def steal(verb, target):
        if (verb, target) == ("patch", "d1"):
            world.cluster.status("d1", {"phase": "Attached", "attachment": {"vmiName": "vm9", "requestID": "x"}})
        if verb == "delete":
            world.cluster.on_call = lambda verb, name: None
            _taken_by_r9(world, name)

    world.cluster.on_call = steal
    assert (await refused(world, [{"device": "d1"}, *TEMPLATE])).reason is Reason.DEVICE_ATTACHED
    assert world.cluster.device(name).deleting is None
    assert world.cluster.device(name).attachment.request_id == "r9"


# Refused, late, cancelled


async def test_b3_a_refusal_of_the_binder_is_undone_and_told(world):
    world.held("d1")
    world.binder.refuse = ("NoNodeFits", "no single node can take it")
    denied = await refused(world, [{"device": "d1"}, *TEMPLATE])
    assert (denied.reason, denied.message) == ("NoNodeFits", "no single node can take it")
    untouched(world, "d1")
    assert world.cluster.device(template_name("vm1", 0)).deleting is not None
    assert world.outcomes == ["NoNodeFits"]


async def test_b3_c17_the_wait_is_bounded_below_the_callers_deadline_and_undone(world):
    world.held("d1")
    world.time.on_sleep.clear()
    denied = await refused(world, [{"device": "d1"}, *TEMPLATE], seconds=5.0)
    assert denied.reason is Reason.BIND_TIMEOUT
    assert world.time.seconds <= 4.0
    untouched(world, "d1")
    assert world.cluster.device(template_name("vm1", 0)).deleting is not None


async def test_b3_c17_three_refused_retries_leave_no_more_than_one_set_behind(world):
    world.held("d1")
    world.binder.refuse = ("NoFreeUnits", "full")
    for _ in range(3):
        await refused(world, [{"device": "d1"}, *TEMPLATE])
        for device in world.cluster.devices():
            if device.deleting is not None:
                world.cluster.remove(DEVICE, device.name)
    assert [device.name for device in world.cluster.devices()] == ["d1"]
    untouched(world, "d1")


async def test_b3_an_answer_that_lands_while_undoing_is_undone_too(world):
    world.held("d1")
    world.time.on_sleep.clear()

    def answer_late(verb, name):
        late = world.time.seconds > 7
        if late and verb == "patch":
            world.cluster.on_call = lambda verb, name: None
            world.binder.step()

    world.cluster.on_call = answer_late
    assert (await refused(world)).reason is Reason.BIND_TIMEOUT
    untouched(world, "d1")
    assert world.conflicts == 1


async def test_b3_a_cancelled_review_is_undone_behind_it(world):
    world.held("d1")
    world.time.on_sleep.clear()
    task = asyncio.create_task(start(world, [{"device": "d1"}, *TEMPLATE]))
    world.time.on_sleep.append(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await world.binding.finish_undoing()
    untouched(world, "d1")
    assert world.cluster.device(template_name("vm1", 0)).deleting is not None


async def test_b3_a_write_under_way_when_the_client_leaves_does_not_land_behind_the_undo(world):
    world.held("d1")
    patch = world.cluster.patch
    sent = asyncio.Event()
    release = asyncio.Event()

    async def slow(*args, **kwargs):
        world.cluster.patch = patch
        sent.set()
        await release.wait()
        return await patch(*args, **kwargs)

    world.cluster.patch = slow
    task = asyncio.create_task(start(world))
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await world.binding.finish_undoing()
    untouched(world, "d1")
    assert world.cluster.writes == [("patch", "d1"), ("patch", "d1")]


async def test_b3_an_undo_survives_an_api_server_that_stumbles(world):
    world.held("d1")
    world.binder.refuse = ("NoNodeFits", "no")
    stumbles = iter([Unavailable("x"), Unavailable("x")])

    def stumble(verb, name):
        device = world.cluster.device("d1")
        if device.bind_answer is not None and (error := next(stumbles, None)) is not None:
            raise error

    world.cluster.on_call = stumble
    await refused(world)
    untouched(world, "d1")


async def test_b3_a_device_deleted_while_it_waits_ends_the_start(world):
    world.held("d1", "d2")
    world.time.on_sleep.clear()
    world.time.on_sleep.append(
        lambda: (DEVICE.name, NS, "d2") in world.cluster.objects and world.cluster.remove(DEVICE, "d2")
    )
    assert (await refused(world, [{"device": "d1"}, {"device": "d2"}])).reason is Reason.DEVICE_DELETED
    untouched(world, "d1")


async def test_b2_an_assumed_answer_is_not_believed_before_the_api_server_shows_it(world):
    world.held("d1")
    world.view.unsettled.add("d1")
    await start(world)
    reads = [call for call in world.cluster.calls if call == ("get", "d1")]
    assert reads, "the answer must come from the API server"


async def test_b4_a_template_left_by_a_broken_start_is_adopted(world):
    name = template_name("vm1", 0)
    body = device_body(name, phase="Pending")
    body["metadata"]["labels"] = {TEMPLATE_LABEL: "true"}
    world.cluster.put(DEVICE, body)
    await start(world, TEMPLATE)
    assert ("create", name) not in world.cluster.writes
    assert world.cluster.device(name).phase == "Bound"


async def test_c16_a_device_that_an_earlier_start_left_attached_is_named(world):
    world.held("d1", "d2")
    await start(world, [{"device": "d2"}])
    denied = await refused(world, ONE)
    assert denied.reason is Reason.DEVICE_ATTACHED
    assert "d2" in denied.message
    untouched(world, "d1")


@pytest.mark.parametrize(
    "body",
    [
        vmi_body(references=ONE) | {"spec": "x"},
        vmi_body(references=ONE, domain={"devices": {"gpus": ["x"]}}),
        vmi_body(references=ONE, domain={"devices": {"gpus": {}}}),
        vmi_body(references=ONE, domain={"memory": {"guest": "much"}}),
        vmi_body(references=ONE, tolerations={"key": "x"}),
        vmi_body(references=ONE) | {"metadata": {"labels": [DEVICES_LABEL]}},
    ],
)
async def test_w5_a_vmi_of_another_shape_is_refused_naming_the_field(world, body):
    world.held("d1")
    denied = await refused(world, body=body)
    assert denied.reason is Reason.MALFORMED_REVIEW
    assert "spec" in denied.message or "metadata" in denied.message
    assert world.cluster.writes == []


async def test_b4_a_leader_whose_clock_is_behind_makes_no_answer_old(world):
    """Its age is told by this replica alone. Found by reading: a minute of skew refused reinvocations."""
    world.held("d1")
    await start(world)
    world.cluster.status("d1", {"bindAnswer": {"answeredAt": "1970-01-01T00:00:00.001000Z"}})
    _, patch = await start(world)
    assert patch
