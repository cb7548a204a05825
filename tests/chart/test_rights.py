"""Rights with nothing to spare: no wildcard, nothing beyond names where names are known, no status for tenants."""

from tests.chart.charting import CLUSTER_NAME, NAMESPACE, RELEASE, of_kind, pick, render
from tests.chart.rights import Grant, granted, missing, spare

CONTROLLER, AGENT, UNINSTALL = RELEASE, f"{RELEASE}-node-agent", f"{RELEASE}-uninstall"


def of(account, values=None):
    return {grant for grant in granted(render(values)) if grant.account == account}


def test_N2_no_wildcards_and_no_escalation():
    for grant in granted(render()):
        assert "*" not in grant, grant
        assert grant.verb not in ("escalate", "bind", "impersonate", "deletecollection"), grant
        assert grant.group != "rbac.authorization.k8s.io", grant
        assert not grant.resource.endswith(("/exec", "/token", "/proxy", "/eviction")), grant


def test_N2_three_accounts_and_each_pod_runs_under_its_own():
    manifests = render()
    assert {grant.account for grant in granted(manifests)} == {CONTROLLER, AGENT, UNINSTALL}
    for kind, account in (("StatefulSet", CONTROLLER), ("DaemonSet", AGENT), ("Job", UNINSTALL)):
        assert pick(manifests, kind)["spec"]["template"]["spec"]["serviceAccountName"] == account


def test_N2_secrets_and_webhook_configurations_only_by_name():
    for grant in granted(render()):
        if grant.resource == "secrets":
            assert (grant.namespace, grant.name) == (NAMESPACE, f"{RELEASE}-webhook-cert")
            assert grant.verb in ("get", "patch")
        if grant.group == "admissionregistration.k8s.io":
            assert grant.name == CLUSTER_NAME


def test_N2_cert_manager_needs_no_rights_on_certificates():
    resources = {grant.resource for grant in of(CONTROLLER, {"certificates.mode": "CertManager"})}
    assert not resources & {"secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"}


def test_B1_nobody_but_the_controller_writes_the_status_of_devices():
    for grant in granted(render()):
        if grant.resource == "gpudevices/status":
            assert grant.account == CONTROLLER


def test_B6_the_controller_patches_and_never_updates():
    assert not [grant for grant in granted(render()) if grant.verb == "update"]


def test_N5_the_agent_touches_reports_and_nothing_else():
    assert {(grant.resource, grant.verb) for grant in of(AGENT)} == {
        ("kubevirts", "list"), ("gpunodes", "create"), ("gpunodes/status", "patch"),
    }  # fmt: skip


def test_N6_the_uninstall_job_removes_and_never_reads_secrets():
    assert {(grant.resource, grant.verb) for grant in of(UNINSTALL)} == {
        ("mutatingwebhookconfigurations", "delete"), ("validatingwebhookconfigurations", "delete"),
        ("gpudevices", "list"), ("gpudevices", "patch"), ("gpuclasses", "list"), ("gpuclasses", "patch"),
        ("statefulsets", "get"), ("statefulsets/scale", "patch"),
    }  # fmt: skip


def test_O2_tenants_read_and_order_and_never_write_a_status():
    tenants = [
        role
        for role in of_kind(render(), "ClusterRole")
        if any("aggregate-to" in label for label in role["metadata"]["labels"])
    ]
    assert len(tenants) == 2
    for role in tenants:
        labels = role["metadata"]["labels"]
        writes = any("edit" in label or "admin" in label for label in labels)
        for rule in role["rules"]:
            assert rule["apiGroups"] == ["gpu.cozystack.io"]
            assert not [resource for resource in rule["resources"] if "/" in resource]
            assert writes == bool({"create", "patch"} & set(rule["verbs"]))
            assert not writes or rule["resources"] == ["gpudevices"]
    assert not [
        role
        for role in of_kind(render({"rbac.aggregateToTenantRoles": False}), "ClusterRole")
        if any("aggregate-to" in label for label in role["metadata"]["labels"])
    ]


def test_N2_the_comparison_tells_missing_and_spare_rights():
    grants = [Grant("a", "", "", "pods", "list"), Grant("a", "ns", "", "secrets", "get", "one")]
    calls = [
        Grant("a", "t", "", "pods", "list"),
        Grant("a", "ns", "", "secrets", "get", "two"),
    ]
    assert missing(grants, calls) == [calls[1]]
    assert spare(grants, calls) == [grants[1]]


def test_N9_the_hosters_class_role_writes_classes_only_and_is_bound_to_nobody():
    manifests = render()
    role = pick(manifests, "ClusterRole", "-class-admin")
    (rule,) = role["rules"]
    assert rule["resources"] == ["gpuclasses"] and {"create", "update", "delete"} <= set(rule["verbs"])
    assert not [name for name in role["metadata"]["labels"] if "aggregate-to" in name]
    assert role["metadata"]["name"] not in [b["roleRef"]["name"] for b in of_kind(manifests, "ClusterRoleBinding")]
