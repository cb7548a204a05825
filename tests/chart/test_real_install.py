"""The chart's life with the real helm: installed, upgraded, rolled back, turned off, uninstalled (N2, N6, C47)."""

import base64
import copy

import pytest
import yaml

from tests.chart.api import Refused, wait_until
from tests.chart.charting import CHART, CLUSTER_NAME, ENABLED, NAMESPACE, RELEASE, flags
from tests.chart.conftest import helm_on, install, make_namespace, release_on
from tests.chart.helm_hooks import FINALIZERS, HookPlayer, token_of
from tests.chart.policy_cases import machine

pytestmark = pytest.mark.realserver

# Nodes of other suites must not take these pods: without a kubelet they would never end.
NOWHERE = ENABLED | {
    "controller.nodeSelector": {"test": "none"},
    "nodeAgent.nodeSelector": {"test": "none"},
}
CERTIFICATE = f"{RELEASE}-webhook-cert"
CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
AUTHORITY = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()


@pytest.fixture
def release(server):
    """The chart, installed for one test."""
    with release_on(server, **NOWHERE):
        yield server


@pytest.fixture
def controller(release):
    """The API server as the controller's own account, which can do what its rights say and no more."""
    return release.with_token(token_of(release, RELEASE))


def upgrade(server, **values):
    helm_on(server, "upgrade", RELEASE, str(CHART), *flags(NOWHERE | values))


def write_as_controller(controller):
    """What the controller keeps in the release's objects: certificate, authority, settings."""
    data = {"ca.crt": AUTHORITY, "tls.crt": AUTHORITY, "tls.key": AUTHORITY}
    controller.patch("Secret", CERTIFICATE, {"data": data}, NAMESPACE)
    for kind in CONFIGURATIONS:
        current = controller.get(kind, CLUSTER_NAME)
        for webhook in current["webhooks"]:
            webhook["clientConfig"]["caBundle"] = AUTHORITY
        version = current["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "webhooks": current["webhooks"]}
        controller.patch(kind, CLUSTER_NAME, body)
    settings = {"data": {"resourceNames": "nvidia.com/seen", "rawNamePolicy": "Forbidden"}}
    controller.patch("ConfigMap", "gpu-settings", settings, NAMESPACE)


def kept(server):
    """What an upgrade must leave alone."""
    bundles = {
        webhook["name"]: webhook["clientConfig"].get("caBundle")
        for kind in CONFIGURATIONS
        for webhook in server.get(kind, CLUSTER_NAME)["webhooks"]
    }
    secret = server.get("Secret", CERTIFICATE, NAMESPACE).get("data")
    return bundles, secret, server.get("ConfigMap", "gpu-settings", NAMESPACE)["data"]


def arguments(server):
    spec = server.get("StatefulSet", RELEASE, NAMESPACE)["spec"]["template"]["spec"]
    return spec["containers"][0]["args"]


def timeouts(server):
    return {w["timeoutSeconds"] for kind in CONFIGURATIONS for w in server.get(kind, CLUSTER_NAME)["webhooks"]}


def test_N6_upgrades_and_a_rollback_keep_authority_and_settings(release, controller):
    write_as_controller(controller)
    before = kept(release)
    assert set(before[0].values()) == {AUTHORITY} and len(before[0]) == 4
    upgrade(release)
    assert kept(release) == before
    upgrade(
        release,
        **{"webhooks.timeoutSeconds": 20, "settings.resourceNames": ["nvidia.com/x"], "controller.replicas": 3},
    )
    assert kept(release) == before
    assert timeouts(release) == {20}
    assert "--resource-names=nvidia.com/x" in arguments(release)
    assert release.get("StatefulSet", RELEASE, NAMESPACE)["spec"]["replicas"] == 3
    helm_on(release, "rollback", RELEASE, "1")
    assert kept(release) == before
    assert timeouts(release) == {15}
    assert "--resource-names=" in arguments(release)


def test_O4_crds_are_upgraded_with_the_chart(release):
    name = "gpunodes.gpu.cozystack.io"
    crd = release.get("CustomResourceDefinition", name)
    older = copy.deepcopy(crd["spec"]["versions"])
    older[0]["additionalPrinterColumns"] = older[0]["additionalPrinterColumns"][:1]
    release.patch("CustomResourceDefinition", name, {"spec": {"versions": older}})
    helm_on(release, "upgrade", RELEASE, str(CHART), "--force-conflicts", *flags(NOWHERE), check=True)
    wanted = yaml.safe_load((CHART / "files/crds/gpunodes.yaml").read_text())["spec"]["versions"][0]
    found = release.get("CustomResourceDefinition", name)["spec"]["versions"][0]
    assert len(found["additionalPrinterColumns"]) == len(wanted["additionalPrinterColumns"])


def test_N2_the_controller_reaches_nothing_beyond_its_rights(release, controller):
    other = {"kind": "Secret", "metadata": {"name": "other"}}
    release.create(other, NAMESPACE)
    for refused in (
        lambda: controller.create({"kind": "Secret", "metadata": {"name": "mine"}}, NAMESPACE),
        lambda: controller.get("Secret", "other", NAMESPACE),
        lambda: controller.list("Secret", NAMESPACE),
        lambda: controller.get("ConfigMap", "kube-root-ca.crt", NAMESPACE),
        lambda: controller.get("Pod", "x", "kube-system"),
        lambda: controller.list("ClusterRole"),
        lambda: controller.delete(CONFIGURATIONS[0], CLUSTER_NAME),
        lambda: controller.get(CONFIGURATIONS[0], "another"),
    ):
        with pytest.raises(Refused) as forbidden:
            refused()
        assert forbidden.value.code == 403
    release.delete("Secret", "other", NAMESPACE)


def test_O2_aggregated_roles_let_tenants_order_and_never_write_the_status(release):
    def allowed(role, verb, resource, subresource=""):
        rules = release.get("ClusterRole", role).get("rules") or []
        wanted = f"{resource}/{subresource}" if subresource else resource
        return any(
            "gpu.cozystack.io" in rule.get("apiGroups", []) and wanted in rule["resources"] and verb in rule["verbs"]
            for rule in rules
        )

    wait_until(lambda: allowed("view", "list", "gpudevices"), "view is aggregated")
    for role in ("edit", "admin"):
        wait_until(lambda role=role: allowed(role, "create", "gpudevices"), f"{role} is aggregated")
        assert allowed(role, "get", "gpudevices")
        assert not allowed(role, "patch", "gpudevices", "status")
        assert not allowed(role, "create", "gpuclasses")
    assert not allowed("view", "create", "gpudevices")


def test_N5_an_agent_reports_for_its_own_node_only(release):
    account = f"{RELEASE}-node-agent"
    node = {"kind": "Node", "metadata": {"name": "chart-n1"}, "spec": {"unschedulable": True}}
    release.create(node)
    spec = {"serviceAccountName": account, "nodeName": "chart-n1", "containers": [{"name": "a", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}, "spec": spec}
    made = wait_until(lambda: release.create(pod, NAMESPACE), "the agent's pod")
    agent = release.with_token(token_of(release, account, made))
    report = {"status": {"reportedAt": "2026-05-01T10:00:00Z", "functions": []}}

    def foreign_refused():
        try:
            agent.create({"kind": "GPUNode", "metadata": {"name": "chart-n2"}})
        except Refused as refused:
            return "may not report for chart-n2" in refused.message
        release.delete("GPUNode", "chart-n2")
        return False

    wait_until(foreign_refused, "the policy holds")
    agent.create({"kind": "GPUNode", "metadata": {"name": "chart-n1"}})
    agent.patch("GPUNode", "chart-n1", report, sub="status")
    release.create({"kind": "GPUNode", "metadata": {"name": "chart-n2"}})
    with pytest.raises(Refused, match="may not report"):
        agent.patch("GPUNode", "chart-n2", report, sub="status")
    unbound = release.with_token(token_of(release, account))
    with pytest.raises(Refused, match="an unknown node"):
        unbound.patch("GPUNode", "chart-n1", report, sub="status")
    for name in ("chart-n1", "chart-n2"):
        release.delete("GPUNode", name)
    release.delete("Pod", "agent", NAMESPACE, grace_period_seconds=0)
    release.delete("Node", "chart-n1")


def orders(server, namespace):
    """A class in use and an order, with the finalizers of a controller that will be gone."""
    server.create(
        {
            "kind": "GPUClass",
            "metadata": {"name": "chart-a10", "finalizers": [FINALIZERS["GPUClass"]]},
            "spec": {"resourceName": "nvidia.com/GA102GL_A10", "mode": "Passthrough"},
        }
    )
    make_namespace(server, namespace)
    device = {
        "kind": "GPUDevice",
        "metadata": {"name": "d1", "finalizers": [FINALIZERS["GPUDevice"], "tenant.example/keep"]},
        "spec": {"className": "chart-a10"},
    }
    server.create(device, namespace)


def remains(server):
    """Names of what a removed release left, besides what it keeps on purpose."""
    found = [kind for kind in (*CONFIGURATIONS, "ClusterRole") if server.exists(kind, CLUSTER_NAME)]
    found += [kind for kind in ("StatefulSet", "Service", "ServiceAccount") if server.exists(kind, RELEASE, NAMESPACE)]
    found += [f"{RELEASE}-uninstall"] * server.exists("Job", f"{RELEASE}-uninstall", NAMESPACE)
    found += ["policy"] * server.exists("ValidatingAdmissionPolicy", f"{CLUSTER_NAME}-raw-names")
    return found


@pytest.mark.parametrize("how", ["uninstall", "turned off"])
def test_N6_C47_what_is_left_behind_blocks_nothing(server, tmp_path, how):
    namespace = f"tenant-c47{how[:3]}"
    orders(server, namespace)
    make_namespace(server, NAMESPACE)
    install(server, **NOWHERE)
    with HookPlayer(server, tmp_path) as player:
        if how == "uninstall":
            helm_on(server, "uninstall", RELEASE)
        else:
            upgrade(server, **{"gpu.enabled": False})
    assert player.failed == [] and len(player.ran) == 1
    assert remains(server) == []
    device = server.get("GPUDevice", "d1", namespace)
    assert device["metadata"]["finalizers"] == ["tenant.example/keep"], "foreign finalizers stay"
    server.patch("GPUDevice", "d1", {"metadata": {"finalizers": None}}, namespace)
    server.delete("Namespace", namespace)
    wait_until(lambda: not server.exists("Namespace", namespace), "the tenant's namespace goes", 60)
    server.delete("GPUClass", "chart-a10")
    assert not server.exists("GPUClass", "chart-a10")
    server.create(machine("after"), "default", dry_run=True)
    if how != "uninstall":
        helm_on(server, "uninstall", RELEASE)
    server.delete("ConfigMap", "gpu-settings", NAMESPACE)


def test_N6_a_release_can_be_installed_again_over_what_the_first_one_kept(server, tmp_path):
    make_namespace(server, NAMESPACE)
    for _ in range(2):
        helm_on(server, "install", RELEASE, str(CHART), *flags(NOWHERE))
        settings = server.get("ConfigMap", "gpu-settings", NAMESPACE)["data"]
        assert settings["rawNamePolicy"] == "Allowed"
        with HookPlayer(server, tmp_path) as player:
            helm_on(server, "uninstall", RELEASE)
        assert player.failed == []
        assert server.exists("CustomResourceDefinition", "gpudevices.gpu.cozystack.io")
    server.delete("ConfigMap", "gpu-settings", NAMESPACE)
