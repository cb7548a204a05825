"""With every replica down only orders, GPU budgets and starts with references wait (N3, C20)."""

import uuid

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
    make_namespace(installed, "tenant-root")
    yield installed
    for namespace in ("cozy-cilium", "tenant-root"):
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
    "an ordinary tenant pod": (pod("web"), "tenant-root"),
    "a launcher of a machine without devices": (pod("p", labels=LAUNCHER), "tenant-root"),
    "a hot-plug pod with the machine's labels": (pod("h", labels=MARKED), "tenant-root"),
    "a machine without references": (machine("m"), "tenant-root"),
    "a machine with references, not started": (
        machine("m", labels=MARKED, annotations={KEY: REFERENCE}), "tenant-root",
    ),
    "an instance without references": (instance("i"), "tenant-root"),
    "a tenant without GPU budgets": (release("tenant-a", resourceQuotas={"cpu": "4"}), "tenant-root"),
    "a tenant without budgets": (release("tenant-b"), "tenant-root"),
    "another application": (release("vm", {}, resourceQuotas={"nvidia.com/a": "1"}), "tenant-root"),
}  # fmt: skip
REFUSED = {
    "an instance with references": (MARKED_INSTANCE, "tenant-root"),
    "a launcher of a machine with devices": (OUR_LAUNCHER, "tenant-root"),
    "an order": ({"kind": "GPUDevice", "metadata": {"name": "d"}, "spec": {"className": "a10"}}, "tenant-root"),
    "a GPU budget": (release("tenant-c", resourceQuotas={"nvidia.com/a": "1"}), "tenant-root"),
    "a class budget": (release("tenant-d", resourceQuotas={"gpu.cozystack.io/a10": 1}), "tenant-root"),
    "a budget that is no map": (release("tenant-e", resourceQuotas=["nvidia.com/a"]), "tenant-root"),
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


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        ({"cpu": "1"}, {"cpu": "2"}, False),
        ({"cpu": "1", "nvidia.com/a": "2"}, {"cpu": "2", "nvidia.com/a": "2"}, False),
        ({"nvidia.com/a": "2"}, {"nvidia.com/a": "3"}, True),
        ({"nvidia.com/a": "2"}, {"nvidia.com/a": 2}, True),
        ({"nvidia.com/a": "2"}, {"nvidia.com/a": None}, True),
        ({"nvidia.com/a": "2"}, {"requests.nvidia.com/a": "2", "nvidia.com/a": "2"}, True),
        ({}, {"services.loadbalancers": "2"}, False),
        ({}, {"nvidia.com/a": "0"}, True),
        ({"cpu": "1"}, None, True),
    ],
)
def test_W4_N3_only_a_changed_gpu_budget_waits(outage, before, after, waits):
    name = f"tenant-{uuid.uuid4().hex[:6]}"
    # A release becomes a tenant's with its label; without it nothing was asked while it was made.
    outage.create(release(name, {}, resourceQuotas=before), "tenant-root")
    path = outage.path("HelmRelease", "tenant-root", name)
    current = outage.call("GET", path)
    current["metadata"]["labels"] = TENANT_LABELS
    outage.call("PUT", path, current)
    current = outage.call("GET", path)
    if after is None:
        current["spec"]["values"]["resourceQuotas"] = "none"
    else:
        kept = current["spec"]["values"]["resourceQuotas"] | after
        current["spec"]["values"]["resourceQuotas"] = {k: v for k, v in kept.items() if v is not None}
    if waits:
        with pytest.raises(Refused, match=DOWN):
            outage.call("PUT", path, current)
    else:
        outage.call("PUT", path, current)
    outage.delete("HelmRelease", name, "tenant-root")


def test_W4_N3_removing_all_quotas_of_a_tenant_waits(outage):
    name = f"tenant-{uuid.uuid4().hex[:6]}"
    outage.create(release(name, {}, resourceQuotas={"nvidia.com/a": "1"}), "tenant-root")
    outage.patch("HelmRelease", name, {"metadata": {"labels": TENANT_LABELS}}, "tenant-root")
    with pytest.raises(Refused, match=DOWN):
        outage.patch("HelmRelease", name, {"spec": {"values": None}}, "tenant-root")
    outage.delete("HelmRelease", name, "tenant-root")


@pytest.fixture
def order_from_before(outage):
    """An order that exists since before the outage, with the finalizer the binder put on it."""
    name, namespace = f"d-{uuid.uuid4().hex[:6]}", "tenant-root"
    body = {
        "kind": "GPUDevice",
        "metadata": {"name": name, "finalizers": ["gpu.cozystack.io/units"]},
        "spec": {"className": "a10"},
    }
    kind = "ValidatingWebhookConfiguration"
    webhooks = outage.get(kind, CLUSTER_NAME)["webhooks"]
    others = [webhook for webhook in webhooks if webhook["name"] != "devices.gpu.cozystack.io"]
    outage.patch(kind, CLUSTER_NAME, {"webhooks": others})
    wait_until(lambda: outage.create(body, namespace), "nothing asks about orders")
    outage.patch(kind, CLUSTER_NAME, {"webhooks": webhooks})
    wait_until(lambda: refused_as_down(outage, body | {"metadata": {"name": "probe"}}, namespace), "it asks again")
    yield name, namespace
    if outage.exists("GPUDevice", name, namespace):
        outage.delete("GPUDevice", name, namespace)


def refused_as_down(api, manifest, namespace):
    try:
        api.create(manifest, namespace, dry_run=True)
    except Refused as refused:
        return DOWN in refused.message
    return False


def test_W1_N3_of_an_order_only_the_guarded_fields_wait(outage, order_from_before):
    name, namespace = order_from_before
    for harmless in (
        {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}},
        {"metadata": {"finalizers": ["foregroundDeletion", "gpu.cozystack.io/units"]}},
    ):
        outage.patch("GPUDevice", name, harmless, namespace)
    for guarded in (
        {"metadata": {"labels": {"gpu.cozystack.io/template-device": "true"}}},
        {"metadata": {"annotations": {"gpu.cozystack.io/leader-epoch": "9"}}},
        {"metadata": {"finalizers": None}},
    ):
        with pytest.raises(Refused, match=DOWN):
            outage.patch("GPUDevice", name, guarded, namespace)
    controller = outage.as_user(f"system:serviceaccount:{NAMESPACE}:{RELEASE}")
    controller.patch("GPUDevice", name, {"metadata": {"finalizers": None}}, namespace)


def test_N3_an_order_can_be_deleted(outage, order_from_before):
    name, namespace = order_from_before
    outage.as_user("alice").delete("GPUDevice", name, namespace)
    controller = outage.as_user(f"system:serviceaccount:{NAMESPACE}:{RELEASE}")
    controller.patch("GPUDevice", name, {"metadata": {"finalizers": None}}, namespace)
    assert not outage.exists("GPUDevice", name, namespace)
