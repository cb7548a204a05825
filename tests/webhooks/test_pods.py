"""W3: launchers are pinned to the node of their VMI's devices, and nothing else of a pod changes."""

import pytest

from reconciler.core.model.objects import DEVICE
from reconciler.core.model.vocabulary import DEVICES_LABEL, DOMAIN_ANNOTATION, MIGRATION_LABEL, Reason
from tests.webhooks.fakes import NS, FakeView, World, device_body, patched, review
from webhooks.review import Denied

PIN = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE_A = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
ZONE_B = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}


@pytest.fixture
def world():
    world = World()
    place(world, "d1")
    return world


def place(world, name, node="n1", vmi="vm1", phase="Bound", **fields):
    status = {"attachment": {"vmiName": vmi, "requestID": "r"}, "placement": {"node": node, "units": 1}}
    world.cluster.put(DEVICE, device_body(name, phase=phase, **status | fields))


def launcher(**spec):
    return {
        "metadata": {
            "generateName": "virt-launcher-vm1-",
            "namespace": NS,
            "labels": {DEVICES_LABEL: "true", "kubevirt.io": "virt-launcher"},
            "annotations": {DOMAIN_ANNOTATION: "vm1"},
            "ownerReferences": [{"kind": "VirtualMachineInstance", "name": "vm1", "uid": "v", "controller": True}],
        },
        "spec": {"containers": [], **spec},
    }


async def pinned(world, body, pods=None):
    answer = await (pods or world.pods)(review(body), 9.5)
    return patched(body, answer.patch), answer.patch


async def refused(world, body):
    with pytest.raises(Denied) as caught:
        await pinned(world, body)
    return caught.value


def terms(*found):
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(found)}}}


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        ("absent", terms({"matchFields": [PIN]})),
        (None, terms({"matchFields": [PIN]})),
        ({}, terms({"matchFields": [PIN]})),
        ({"nodeAffinity": None}, terms({"matchFields": [PIN]})),
        (
            terms(ZONE_A, ZONE_B),
            terms(ZONE_A | {"matchFields": [PIN]}, ZONE_B | {"matchFields": [PIN]}),
        ),
        (terms({}, ZONE_A), terms({}, ZONE_A | {"matchFields": [PIN]})),
        (
            terms({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}]}),
            terms({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}, PIN]}),
        ),
        (
            {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": ZONE_A}]}, "podAffinity": {"x": 1}},
            {
                "nodeAffinity": {
                    PREFERRED: [{"weight": 1, "preference": ZONE_A}],
                    REQUIRED: {"nodeSelectorTerms": [{"matchFields": [PIN]}]},
                },
                "podAffinity": {"x": 1},
            },
        ),
    ],
)
async def test_w3_c22_the_pin_stands_in_every_term_and_twice_changes_nothing(world, affinity, expected):
    body = launcher(nodeSelector={"zone": "a"})
    if affinity != "absent":
        body["spec"]["affinity"] = affinity
    once, _ = await pinned(world, body)
    assert once["spec"]["affinity"] == expected
    assert once["spec"]["nodeSelector"] == {"zone": "a"}
    again, patch = await pinned(world, once)
    assert (again, patch) == (once, ())


async def test_w3_terms_that_match_nothing_stay_so_even_alone(world):
    body = launcher(affinity=terms({}, {"matchExpressions": []}))
    assert await pinned(world, body) == (body, ())


async def test_w3_the_pin_replaces_no_other_field_requirement(world):
    other = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
    once, _ = await pinned(world, launcher(affinity=terms({"matchFields": [other]})))
    assert once["spec"]["affinity"] == terms({"matchFields": [other, PIN]})


async def test_w3_a_lagging_cache_is_checked_against_the_api_server(world):
    lagging = FakeView(world.cluster)
    lagging.freeze()
    _, _, pods = world.replica(lagging)
    place(world, "d1", node="n2")
    once, _ = await pinned(world, launcher(), pods)
    assert once["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchFields": [PIN | {"values": ["n2"]}]}
    ]


async def test_w3_a_cache_that_knows_nothing_yet_is_filled_by_a_list():
    world = World()
    world.view.freeze()
    place(world, "d1")
    place(world, "d2", vmi="vm2", node="n2")
    once, _ = await pinned(world, launcher())
    assert once["spec"]["affinity"] == terms({"matchFields": [PIN]})


async def test_w3_the_annotation_names_the_vmi_where_no_owner_does(world):
    body = launcher()
    del body["metadata"]["ownerReferences"]
    once, _ = await pinned(world, body)
    assert once["spec"]["affinity"] == terms({"matchFields": [PIN]})


async def test_w3_devices_of_another_vmi_or_namespace_place_nobody():
    world = World()
    place(world, "d1", vmi="vm2")
    place(world, "d2", namespace="tenant-other")
    assert (await refused(world, launcher())).reason is Reason.NOT_PLACED


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Attached", "placement": None}, Reason.NOT_PLACED),
        ({"phase": "Lost"}, Reason.DEVICE_LOST),
        ({"phase": "Releasing"}, Reason.NOT_PLACED),
        ({"placement": {"node": "n2", "units": 1}}, Reason.NOT_PLACED),
    ],
)
async def test_w3_a_set_that_is_not_whole_on_one_node_is_refused(world, status, reason):
    place(world, "d2", **status)
    assert (await refused(world, launcher())).reason is reason


async def test_w3_a_launcher_that_names_its_node_must_name_the_right_one(world):
    _, patch = await pinned(world, launcher(nodeName="n1"))
    assert patch
    assert (await refused(world, launcher(nodeName="n2"))).reason is Reason.NOT_PLACED


async def test_w3_c24_a_migration_target_is_refused_with_its_reason(world):
    body = launcher()
    body["metadata"]["labels"][MIGRATION_LABEL] = "m"
    found = await refused(world, body)
    assert found.reason is Reason.MIGRATION_UNSUPPORTED
    assert "vm1" in found.message


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {DEVICES_LABEL: "true", "kubevirt.io": "hotplug-disk"}},
        {"labels": {DEVICES_LABEL: "true"}},
        {"labels": {"kubevirt.io": "virt-launcher"}},
        {"labels": None},
        {"ownerReferences": [{"kind": "Pod", "name": "virt-launcher-vm1-x", "controller": True}]},
        {
            "labels": {DEVICES_LABEL: "true", "kubevirt.io": "hotplug-disk", MIGRATION_LABEL: "m"},
        },
    ],
)
async def test_w3_c25_helper_pods_are_left_alone(world, change):
    body = launcher()
    body["metadata"] |= change
    assert await pinned(world, body) == (body, ())


async def test_w3_launcher_labels_without_any_vmi_are_refused(world):
    body = launcher()
    del body["metadata"]["ownerReferences"], body["metadata"]["annotations"]
    found = await refused(world, body)
    assert (found.reason, DOMAIN_ANNOTATION in found.message) == (Reason.NOT_PLACED, True)


@pytest.mark.parametrize(
    "affinity",
    [
        "x",
        {"nodeAffinity": []},
        terms("x"),
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": {}}}},
        terms({"matchFields": "x"}),
    ],
)
async def test_w5_an_affinity_of_another_shape_is_refused(world, affinity):
    assert (await refused(world, launcher(affinity=affinity))).reason is Reason.MALFORMED_REVIEW


async def test_w3_w5_a_pod_without_a_spec_is_refused_for_there_is_nothing_to_patch(world):
    body = launcher()
    del body["spec"]
    assert (await refused(world, body)).reason == Reason.MALFORMED_REVIEW
