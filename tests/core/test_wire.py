"""Decoding watch lines, lists and objects; the way back (R10, J3, N7, C13, C39)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.model import objects, wire
from reconciler.core.model import vocabulary as words
from reconciler.core.model.objects import (
    CLASS,
    DEVICE,
    GPU_NODE,
    KINDS,
    KUBEVIRT,
    NAMESPACE,
    NODE,
    POD,
    RELEASE,
    SETTINGS,
    VMI,
    Key,
    Kind,
    Owner,
)

R = "nvidia.com/A40"
CREATED = 1_700_000_000_000
META: dict[str, Any] = {
    "name": "x",
    "namespace": "tenant-a",
    "uid": "u1",
    "resourceVersion": "7",
    "creationTimestamp": "2023-11-14T22:13:20Z",
    "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
}


def line(object_: Any, type_: str = "ADDED") -> bytes:
    return json.dumps({"type": type_, "object": object_}).encode()


def obj(meta: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"metadata": {**META, **(meta or {})}, **fields}


def read(kind: Kind, object_: dict[str, Any]) -> Any:
    """The object as all three paths decode it."""
    found = wire.decode_line(kind, line(object_))
    assert isinstance(found, wire.Changed), found
    body = json.dumps(object_).encode()
    assert wire.decode_object(kind, body) == found.object
    items = json.dumps({"metadata": {"resourceVersion": "9"}, "items": [object_]}).encode()
    assert wire.decode_list(kind, items) == wire.Listed("9", [found.object], [])
    return found.object


def unreadable(kind: Kind, object_: dict[str, Any]) -> wire.Unreadable:
    """The error, which all three paths must share."""
    found = wire.decode_line(kind, line(object_))
    assert isinstance(found, wire.Unreadable), found
    assert wire.decode_object(kind, json.dumps(object_).encode()) == found
    items = json.dumps({"metadata": {"resourceVersion": "9"}, "items": [object_]}).encode()
    assert wire.decode_list(kind, items) == wire.Listed("9", [], [found])
    return found


def test_every_kind_is_read_from_its_metadata() -> None:
    """R10: an object with nothing but its identity is readable unless its kind needs more."""
    specs: dict[str, Any] = {
        DEVICE.name: {"className": "a"},
        CLASS.name: {"resourceName": R, "mode": "Passthrough"},
    }
    for name, kind in KINDS.items():
        found = read(kind, obj({"deletionTimestamp": "2023-11-14T22:13:21+00:00"}, spec=specs.get(name, {})))
        assert isinstance(found, kind.model)
        assert (found.name, found.namespace, found.uid, found.resource_version) == ("x", "tenant-a", "u1", "7")
        assert (found.created, found.deleting) == (CREATED, CREATED + 1000)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("missing", ["name", "uid"])
def test_an_object_without_identity_is_set_aside(kind: Kind, missing: str) -> None:
    """R10."""
    assert unreadable(kind, obj({missing: ""})).error == f"metadata.{missing} is missing"


NODE_JSON = obj(
    {"labels": {"zone": "a"}},
    spec={"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": None}]},
    status={
        "allocatable": {R: "2", "cpu": "4", "memory": "1Gi", "devices.kubevirt.io/kvm": "1k",
                        "hugepages-2Mi": "0", "kubernetes.io/x": "1"},
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
    },
)  # fmt: skip


def test_a_node() -> None:
    """R5, P2: extended resources only, memory apart."""
    found = read(NODE, NODE_JSON)
    assert found.allocatable == {R: 2, "devices.kubevirt.io/kvm": 1000}
    assert found.memory == 2**30
    assert found.labels == {"zone": "a"}
    assert found.unschedulable
    assert found.ready
    assert found.taints == (objects.Taint("k", "NoSchedule"),)


@pytest.mark.parametrize("status", [None, {}, {"conditions": None, "allocatable": None}])
def test_a_node_without_status_is_unknown_and_not_zero(status: Any) -> None:
    """R5."""
    found = read(NODE, obj(status=status))
    assert found.allocatable is None
    assert not found.ready
    assert read(NODE, obj(status={"allocatable": {}})).allocatable == {}


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready(status: str) -> None:
    """R9, C05."""
    assert not read(NODE, obj(status={"conditions": [{"type": "Ready", "status": status}]})).ready


def resources(**amounts: str) -> dict[str, Any]:
    return {"resources": {"requests": {R: amounts["gpu"]} if "gpu" in amounts else amounts}}


def test_a_pod_requests_what_the_scheduler_counts() -> None:
    """R6, C04: init containers, sidecars in their order, overhead; memory apart."""
    found = read(
        POD,
        obj(
            spec={
                "nodeName": "n1",
                "initContainers": [
                    resources(gpu="1"),
                    resources(gpu="1") | {"restartPolicy": "Always"},
                    resources(gpu="2"),
                ],
                "containers": [resources(gpu="1"), resources(memory="1Gi", cpu="500m")],
                "overhead": {"memory": "1Mi"},
            },
            status={"phase": "Running"},
        ),
    )
    assert found.requests == {R: 3}
    assert found.memory == 2**30 + 2**20
    assert (found.node, found.phase, found.launcher) == ("n1", "Running", False)


def test_a_limit_without_a_request_is_the_request_c10() -> None:
    """C10, R6: as the API server defaults it."""
    limits = {"resources": {"limits": {R: "2", "memory": "2Gi"}, "requests": {"memory": "1Gi"}}}
    found = read(POD, obj(spec={"containers": [limits]}))
    assert (found.requests, found.memory) == ({R: 2}, 2**30)


def test_a_pod_level_memory_request_replaces_the_containers() -> None:
    """R6."""
    found = read(
        POD,
        obj(spec={"containers": [resources(memory="1Gi")], "resources": {"requests": {"memory": "3Gi"}}}),
    )
    assert found.memory == 3 * 2**30


def test_a_launcher_names_its_vmi() -> None:
    """R7: as a hint only; label and annotation first, the owner reference where they are missing."""
    owner = {"kind": "VirtualMachineInstance", "name": "vm", "uid": "v1", "controller": True}
    labels = {words.KUBEVIRT_LABEL: words.LAUNCHER}
    found = read(POD, obj({"labels": labels, "ownerReferences": [{"kind": "Job", "name": "j"}, owner]}))
    assert (found.launcher, found.vmi_name, found.vmi_uid) == (True, "vm", "v1")
    found = read(
        POD,
        obj(
            {
                "labels": labels | {words.CREATED_BY_LABEL: "v2"},
                "annotations": {words.DOMAIN_ANNOTATION: "vm2"},
                "ownerReferences": [owner],
            }
        ),
    )
    assert (found.launcher, found.vmi_name, found.vmi_uid) == (True, "vm2", "v2")


SECRET = "s3cr3t-cloud-init"


def test_user_data_leaves_no_trace() -> None:
    """J3, C20: cloud-init, environment, annotations, labels and managed fields of every kind."""
    noise = {
        "labels": {"owner": SECRET},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET},
        "managedFields": [{"manager": SECRET}],
    }
    vmi = obj(
        noise,
        spec={"volumes": [{"cloudInitNoCloud": {"userData": SECRET}}], "accessCredentials": [SECRET]},
        status={"phase": "Running", "nodeName": "n1", "activePods": {"p1": "n1"}, "interfaces": [SECRET]},
    )
    pod = obj(noise, spec={"containers": [{"name": "c", "env": [{"name": "A", "value": SECRET}]}]})
    release = obj(noise, spec={"values": {"password": SECRET, "resourceQuotas": {R: "1", "plain": SECRET}}})
    settings = obj(noise, data={"password": SECRET, words.SETTINGS_RESOURCE_NAMES: R})
    device = obj(noise, spec={"className": "a", "note": SECRET}, status={"note": SECRET})
    for kind, object_ in ((VMI, vmi), (POD, pod), (RELEASE, release), (SETTINGS, settings), (DEVICE, device),
                          (NAMESPACE, obj(noise))):  # fmt: skip
        assert SECRET.encode() not in msgspec.json.encode(read(kind, object_)), kind.name


def test_a_vmi() -> None:
    """K1, R7."""
    found = read(
        VMI,
        obj(
            {"labels": {words.DEVICES_LABEL: "true"}},
            status={"phase": "Running", "nodeName": "n1", "activePods": {"p1": "n1", "p2": "n2"}},
        ),
    )
    assert found.active_pods == {"p1": "n1", "p2": "n2"}
    assert (found.phase, found.node) == ("Running", "n1")


def test_n4_a_vmi_knows_the_virtual_machine_that_controls_it() -> None:
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "m1", "controller": True}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j1", "controller": True}
    found = read(VMI, obj({"ownerReferences": [job, owner]}))
    assert found.owner == Owner(name="vm", uid="m1")
    for other in ([], [job], [owner | {"controller": False}], [owner | {"apiVersion": "example.org/v1"}], None):
        found = read(VMI, obj({"ownerReferences": other}))
        assert found.owner is None
        assert b"owner" not in msgspec.json.encode(found), "an older journal holds the same VMI"


def permitted(**table: Any) -> dict[str, Any]:
    return obj(spec={"configuration": {"permittedHostDevices": table}})


def test_the_permitted_table() -> None:
    """R1: vendors as written, so that any case can be compared; a missing list permits nothing (C36)."""
    found = read(
        KUBEVIRT,
        permitted(
            pciHostDevices=[{"pciVendorSelector": "10de:2236", "resourceName": R, "externalResourceProvider": True}],
            mediatedDevices=[{"mdevNameSelector": "NVIDIA A40-24Q", "resourceName": "nvidia.com/A40-24Q"}],
        ),
    )
    assert found.permitted == (
        objects.PermittedDevice(R, vendor="10de"),
        objects.PermittedDevice("nvidia.com/A40-24Q", mediated=True),
    )
    for empty in (obj(), obj(spec={"configuration": {}}), permitted(pciHostDevices=None)):
        assert read(KUBEVIRT, empty).permitted == ()


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"pciHostDevices": [{"resourceName": R}]}, "pciHostDevices[0]"),
        ({"pciHostDevices": [{"pciVendorSelector": "10DE:2236"}]}, "pciHostDevices[0]"),
        ({"pciHostDevices": [{"pciVendorSelector": "NVIDIA", "resourceName": R}]}, "pciVendorSelector"),
        ({"mediatedDevices": [{"resourceName": R}]}, "mediatedDevices[0]"),
        ({"mediatedDevices": "all"}, "mediatedDevices: Expected"),
    ],
)
def test_a_malformed_entry_makes_the_table_unreadable(table: dict[str, Any], error: str) -> None:
    """R10, P6: so that the last known table stays."""
    assert error in unreadable(KUBEVIRT, permitted(**table)).error


def test_quota_keys_are_kept_as_written_c13() -> None:
    """C13, K3: key forms belong to the reader of budgets; here only what has no "/" or is null is left out."""
    quotas = {
        "cpu": "10",
        "services.loadbalancers": "5",
        "gpu.example/a": "2",
        "gpu.example/A": 1,
        "requests.gpu.example/b": "1500m",
        "limits.gpu.example/c": 0.5,
        "gpu.example/none": None,
        "gpu.example/yes": True,
    }
    found = read(RELEASE, obj(spec={"values": {"resourceQuotas": quotas}}))
    assert found.quotas == {
        "gpu.example/a": "2",
        "gpu.example/A": 1,
        "requests.gpu.example/b": "1500m",
        "limits.gpu.example/c": 0.5,
        "gpu.example/yes": True,
    }
    assert found.error == ""


def test_a_quota_that_is_no_scalar_stays_and_is_refused_later() -> None:
    """R3: it is never skipped; what it holds is not kept (J3)."""
    quotas = {"a/map": {"x": SECRET}, "a/list": [SECRET], "a/long": "9" * 10_000, "a/huge": 10**40}
    body = json.dumps(obj(spec={"values": {"resourceQuotas": quotas}})).replace(str(10**40), "1e999")
    out_of_range = wire.decode_object(RELEASE, body.encode())
    assert isinstance(out_of_range, objects.Release)
    assert out_of_range.quotas["a/huge"] == "a number out of range"
    found = read(RELEASE, obj(spec={"values": {"resourceQuotas": quotas}}))
    assert found.quotas["a/map"] == "a map"
    assert found.quotas["a/list"] == "a list"
    assert len(found.quotas["a/long"]) == 300
    assert found.quotas["a/huge"] >= 10**40


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"resourceQuotas": ["a"]}, "spec.values.resourceQuotas is a list, not a map"),
        ({"resourceQuotas": "none"}, "spec.values.resourceQuotas is a string, not a map"),
        ({"resourceQuotas": False}, "spec.values.resourceQuotas is a boolean, not a map"),
        ({"resourceQuotas": 3}, "spec.values.resourceQuotas is a number, not a map"),
        ("text", "spec.values is a string, not a map"),
        ([], "spec.values is a list, not a map"),
    ],
)
def test_quotas_that_are_no_map_are_an_error_of_the_tenant(values: Any, error: str) -> None:
    """R3: the release stays readable, its budgets are not."""
    found = read(RELEASE, obj(spec={"values": values}))
    assert (found.quotas, found.error) == ({}, error)


@pytest.mark.parametrize("spec", [None, {}, {"values": None}, {"values": {}}, {"values": {"resourceQuotas": None}}])
def test_no_quotas_is_no_error(spec: Any) -> None:
    """R3, C11."""
    found = read(RELEASE, obj(spec=spec))
    assert (found.quotas, found.error) == ({}, "")


def test_a_namespaces_entitlement() -> None:
    """K5: none is not "false"."""
    assert read(NAMESPACE, obj()).entitlement is None
    assert read(NAMESPACE, obj({"labels": {words.ENTITLEMENT_LABEL: "false"}})).entitlement == "false"


def test_the_settings_map() -> None:
    """K4."""
    data = {words.SETTINGS_RESOURCE_NAMES: R, words.SETTINGS_RAW_NAME_POLICY: "Allowed"}
    assert read(SETTINGS, obj(data=data)).data == data
    assert read(SETTINGS, obj()).data == {}


DEVICE_JSON = obj(
    {
        "generation": 2,
        "finalizers": [words.DEVICE_FINALIZER],
        "labels": {words.TEMPLATE_LABEL: "true"},
        "annotations": {words.EPOCH_ANNOTATION: "3"},
    },
    spec={"className": "a", "count": 2},
    status={
        "observedGeneration": 2,
        "phase": "Bound",
        "attachment": {"vmiName": "vm", "requestID": "r1", "since": "2023-11-14T22:13:20.5Z"},
        "bindRequest": {
            "id": "r1",
            "vmiName": "vm",
            "setSize": 1,
            "constraints": {
                "nodeSelector": {"zone": "a"},
                "nodeAffinity": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]},
                        {},
                    ]
                },
                "tolerations": [{"operator": "Exists", "tolerationSeconds": 5}],
                "memoryBytes": 1024,
            },
            "requestedAt": "2023-11-14T22:13:20Z",
        },
        "bindAnswer": {"requestID": "r1", "outcome": "Bound", "node": "n1"},
        "placement": {"node": "n1", "units": 2, "since": "2023-11-14T23:13:20+01:00"},
        "conditions": [{"type": "Held", "status": "True", "lastTransitionTime": "2023-11-14T22:13:20Z"}],
    },
)


def test_a_device_in_full() -> None:
    """O2, P2, J5: an empty term is kept (it matches nothing), an absent affinity is none at all."""
    found = read(DEVICE, DEVICE_JSON)
    assert (found.template, found.epoch, found.generation, found.count) == (True, "3", 2, 2)
    assert found.finalizers == (words.DEVICE_FINALIZER,)
    assert found.attachment == objects.Attachment("vm", "r1", CREATED + 500)
    assert found.bind_request.constraints == objects.Constraints(
        {"zone": "a"},
        (objects.Term((objects.Requirement("k", "In", ("v",)),)), objects.Term()),
        (objects.Toleration(operator="Exists"),),
        1024,
    )
    assert found.bind_answer == objects.BindAnswer("r1", "Bound", node="n1")
    assert found.placement == objects.Placement("n1", 2, CREATED)
    assert found.conditions == (objects.Condition("Held", "True", last_transition_time=CREATED),)
    plain = read(DEVICE, obj(spec={"className": "a"}))
    assert (plain.count, plain.phase, plain.template, plain.attachment) == (1, "", False, None)


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (("spec", "count"), "two", "spec.count: Expected `int`, got `str`"),
        (("spec", "count"), 0, "spec.count"),
        (("spec", "className"), None, "spec.className"),
        (("status",), "broken", "status: Expected"),
        (("status", "phase"), "Flying", "status.phase: Invalid enum value 'Flying'"),
        (("status", "attachment"), {}, "status.attachment: Object missing required field `vmiName`"),
        (("status", "placement", "units"), -1, "status.placement.units"),
        (("status", "placement", "since"), "yesterday", "status.placement.since: Invalid RFC3339"),
        (("status", "bindAnswer", "outcome"), "Maybe", "status.bindAnswer.outcome"),
        (("metadata", "labels"), "none", "metadata.labels"),
        (("metadata", "finalizers"), [1], "metadata.finalizers[0]"),
    ],
)
def test_a_broken_device_is_set_aside_by_name(path: tuple[str, ...], value: Any, error: str) -> None:
    """R10, C42: the error names the field, the identity survives."""
    broken = json.loads(json.dumps(DEVICE_JSON))
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    found = unreadable(DEVICE, broken)
    assert (found.key, found.uid, found.resource_version) == (Key("GPUDevice", "tenant-a", "x"), "u1", "7")
    assert found.error.startswith(error)


def test_a_class() -> None:
    """O1."""
    spec = {"resourceName": R, "mode": "VGPU", "maxCount": 4, "displayName": "A", "description": "B"}
    status = {"observedGeneration": 1, "units": {"served": 4, "free": 3}, "largestFree": {"node": "n", "units": 2}}
    found = read(CLASS, obj({"generation": 1}, spec=spec, status=status))
    assert (found.mode, found.max_count, found.display_name, found.description) == ("VGPU", 4, "A", "B")
    assert (found.units, found.largest_free) == (objects.ClassUnits(4, free=3), objects.LargestFree("n", 2))


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"mode": "VGPU"}, "spec.resourceName is missing"),
        ({"resourceName": R}, "spec.mode is missing"),
        ({"resourceName": R, "mode": "Shared"}, "spec.mode: Invalid enum value 'Shared'"),
        ({"resourceName": R, "mode": "VGPU", "maxCount": "1"}, "spec.maxCount: Expected"),
    ],
)
def test_a_broken_class(spec: dict[str, Any], error: str) -> None:
    """R10."""
    assert unreadable(CLASS, obj(spec=spec)).error.startswith(error)


def test_an_agents_report() -> None:
    """O3."""
    functions = [
        {"id": "0000:3b:00.0", "stableID": "s1", "kind": "MdevParent", "healthy": False, "message": "m",
         "profiles": [{"resourceName": R, "used": 1, "remaining": 2}]},
        {"id": "0000:3b:00.4", "parent": "0000:3b:00.0", "kind": "VirtualFunction", "resourceName": R},
    ]  # fmt: skip
    found = read(GPU_NODE, obj(status={"reportedAt": "2023-11-14T22:13:20Z", "functions": functions}))
    assert found.reported_at == CREATED
    assert found.functions == (
        objects.Function("0000:3b:00.0", "s1", "", "MdevParent", "", False, "m", (objects.Profile(R, 1, 2),)),
        objects.Function("0000:3b:00.4", "", "0000:3b:00.0", "VirtualFunction", R),
    )
    assert read(GPU_NODE, obj()).functions == ()
    broken = [{"id": "a", "kind": "MdevParent", "profiles": [{"resourceName": R, "remaining": -1}]}]
    found = unreadable(GPU_NODE, obj(status={"functions": broken}))
    assert found.error.startswith("status.functions[0].profiles[0].remaining")


@pytest.mark.parametrize(
    ("kind", "object_", "error"),
    [
        (NODE, obj(status={"allocatable": {R: "two"}}), "status.allocatable[nvidia.com/A40]: 'two'"),
        (NODE, obj(status={"allocatable": {R: "-1"}}), "status.allocatable[nvidia.com/A40]: '-1' is negative"),
        (NODE, obj(status={"allocatable": {"memory": True}}), "status.allocatable[...]: Expected"),
        (POD, obj(spec={"containers": [resources(memory="x")]}), "spec.containers.resources[memory]: 'x'"),
        (POD, obj(spec={"containers": "none"}), "spec.containers: Expected"),
    ],
)
def test_a_broken_quantity_is_set_aside_by_name(kind: Kind, object_: dict[str, Any], error: str) -> None:
    """R10."""
    assert unreadable(kind, object_).error.startswith(error)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_lines_that_are_no_change(kind: Kind) -> None:
    """N7, R10: a deletion and a bookmark need the metadata only, whatever else the object holds."""
    key = Key(kind.name, "tenant-a", "x")
    for broken in ({}, {"spec": 3, "status": [], "data": 1}):
        assert wire.decode_line(kind, line(obj(**broken), "DELETED")) == wire.Removed(key, "u1", "7")
        bookmark = {"kind": kind.name, "metadata": {"resourceVersion": "12"}} | broken
        assert wire.decode_line(kind, line(bookmark, "BOOKMARK")) == wire.Bookmark("12")


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("status", "failed"),
    [
        (
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410,
             "message": "too old resource version", "reason": "Expired"},
            wire.Failed(410, "too old resource version"),
        ),
        ({"status": "Failure", "reason": "Expired"}, wire.Failed(410, "Expired")),
        ({"code": 500}, wire.Failed(500, "an error event without a message")),
        ({"metadata": None, "code": None}, wire.Failed(0, "an error event without a message")),
        (None, wire.Failed(0, "an error event without a message")),
        ("boom", wire.Failed(0, "an error event whose status cannot be read")),
    ],
)  # fmt: skip
def test_error_events_need_no_metadata_c39(kind: Kind, status: Any, failed: wire.Failed) -> None:
    """C39, N7: never read as an object, never as a version."""
    assert wire.decode_line(kind, line(status, "ERROR")) == failed


@pytest.mark.parametrize(
    "object_",
    [{}, {"metadata": None}, {"metadata": {"resourceVersion": None}}, {"metadata": {"resourceVersion": ""}}],
)
def test_a_bookmark_without_a_version_moves_nothing_c39(object_: dict[str, Any]) -> None:
    """C39: "None" is no version."""
    assert isinstance(wire.decode_line(NODE, line(object_, "BOOKMARK")), wire.Unreadable)


@pytest.mark.parametrize(
    ("bad", "uid"), [({"creationTimestamp": 5}, "u1"), ({"uid": 5}, ""), ({"labels": {"a": 1}}, "u1")]
)
def test_what_can_be_read_of_broken_metadata_is_told(bad: dict[str, Any], uid: str) -> None:
    """R10."""
    found = unreadable(NODE, obj(bad))
    assert (found.key, found.uid, found.resource_version) == (Key("Node", "tenant-a", "x"), uid, "7")
    assert found.error.startswith("metadata.")


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"null", b"[]", b'{"type":"ADDED"}', b'{"object":{}}', b'{"type":"ADDED","object":null}',
     b'{"type":"ADDED","object":{"metadata":[]}}', b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}',
     b'{"type":"WHO","object":{}}', b'{"type":5,"object":{}}', b"\xff\xfe",
     b'{"type":"ADDED","object":{"spec":' + b"[" * 100_000],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_nonsense_is_told_and_stops_nothing(kind: Kind, raw: bytes) -> None:
    """R10, W5."""
    found = wire.decode_line(kind, raw)
    assert isinstance(found, wire.Unreadable)
    assert found.error
    assert isinstance(wire.decode_object(kind, raw), wire.Unreadable)


def test_one_broken_item_spoils_no_list() -> None:
    """R10, C42."""
    items = [obj({"uid": "u1"}), obj({"uid": "u2"}, status=[]), obj({"uid": ""}), obj({"uid": "u4"})]
    body = json.dumps({"kind": "NodeList", "metadata": {"resourceVersion": "9"}, "items": items}).encode()
    listed = wire.decode_list(NODE, body)
    assert [found.uid for found in listed.objects] == ["u1", "u4"]
    assert [(found.uid, found.error.split(":")[0]) for found in listed.unreadable] == [
        ("u2", "status"),
        ("", "metadata.uid is missing"),
    ]


@pytest.mark.parametrize("depth", [150, 1_100, 9_000])
@pytest.mark.parametrize("opening", ['{"a":', "[", '{"\\"]}":[0,'])
def test_a_deeply_nested_object_spoils_no_list(depth: int, opening: str) -> None:
    """R10, R3: a tenant's value nested deeper than the decoder goes hides neither other tenants nor a budget."""
    closing = "".join({"{": "}", "[": "]"}[char] for char in reversed(opening) if char in "{[")
    closing = closing if '"]' not in opening else "]}"
    deep = opening * depth + "1" + closing * depth
    meta = json.dumps(META)
    release = f'{{"spec":{{"values":{{"x":{deep},"resourceQuotas":{{"a/x":1,"a/y":{deep}}}}}}},"metadata":{meta}}}'
    body = f'{{"items":[{release},{release}],"metadata":{{"resourceVersion":"9"}}}}'.encode()
    json_type = "a map" if opening.startswith("{") else "a list"
    listed = wire.decode_list(RELEASE, body)
    assert [found.quotas for found in listed.objects] == [{"a/x": 1, "a/y": json_type}] * 2
    changed = wire.decode_line(RELEASE, f'{{"type":"ADDED","object":{release}}}'.encode())
    assert changed == wire.Changed(listed.objects[0])
    broken = release.replace('"uid": "u1"', '"uid": 5').encode()
    assert wire.decode_object(RELEASE, broken).key == Key("HelmRelease", "tenant-a", "x")


def test_an_empty_list_may_be_null() -> None:
    assert wire.decode_list(NODE, b'{"metadata":{"resourceVersion":"9"},"items":null}') == wire.Listed("9", [], [])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"oops", "the list of nodes cannot be read"),
        (b'{"items":3,"metadata":{"resourceVersion":"1"}}', "items: Expected `array | null`"),
        (b'{"items":[]}', "no metadata.resourceVersion"),
        (b'{"items":[],"metadata":{"resourceVersion":""}}', "no metadata.resourceVersion"),
    ],
)
def test_what_is_no_list_is_an_error_c39(body: bytes, error: str) -> None:
    """C39: a list without a version would start a watch from nowhere."""
    with pytest.raises(wire.WireError) as raised:
        wire.decode_list(NODE, body)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2023-11-14T22:13:20Z", CREATED),
        ("2023-11-14T22:13:20.123Z", CREATED + 123),
        ("2023-11-14T22:13:20.123999Z", CREATED + 123),
        ("2023-11-15T00:13:20+02:00", CREATED),
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59Z", -1000),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert wire.to_ms(text) == ms


@pytest.mark.parametrize("text", ["", "now", "2023-11-14", "2023-11-14T22:13:20", "2023-13-14T22:13:20Z"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        wire.to_ms(text)


times = st.integers(0, 253_402_300_799_999)


@given(times)
def test_times_survive_the_way_out_and_back(ms: int) -> None:
    text = wire.from_ms(ms)
    assert wire.to_ms(text) == ms
    assert len(text) == len("2023-11-14T22:13:20.123000Z")


names = st.sampled_from(["a", "b", "c"])
texts = st.sampled_from(["", "a", "b"])
requirements = st.builds(
    objects.Requirement, names, st.sampled_from(["In", "Exists"]), st.lists(names, max_size=2).map(tuple)
)
terms = st.builds(
    objects.Term,
    st.lists(requirements, max_size=2).map(tuple),
    st.lists(requirements, max_size=1).map(tuple),
)
tolerations = st.builds(objects.Toleration, texts, st.sampled_from(["Equal", "Exists"]), texts, texts)
constraints = st.builds(
    objects.Constraints,
    st.dictionaries(names, texts),
    st.none() | st.lists(terms, max_size=2).map(tuple),
    st.lists(tolerations, max_size=2).map(tuple),
    st.integers(0, 2**50),
)
devices = st.fixed_dictionaries(
    {
        "attachment": st.none() | st.builds(objects.Attachment, names, texts, times),
        "bind_request": st.none() | st.builds(objects.BindRequest, names, names, st.integers(1, 9), constraints, times),
        "bind_answer": st.none()
        | st.builds(objects.BindAnswer, names, st.sampled_from(["Bound", "Refused"]), texts, texts, texts, times),
        "placement": st.none() | st.builds(objects.Placement, names, st.integers(1, 9), times),
        "conditions": st.lists(
            st.builds(objects.Condition, names, names, texts, texts, st.integers(0, 9), times), max_size=2
        ).map(tuple),
    }
)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def status_patch(status: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {
        "attachment": wire.attachment_body(status["attachment"]),
        "bindRequest": wire.request_body(status["bind_request"], before.get("bind_request")),
        "bindAnswer": wire.answer_body(status["bind_answer"]),
        "placement": wire.placement_body(status["placement"]),
        "conditions": [wire.condition_body(condition) for condition in status["conditions"]],
    }


@given(before=devices, after=devices)
def test_what_is_written_over_an_older_status_reads_as_meant(before: dict[str, Any], after: dict[str, Any]) -> None:
    """B1, B2: the bodies are exact as merge patches, so nothing of an older request or answer survives."""
    status = merged(merged({}, status_patch(before, {})), status_patch(after, before))
    found = read(DEVICE, obj(spec={"className": "a"}, status=status))
    assert {name: getattr(found, name) for name in after} == after


def test_what_counts_as_a_change() -> None:
    """J3, B6."""
    node = read(NODE, NODE_JSON)
    heartbeat = msgspec.structs.replace(node, resource_version="8")
    assert not wire.significant(NODE, node, heartbeat)
    assert wire.significant(NODE, node, msgspec.structs.replace(heartbeat, ready=False))
    assert wire.significant(NODE, node, msgspec.structs.replace(heartbeat, uid="u2"))
    device = read(DEVICE, DEVICE_JSON)
    assert not wire.significant(DEVICE, device, device)
    assert wire.significant(DEVICE, device, msgspec.structs.replace(device, resource_version="8"))
    report = read(GPU_NODE, obj())
    later = msgspec.structs.replace(report, reported_at=5, resource_version="8")
    assert not wire.significant(GPU_NODE, report, later)
    gone = msgspec.structs.replace(later, functions=(objects.Function("f1"),))
    assert wire.significant(GPU_NODE, report, gone)
