"""With every replica down, only orders, GPU budgets and starts with references are blocked (N3, C20)."""

import pytest

from tests.chart.api import Refused, wait_until
from tests.chart.charting import CLUSTER_NAME, NAMESPACE, RELEASE
from tests.chart.conftest import make_namespace
from tests.chart.policy_cases import KEY, KUBEVIRT, LAUNCHER, MARKED, REFERENCE, instance, machine, pod

pytestmark = pytest.mark.realserver
DOWN = "failed calling webhook"
TENANT_LABELS = {"apps.cozystack.io/application.kind": "Tenant"}


@pytest.fixture(scope="module")
def outage(installed):
    make_namespace(installed, "cozy-cilium", **{"cozystack.io/system": "true"})
    make_namespace(installed, "tenant-outage")
    yield installed
    for namespace in ("cozy-cilium", "tenant-outage"):
        installed.delete("Namespace", namespace)


def release(name, labels=TENANT_LABELS, **values):
    return {
        "apiVersion": "helm.toolkit.fluxcd.io/v2",
        "kind": "HelmRelease",
        "metadata": {"name": name, "labels": labels},
        "spec": {"interval": "5m", "values": values},
    }


MARKED_INSTANCE = instance("i", labels=MARKED, annotations={KEY: REFERENCE})
OUR_LAUNCHER = pod("p", labels=LAUNCHER | MARKED)
ADMITTED = {
    "a pod of the network": (pod("cilium"), "cozy-cilium"),
    "a pod of the binder": (pod("binder", labels={"app.kubernetes.io/name": RELEASE}), NAMESPACE),
    "a launcher with devices in kube-system": (OUR_LAUNCHER, "kube-system"),
    "an ordinary tenant pod": (pod("web"), "tenant-outage"),
    "a launcher of a machine without devices": (pod("p", labels=LAUNCHER), "tenant-outage"),
    "a hot-plug pod with the machine's labels": (pod("h", labels=MARKED), "tenant-outage"),
    "a machine without references": (machine("m"), "tenant-outage"),
    "a machine with references, not started": (
        machine("m", labels=MARKED, annotations={KEY: REFERENCE}), "tenant-outage",
    ),
    "an instance without references": (instance("i"), "tenant-outage"),
    "a tenant without GPU budgets": (release("tenant-a", resourceQuotas={"cpu": "4"}), "tenant-outage"),
    "a tenant without budgets": (release("tenant-b"), "tenant-outage"),
    "another application": (release("vm", {}, resourceQuotas={"nvidia.com/a": "1"}), "tenant-outage"),
}  # fmt: skip
REFUSED = {
    "an instance with references": (MARKED_INSTANCE, "tenant-outage"),
    "a launcher of a machine with devices": (OUR_LAUNCHER, "tenant-outage"),
    "an order": ({"kind": "GPUDevice", "metadata": {"name": "d"}, "spec": {"className": "a10"}}, "tenant-outage"),
    "a GPU budget": (release("tenant-c", resourceQuotas={"nvidia.com/a": "1"}), "tenant-outage"),
    "a class budget": (release("tenant-d", resourceQuotas={"gpu.cozystack.io/a10": 1}), "tenant-outage"),
    "a budget that is no map": (release("tenant-e", resourceQuotas=["nvidia.com/a"]), "tenant-outage"),
}


@pytest.mark.parametrize("what", ADMITTED)
def test_C20_N3_goes_on_while_every_replica_is_down(outage, what):
    manifest, namespace = ADMITTED[what]
    outage.as_user(KUBEVIRT).create(manifest, namespace, dry_run=True)


@pytest.mark.parametrize("what", REFUSED)
def test_C20_N3_waits_for_a_replica(outage, what):
    manifest, namespace = REFUSED[what]
    with pytest.raises(Refused, match=DOWN):
        outage.as_user(KUBEVIRT).create(manifest, namespace)


BUDGETS = (
    ({"cpu": "1"}, {"cpu": "2"}, False),
    ({"cpu": "1", "nvidia.com/a": "2"}, {"cpu": "2"}, False),
    ({}, {"services.loadbalancers": "2"}, False),
    ({"nvidia.com/a": "2"}, {"nvidia.com/a": "3"}, True),
    ({"nvidia.com/a": "2"}, {"nvidia.com/a": 2}, True),
    ({"nvidia.com/a": "2"}, {"nvidia.com/a": None}, True),
    ({"nvidia.com/a": "2"}, {"requests.nvidia.com/a": "2"}, True),
    ({}, {"nvidia.com/a": "0"}, True),
    ({"nvidia.com/a": "2"}, None, True),
    ({"cpu": "1"}, None, False),
)
"""Quotas before, what a merge patch says of them (None: they go), and whether it waits for a replica."""


@pytest.fixture(scope="module")
def from_before(outage):
    """Objects from before the outage: orders with the binder's finalizer, tenants with their budgets."""
    kind = "ValidatingWebhookConfiguration"
    webhooks = outage.get(kind, CLUSTER_NAME)["webhooks"]
    outage.patch(kind, CLUSTER_NAME, {"webhooks": []})
    spec = {"className": "a10"}
    for name in ("guarded", "deleted"):
        metadata = {"name": name, "finalizers": ["gpu.cozystack.io/units"]}
        body = {"kind": "GPUDevice", "metadata": metadata, "spec": spec}
        wait_until(lambda body=body: outage.create(body, "tenant-outage"), "nothing asks about orders")
    for number, (before, _, _) in enumerate(BUDGETS):
        outage.create(release(f"tenant-{number}", resourceQuotas=before), "tenant-outage")
    outage.patch(kind, CLUSTER_NAME, {"webhooks": webhooks})
    probe = {"kind": "GPUDevice", "metadata": {"name": "probe"}, "spec": spec}
    wait_until(lambda: refused_as_down(outage, probe, "tenant-outage"), "it asks again")
    return outage


def refused_as_down(api, manifest, namespace):
    try:
        api.create(manifest, namespace, dry_run=True)
    except Refused as refused:
        return DOWN in refused.message
    return False


@pytest.mark.parametrize("number", range(len(BUDGETS)))
def test_W4_N3_only_a_changed_gpu_budget_waits(from_before, number):
    _, after, waits = BUDGETS[number]
    change = {"spec": {"values": {"resourceQuotas": after}}}
    name = f"tenant-{number}"
    if not waits:
        from_before.patch("HelmRelease", name, change, "tenant-outage")
        return
    with pytest.raises(Refused, match=DOWN):
        from_before.patch("HelmRelease", name, change, "tenant-outage")


def test_W4_N3_what_else_of_a_tenant_changes_does_not_wait(from_before):
    for harmless in (
        {"spec": {"values": {"host": "example.org"}}},
        {"spec": {"suspend": True}},
        {"metadata": {"finalizers": ["finalizers.fluxcd.io"]}},
        {"metadata": {"finalizers": None}},
    ):
        from_before.patch("HelmRelease", "tenant-3", harmless, "tenant-outage")


def test_W4_N3_removing_all_values_or_breaking_the_quotas_waits(from_before):
    for change in ({"values": None}, {"values": {"resourceQuotas": "none"}}):
        with pytest.raises(Refused, match=DOWN):
            from_before.patch("HelmRelease", "tenant-3", {"spec": change}, "tenant-outage")


def test_W4_a_release_that_becomes_a_tenants_is_asked_about(from_before):
    from_before.create(release("tenant-late", {}, resourceQuotas={"nvidia.com/a": "900"}), "tenant-outage")
    with pytest.raises(Refused, match=DOWN):
        from_before.patch("HelmRelease", "tenant-late", {"metadata": {"labels": TENANT_LABELS}}, "tenant-outage")
    from_before.create(release("tenant-plain", {}, resourceQuotas={"cpu": "9"}), "tenant-outage")
    from_before.patch("HelmRelease", "tenant-plain", {"metadata": {"labels": TENANT_LABELS}}, "tenant-outage")


def test_W1_N3_of_an_order_only_the_guarded_fields_wait(from_before):
    for harmless in (
        {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}},
        {"metadata": {"finalizers": ["foregroundDeletion", "gpu.cozystack.io/units"]}},
    ):
        from_before.patch("GPUDevice", "guarded", harmless, "tenant-outage")
    for guarded in (
        {"metadata": {"labels": {"gpu.cozystack.io/template-device": "true"}}},
        {"metadata": {"annotations": {"gpu.cozystack.io/leader-epoch": "9"}}},
        {"metadata": {"finalizers": None}},
    ):
        with pytest.raises(Refused, match=DOWN):
            from_before.patch("GPUDevice", "guarded", guarded, "tenant-outage")
    controller = from_before.as_user(f"system:serviceaccount:{NAMESPACE}:{RELEASE}")
    controller.patch("GPUDevice", "guarded", {"metadata": {"finalizers": None}}, "tenant-outage")


def test_N3_an_order_can_be_deleted(from_before):
    from_before.as_user("alice").delete("GPUDevice", "deleted", "tenant-outage")
    controller = from_before.as_user(f"system:serviceaccount:{NAMESPACE}:{RELEASE}")
    controller.patch("GPUDevice", "deleted", {"metadata": {"finalizers": None}}, "tenant-outage")
    assert not from_before.exists("GPUDevice", "deleted", "tenant-outage")
