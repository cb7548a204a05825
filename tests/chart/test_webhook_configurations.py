"""The webhook configurations select exactly what W1 to W4 say and nothing that heals the cluster (N2, N3, C20)."""

import pytest

from tests.chart.charting import NAMESPACE, RELEASE, pick, render

PATHS = {
    "devices": "/admit/devices",
    "machines": "/admit/machines",
    "pods": "/admit/pods",
    "tenants": "/admit/tenants",
}


def webhooks(values=None):
    manifests = render(values)
    return {
        webhook["name"].split(".")[0]: webhook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for webhook in pick(manifests, kind)["webhooks"]
    }


@pytest.mark.parametrize("name", PATHS)
def test_N2_every_webhook_fails_closed_and_is_reached_by_service(name):
    webhook = webhooks()[name]
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["admissionReviewVersions"] == ["v1"]
    assert webhook["clientConfig"] == {
        "service": {"namespace": NAMESPACE, "name": RELEASE, "path": PATHS[name], "port": 443}
    }, "no caBundle: an upgrade would overwrite the authority"


@pytest.mark.parametrize("name", PATHS)
def test_C20_own_and_system_namespaces_are_excluded(name):
    (expression,) = webhooks({"webhooks.excludedNamespaces": ["cozy-system"]})[name]["namespaceSelector"][
        "matchExpressions"
    ]
    assert expression["key"] == "kubernetes.io/metadata.name"
    assert expression["operator"] == "NotIn"
    assert expression["values"] == sorted(["kube-system", NAMESPACE, "cozy-system"])


@pytest.mark.parametrize("name", PATHS)
def test_C17_B3_the_timeout_lies_above_our_own_deadline_and_within_what_the_api_server_takes(name):
    assert 8 + 2 <= webhooks()[name]["timeoutSeconds"] <= 30
    assert webhooks({"webhooks.timeoutSeconds": 20})[name]["timeoutSeconds"] == 20


def test_W1_devices_are_validated_on_create_and_on_guarded_updates():
    webhook = webhooks()["devices"]
    assert webhook["rules"] == [
        {
            "apiGroups": ["gpu.cozystack.io"], "apiVersions": ["v1alpha1"], "resources": ["gpudevices"],
            "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
        }
    ]  # fmt: skip
    assert webhook["sideEffects"] == "None"
    assert "objectSelector" not in webhook, "every order is checked"
    conditions = {item["name"]: item["expression"] for item in webhook["matchConditions"]}
    assert f"system:serviceaccount:{NAMESPACE}:{RELEASE}" in conditions["not-by-the-controller"]
    for guarded in ("object.spec", "template-device", "leader-epoch", "gpu.cozystack.io/units"):
        assert guarded in conditions["guarded-field"]


def test_W2_C16_machines_are_mutated_on_create_by_label_and_declare_dry_run():
    webhook = webhooks()["machines"]
    assert webhook["objectSelector"] == {"matchLabels": {"gpu.cozystack.io/devices": "true"}}
    assert webhook["sideEffects"] == "NoneOnDryRun"
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    (rule,) = webhook["rules"]
    assert rule["resources"] == ["virtualmachineinstances"] and rule["operations"] == ["CREATE"]


def test_W3_C20_C25_only_launchers_of_labelled_machines_are_seen():
    webhook = webhooks()["pods"]
    assert webhook["objectSelector"] == {
        "matchLabels": {"gpu.cozystack.io/devices": "true", "kubevirt.io": "virt-launcher"}
    }
    assert webhook["sideEffects"] == "None"
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    (rule,) = webhook["rules"]
    assert rule["resources"] == ["pods"] and rule["operations"] == ["CREATE"]


def test_W4_tenant_releases_are_validated_when_a_budget_key_changes():
    webhook = webhooks()["tenants"]
    assert webhook["objectSelector"] == {"matchLabels": {"apps.cozystack.io/application.kind": "Tenant"}}
    assert webhook["sideEffects"] == "None"
    (rule,) = webhook["rules"]
    assert rule["resources"] == ["helmreleases"] and rule["operations"] == ["CREATE", "UPDATE"]
    (condition,) = webhook["matchConditions"]
    assert "resourceQuotas" in condition["expression"]


def test_N3_nothing_but_the_four_is_intercepted():
    assert set(webhooks()) == set(PATHS)
    resources = {r for webhook in webhooks().values() for rule in webhook["rules"] for r in rule["resources"]}
    assert resources == {"gpudevices", "virtualmachineinstances", "pods", "helmreleases"}
    assert all("DELETE" not in rule["operations"] for webhook in webhooks().values() for rule in webhook["rules"])
