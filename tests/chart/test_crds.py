"""The CRDs as plain files: structural, described to the last field, bounded, immutable where they must be."""

from pathlib import Path
from typing import Any

import pytest
import yaml

CRDS = Path(__file__).parents[2] / "chart" / "files" / "crds"
KINDS = {"GPUClass": "gpuclasses", "GPUDevice": "gpudevices", "GPUNode": "gpunodes"}
UNSTRUCTURED = "x-kubernetes-preserve-unknown-fields"


def load(kind: str) -> dict[str, Any]:
    return yaml.safe_load((CRDS / f"{KINDS[kind]}.yaml").read_text())


def schema_of(kind: str) -> dict[str, Any]:
    return load(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def walk(path: str, schema: dict[str, Any]):
    """Every schema node below `schema` with its path, itself first."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(f"{path}.{name}", child)
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from walk(f"{path}[]", schema[keyword])


def field(kind: str, path: str) -> dict[str, Any]:
    node = schema_of(kind)
    for part in path.split("."):
        node = node["items"] if part == "[]" else node["properties"][part]
    return node


def nodes():
    return [pytest.param(path, node, id=path) for kind in KINDS for path, node in walk(kind, schema_of(kind))]


@pytest.mark.parametrize("kind", KINDS)
def test_O4_identity_short_names_category_and_status_subresource(kind):
    crd = load(kind)
    spec, version = crd["spec"], crd["spec"]["versions"][0]
    assert crd["metadata"]["name"] == f"{KINDS[kind]}.gpu.cozystack.io"
    assert (spec["group"], version["name"]) == ("gpu.cozystack.io", "v1alpha1")
    assert spec["scope"] == ("Namespaced" if kind == "GPUDevice" else "Cluster")
    assert spec["names"]["categories"] == ["gpu"]
    assert spec["names"]["shortNames"]
    assert version["subresources"] == {"status": {}}
    assert version["served"] and version["storage"]


def test_O4_short_names_are_unique():
    taken = [name for kind in KINDS for name in load(kind)["spec"]["names"]["shortNames"]]
    assert len(taken) == len(set(taken))
    assert {"gpucls", "gd", "gpudev", "gn"} <= set(taken)


@pytest.mark.parametrize(("path", "node"), nodes())
def test_O4_every_field_is_structural_described_and_bounded(path, node):
    assert "type" in node or node.get(UNSTRUCTURED), "structural schemas type every field"
    if not path.endswith(".metadata") and not path.endswith("nodeSelector[]"):
        assert node.get("description", "").strip(), "kubectl explain would show nothing"
    if node.get("type") == "array":
        assert node["maxItems"] > 0, "the cost of CEL rules is bounded by the list's size"
    if node.get("type") == "integer":
        assert "minimum" in node
    if node.get("type") == "string" and path.split(".")[-1] not in ("apiVersion", "kind"):
        assert {"maxLength", "enum", "format"} & set(node) or path.endswith("nodeSelector[]")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("GPUClass", "spec.resourceName"),
        ("GPUClass", "spec.mode"),
        ("GPUDevice", "spec.className"),
        ("GPUDevice", "spec.count"),
    ],
)
def test_O1_O2_immutable_fields_cannot_change_or_vanish(kind, path):
    rules = [rule["rule"] for rule in field(kind, path)["x-kubernetes-validations"]]
    assert "self == oldSelf" in rules
    required = field(kind, path.rpartition(".")[0])["required"]
    assert path.rpartition(".")[2] in required or "default" in field(kind, path)


def test_O2_count_bounds_and_default():
    count = field("GPUDevice", "spec.count")
    assert (count["minimum"], count["maximum"], count["default"]) == (1, 1024, 1)


def test_O2_phases_and_outcomes():
    assert field("GPUDevice", "status.phase")["enum"] == [
        "Pending", "Held", "Attached", "Bound", "Lost", "Releasing",
    ]  # fmt: skip
    assert field("GPUDevice", "status.bindAnswer.outcome")["enum"] == ["Bound", "Refused"]
    assert field("GPUClass", "spec.mode")["enum"] == ["Passthrough", "VGPU"]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("status.attachment", {"vmiName", "requestID", "since"}),
        ("status.bindRequest", {"id", "vmiName", "setSize", "constraints", "requestedAt"}),
        (
            "status.bindRequest.constraints",
            {"nodeSelector", "nodeAffinity", "tolerations", "memoryBytes"},
        ),
        ("status.bindAnswer", {"requestID", "outcome", "reason", "message", "node", "answeredAt"}),
        ("status.placement", {"node", "units", "since"}),
    ],
)
def test_O2_the_protocol_has_the_fields_of_the_contract(path, names):
    assert set(field("GPUDevice", path)["properties"]) == names


def test_O1_O3_status_has_the_fields_of_the_contract():
    assert set(field("GPUClass", "status")["properties"]) == {
        "observedGeneration", "units", "largestFree", "conditions",
    }  # fmt: skip
    assert set(field("GPUClass", "status.units")["properties"]) == {
        "served", "bound", "held", "raw", "free",
    }  # fmt: skip
    assert set(field("GPUNode", "status")["properties"]) == {"reportedAt", "functions"}
    assert set(field("GPUNode", "status.functions.[]")["properties"]) == {
        "id", "stableID", "parent", "kind", "resourceName", "healthy", "message", "profiles",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["GPUClass", "GPUDevice"])
def test_O1_O2_conditions_are_metav1_conditions_keyed_by_type(kind):
    conditions = field(kind, "status.conditions")
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    item = conditions["items"]
    assert set(item["required"]) == {"type", "status", "lastTransitionTime", "reason", "message"}
    assert set(item["properties"]) == {*item["required"], "observedGeneration"}


@pytest.mark.parametrize("kind", KINDS)
def test_O4_printer_columns_read_fields_that_exist(kind):
    columns = load(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert "Age" in [column["name"] for column in columns]
    for column in columns:
        assert isinstance(column["name"], str), "YAML reads a bare On or No as a truth value"
        path = column["jsonPath"].removeprefix(".").split("[")[0]
        if path.startswith("metadata."):
            continue
        node = schema_of(kind)
        for part in path.split("."):
            assert part in node["properties"], column["jsonPath"]
            node = node["properties"][part]


@pytest.mark.parametrize("kind", KINDS)
def test_N6_C47_crds_outlive_the_release_and_carry_no_finalizer(kind):
    metadata = load(kind)["metadata"]
    assert metadata["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "finalizers" not in metadata


def test_N2_no_short_name_is_one_of_the_gateway_api():
    taken = {name for kind in KINDS for name in load(kind)["spec"]["names"]["shortNames"]}
    assert not taken & {"gc", "gtw", "refgrant", "btlspolicy"}
