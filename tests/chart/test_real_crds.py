"""Every validation of the CRDs, provoked on a real API server (O1, O2, O3, O4)."""

import copy
import uuid

import pytest

from tests.chart.api import Refused

pytestmark = pytest.mark.realserver

NOW = "2026-05-01T10:00:00.123456Z"
CLASS = {
    "kind": "GPUClass",
    "spec": {"resourceName": "nvidia.com/GA102GL_A10", "mode": "Passthrough", "maxCount": 4},
}
DEVICE = {"kind": "GPUDevice", "spec": {"className": "a10", "count": 2}}
STATUS = {
    "observedGeneration": 1,
    "phase": "Bound",
    "phaseSince": NOW,
    "attachment": {"vmiName": "vm", "requestID": "r1", "since": NOW},
    "bindRequest": {
        "id": "r1",
        "vmiName": "vm",
        "setSize": 1,
        "requestedAt": NOW,
        "constraints": {
            "nodeSelector": {"zone": "a"},
            "nodeAffinity": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            ],
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "memoryBytes": 8 << 30,
        },
    },
    "bindAnswer": {"requestID": "r1", "outcome": "Bound", "node": "n1", "answeredAt": NOW},
    "placement": {"node": "n1", "units": 2, "since": NOW},
    "conditions": [
        {
            "type": "Held",
            "status": "True",
            "reason": "Accepted",
            "message": "",
            "lastTransitionTime": "2026-05-01T10:00:00Z",
            "observedGeneration": 1,
        }
    ],
}
REPORT = {
    "reportedAt": NOW,
    "functions": [
        {
            "id": "0000:3b:00.0",
            "stableID": "u1",
            "kind": "MdevParent",
            "healthy": True,
            "profiles": [{"resourceName": "nvidia.com/NVIDIA_A16-4Q", "used": 1, "remaining": 3}],
        },
        {
            "id": "0000:5e:00.4",
            "kind": "VirtualFunction",
            "parent": "0000:5e:00.0",
            "healthy": False,
            "resourceName": "nvidia.com/A10",
        },
    ],
}


def changed(base, path, value):
    """A copy of `base` with one field set, or removed where `value` is `...`."""
    result = copy.deepcopy(base)
    *parents, last = path.split(".")
    node = result
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node[int(part)]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return result


def named(manifest, name=""):
    return manifest | {"metadata": {"name": name or f"x-{uuid.uuid4().hex[:8]}"}}


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("spec", ..., "spec"),
        ("spec.resourceName", ..., "spec.resourceName"),
        ("spec.resourceName", "gpu", "spec.resourceName"),
        ("spec.resourceName", "Nvidia.com/x", "spec.resourceName"),
        ("spec.resourceName", "requests.nvidia.com/x", "plain name"),
        ("spec.resourceName", "limits.nvidia.com/x", "plain name"),
        ("spec.mode", "Shared", "spec.mode"),
        ("spec.mode", ..., "spec.mode"),
        ("spec.maxCount", 0, "spec.maxCount"),
        ("spec.maxCount", 1025, "spec.maxCount"),
        ("spec.displayName", "n" * 129, "spec.displayName"),
        ("metadata.name", "c" * 64, "at most 63"),
    ],
)
def test_O1_O4_a_class_that_cannot_be_meant_is_refused(server, path, value, told):
    with pytest.raises(Refused, match=told) as refused:
        server.create(changed(named(CLASS), path, value), dry_run=True)
    assert refused.value.code == 422


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("spec.className", ..., "spec.className"),
        ("spec.className", "", "spec.className"),
        ("spec.className", "A10", "spec.className"),
        ("spec.className", "c" * 64, "spec.className"),
        ("spec.count", 0, "spec.count"),
        ("spec.count", -1, "spec.count"),
        ("spec.count", 1025, "spec.count"),
        ("spec.count", 10**12, "spec.count"),
        ("spec.count", "2", "spec.count"),
    ],
)
def test_O2_O4_an_order_that_cannot_be_meant_is_refused(server, tenant, path, value, told):
    with pytest.raises(Refused, match=told):
        server.create(changed(named(DEVICE), path, value), tenant, dry_run=True)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("GPUClass", "spec.resourceName", "nvidia.com/other"),
        ("GPUClass", "spec.mode", "VGPU"),
        ("GPUDevice", "spec.className", "other"),
        ("GPUDevice", "spec.count", 3),
        ("GPUDevice", "spec.count", None),
    ],
)
def test_O1_O2_immutable_fields(server, tenant, kind, path, value):
    base = CLASS if kind == "GPUClass" else DEVICE
    made = server.create(named(base), tenant)
    with pytest.raises(Refused, match="immutable"):
        server.patch(kind, made["metadata"]["name"], changed({}, path, value), tenant)
    server.delete(kind, made["metadata"]["name"], tenant)


def test_O1_what_is_not_immutable_can_change(server, tenant):
    made = server.create(named(CLASS))
    name = made["metadata"]["name"]
    assert server.patch("GPUClass", name, {"spec": {"maxCount": None}})["metadata"]["generation"] == 2
    server.delete("GPUClass", name)


def test_O2_count_defaults_to_one(server, tenant):
    made = server.create(changed(named(DEVICE), "spec.count", ...), tenant, dry_run=True)
    assert made["spec"]["count"] == 1


def test_O2_the_status_is_a_subresource_and_keeps_every_field_of_the_protocol(server, tenant):
    made = server.create(named(DEVICE) | {"status": STATUS}, tenant)
    assert "status" not in made, "a create writes no status"
    name = made["metadata"]["name"]
    written = server.patch("GPUDevice", name, {"status": STATUS}, tenant, sub="status")
    assert written["status"] == STATUS
    assert written["metadata"]["generation"] == 1
    server.delete("GPUDevice", name, tenant)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("phase", "Happy"),
        ("attachment.vmiName", ...),
        ("attachment.vmiName", "v" * 254),
        ("attachment.since", "yesterday"),
        ("bindRequest.id", ...),
        ("bindRequest.setSize", 0),
        ("bindRequest.constraints.memoryBytes", -1),
        ("bindAnswer.outcome", "Maybe"),
        ("placement.units", 0),
        ("placement.node", ""),
        ("conditions.0.status", "Yes"),
        ("conditions.0.reason", ""),
        ("conditions.0.reason", "not camel"),
        ("conditions", [STATUS["conditions"][0]] * 2),
    ],
)
def test_O2_O4_a_broken_status_is_refused_by_the_schema(server, tenant, path, value):
    made = server.create(named(DEVICE), tenant)
    name = made["metadata"]["name"]
    with pytest.raises(Refused):
        server.patch("GPUDevice", name, {"status": changed(STATUS, path, value)}, tenant, sub="status")
    server.delete("GPUDevice", name, tenant)


def test_O3_a_report_is_kept_as_written_and_a_broken_one_refused(server):
    made = server.create(named({"kind": "GPUNode"}))
    name = made["metadata"]["name"]
    assert server.patch("GPUNode", name, {"status": REPORT}, sub="status")["status"] == REPORT
    for path, value in (
        ("functions.0.kind", "Card"),
        ("functions.0.id", ""),
        ("functions.1.id", "0000:3b:00.0"),
        ("functions.0.profiles.0.used", -1),
        ("reportedAt", "now"),
    ):
        with pytest.raises(Refused):
            server.patch("GPUNode", name, {"status": changed(REPORT, path, value)}, sub="status")
    server.delete("GPUNode", name)


def test_O4_tables_answer_what_whose_where_since_when(server, tenant):
    made = server.create(named(DEVICE), tenant)
    name = made["metadata"]["name"]
    server.patch("GPUDevice", name, {"status": STATUS}, tenant, sub="status")
    table = server.table("GPUDevice", tenant, name)
    assert table["Class"] == "a10" and table["Count"] == 2 and table["Phase"] == "Bound"
    assert table["VM"] == "vm" and table["Node"] == "n1" and table["Since"]
    held = {"phase": "Held", "phaseSince": NOW, "attachment": None, "placement": None}
    server.patch("GPUDevice", name, {"status": held}, tenant, sub="status")
    assert server.table("GPUDevice", tenant, name)["Since"]
    server.delete("GPUDevice", name, tenant)
    node = server.create(named({"kind": "GPUNode"}))["metadata"]["name"]
    server.patch("GPUNode", node, {"status": REPORT}, sub="status")
    table = server.table("GPUNode", "", node)
    assert table["Function"] == "0000:3b:00.0" and table["Resource"] == "nvidia.com/A10"
    assert table["Unhealthy"] == "0000:5e:00.4"
    server.delete("GPUNode", node)


def test_O4_orders_can_be_selected_by_class_and_phase(server, tenant):
    name = server.create(named(DEVICE), tenant)["metadata"]["name"]
    for selector, expected in (("spec.className=a10", True), ("spec.className=other", False)):
        items = server.list("GPUDevice", tenant, field_selector=selector)
        assert (name in [item["metadata"]["name"] for item in items]) is expected
    server.delete("GPUDevice", name, tenant)


def test_O4_category_and_short_names_are_served(server):
    resources = server.call("GET", "/apis/gpu.cozystack.io/v1alpha1")["resources"]
    served = {item["kind"]: item for item in resources if "/" not in item["name"]}
    assert set(served) == {"GPUClass", "GPUDevice", "GPUNode"}
    assert all(item["categories"] == ["gpu"] for item in served.values())
    assert served["GPUDevice"]["shortNames"] == ["gpudev", "gd"]
