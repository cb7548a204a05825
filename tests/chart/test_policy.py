"""The shape of the raw-name policy; what it lets through is tried on a real API server (V1, V2)."""

from tests.chart.charting import NAMESPACE, of_kind, pick, render


def policy():
    return pick(render(), "ValidatingAdmissionPolicy", "-raw-names")["spec"]


def test_V1_a_missing_settings_map_fails_closed():
    binding = pick(render(), "ValidatingAdmissionPolicyBinding", "-raw-names")["spec"]
    assert binding["paramRef"] == {
        "name": "gpu-settings", "namespace": NAMESPACE, "parameterNotFoundAction": "Deny",
    }  # fmt: skip
    assert binding["validationActions"] == ["Deny"]
    assert policy()["failurePolicy"] == "Fail"
    assert policy()["paramKind"] == {"apiVersion": "v1", "kind": "ConfigMap"}


def test_V1_machines_instances_pods_and_ephemeral_containers_are_matched():
    matched = {resource for rule in policy()["matchConstraints"]["resourceRules"] for resource in rule["resources"]}
    assert matched == {"virtualmachines", "virtualmachineinstances", "pods", "pods/ephemeralcontainers"}


def test_V1_C20_a_missing_settings_map_never_stops_what_heals_the_cluster():
    keys = {item["key"]: item for item in policy()["matchConstraints"]["namespaceSelector"]["matchExpressions"]}
    assert {"kube-system", NAMESPACE} <= set(keys["kubernetes.io/metadata.name"]["values"])
    assert keys["cozystack.io/system"] == {
        "key": "cozystack.io/system", "operator": "NotIn", "values": ["true"],
    }  # fmt: skip


def test_V1_launchers_are_let_through_by_user_name_from_the_settings():
    conditions = {item["name"]: item["expression"] for item in policy()["matchConditions"]}
    assert "request.userInfo.username" in conditions["not-a-launcher-by-kubevirt"]
    assert "managerUsers" in conditions["not-a-launcher-by-kubevirt"]
    assert "tenant-" in conditions["tenant-namespace"]


def test_V2_the_label_is_demanded_whatever_the_raw_name_policy_says():
    expressions = [item["expression"] for item in policy()["validations"]]
    assert "!variables.unlabelled" in expressions


def test_V1_the_watch_on_the_settings_outlives_the_release_and_refuses_nothing():
    anchor = pick(render(), "ValidatingAdmissionPolicy", "-parameter-watch")
    binding = pick(render(), "ValidatingAdmissionPolicyBinding", "-parameter-watch")
    for item in (anchor, binding):
        assert item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert anchor["spec"]["failurePolicy"] == "Ignore"
    assert anchor["spec"]["paramKind"] == policy()["paramKind"]
    assert binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Allow"
    assert binding["spec"]["validationActions"] == ["Audit"]


def test_V1_the_policy_can_be_left_out():
    left = of_kind(render({"policy.enabled": False}), "ValidatingAdmissionPolicy")
    assert [item["metadata"]["name"].rpartition("gpu-binder")[2] for item in left] == ["-node-agent"]
