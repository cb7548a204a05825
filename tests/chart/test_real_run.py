"""The controller under the installed chart, from its service account's token: its rights are enough (N2, K4, C47)."""

import uuid

import pytest

from tests.chart.api import Refused, wait_until
from tests.chart.charting import NAMESPACE, RELEASE
from tests.chart.conftest import helm_on, make_namespace, release_on
from tests.chart.helm_hooks import HookPlayer
from tests.chart.policy_cases import KEY, KUBEVIRT, device, instance, machine
from tests.chart.replica import Replica
from tests.chart.test_monitoring import METRICS, used

pytestmark = pytest.mark.realserver

GPU = "nvidia.com/CHART_A10"
TABLE_ONLY = "nvidia.com/CHART_TABLE"
NODE = "chart-gpu-1"
NOWHERE = {"controller.nodeSelector": {"test": "none"}, "nodeAgent.nodeSelector": {"test": "none"}}


@pytest.fixture(scope="module")
def running(server, tmp_path_factory):
    """A cluster of one GPU node with the chart installed and one replica ready; uninstalled at the end."""
    make_namespace(server, NAMESPACE)
    make_namespace(server, "cozy-kubevirt")
    amounts = {GPU: "2", "cpu": "8", "memory": "64Gi", "pods": "10"}
    labels = {"kubevirt.io/schedulable": "true", "kubernetes.io/hostname": NODE}
    server.create({"kind": "Node", "metadata": {"name": NODE, "labels": labels}})
    ready = {"type": "Ready", "status": "True", "reason": "Played", "message": ""}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}
    server.patch("Node", NODE, {"status": status}, sub="status")
    permit(server, GPU)
    spec = {"resourceName": GPU, "mode": "Passthrough"}
    server.create({"kind": "GPUClass", "metadata": {"name": "chart-run"}, "spec": spec})
    with release_on(server, **NOWHERE), Replica(server, tmp_path_factory.mktemp("replica")) as replica:
        yield replica
    if server.exists("GPUClass", "chart-run"):
        server.patch("GPUClass", "chart-run", {"metadata": {"finalizers": None}})
        server.delete("GPUClass", "chart-run")
    server.delete("Node", NODE)


def permit(server, *names):
    """KubeVirt's table of permitted devices, with these names and no other."""
    table = [{"pciVendorSelector": f"10DE:{2000 + at}", "resourceName": name} for at, name in enumerate(names)]
    spec = {"configuration": {"permittedHostDevices": {"pciHostDevices": table}}}
    if server.exists("KubeVirt", "kubevirt", "cozy-kubevirt"):
        server.patch("KubeVirt", "kubevirt", {"spec": spec}, "cozy-kubevirt")
    else:
        server.create({"kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": spec}, "cozy-kubevirt")


def order(server, namespace, name, count=1):
    body = {"kind": "GPUDevice", "metadata": {"name": name}, "spec": {"className": "chart-run", "count": count}}
    return server.create(body, namespace)


def phase(server, namespace, name):
    return server.get("GPUDevice", name, namespace).get("status", {}).get("phase")


def settings(server):
    return server.get("ConfigMap", "gpu-settings", NAMESPACE)["data"]


def test_N2_an_order_is_held_and_a_start_gets_its_gpus(server, running, tenant):
    order(server, tenant, "one")
    wait_until(lambda: phase(server, tenant, "one") == "Held", "the order is held")
    references = '[{"device": "one"}, {"template": {"className": "chart-run"}}]'
    vmi = instance("vm", labels={KEY: "true"}, annotations={KEY: references}, memory={"guest": "1Gi"})
    made = server.as_user(KUBEVIRT).create(vmi, tenant)
    assert [gpu["deviceName"] for gpu in made["spec"]["domain"]["devices"]["gpus"]] == [GPU, GPU]
    devices = server.list("GPUDevice", tenant)
    assert {item["status"]["placement"]["node"] for item in devices} == {NODE}
    wait_until(lambda: server.get("GPUClass", "chart-run")["status"]["units"]["free"] == 0, "the class is told")
    server.delete("VirtualMachineInstance", "vm", tenant)
    wait_until(lambda: phase(server, tenant, "one") == "Held", "the held device returns")
    wait_until(lambda: len(server.list("GPUDevice", tenant)) == 1, "the template is gone")


def test_N2_an_order_that_cannot_fit_is_refused_through_the_service(server, running, tenant):
    with pytest.raises(Refused, match="units") as refused:
        order(server, tenant, f"wide-{uuid.uuid4().hex[:4]}", 64)
    assert refused.value.code in (400, 403, 409, 422)


def test_K4_V1_a_name_only_kubevirts_table_carries_is_published_and_refused(server, running):
    server.patch("ConfigMap", "gpu-settings", {"data": {"rawNamePolicy": "Nonsense"}}, NAMESPACE)
    wait_until(lambda: settings(server)["rawNamePolicy"] == "Allowed", "a hand edit is repaired")
    permit(server, GPU, TABLE_ONLY)
    wait_until(lambda: TABLE_ONLY in settings(server)["resourceNames"].split(","), "the name is published")
    permit(server, GPU)
    wait_until(lambda: TABLE_ONLY not in settings(server)["resourceNames"], "the name is taken back")
    server.delete("ConfigMap", "gpu-settings", NAMESPACE)
    wait_until(lambda: GPU in settings(server)["resourceNames"], "a deleted map is made again")


def permitted(server):
    conditions = server.get("GPUClass", "chart-run")["status"]["conditions"]
    return next(item["status"] for item in conditions if item["type"] == "Permitted")


def test_C36_P6_a_name_leaves_the_permitted_table_and_comes_back(server, running, tenant):
    if not server.exists("GPUDevice", "one", tenant):
        order(server, tenant, "one")
    wait_until(lambda: phase(server, tenant, "one") == "Held", "an order is held")
    permit(server)
    wait_until(lambda: permitted(server) == "False", "the class is told")
    with pytest.raises(Refused, match="ermit"):
        order(server, tenant, "late")
    assert phase(server, tenant, "one") == "Held"
    server.delete("KubeVirt", "kubevirt", "cozy-kubevirt")
    permit(server, GPU)
    wait_until(lambda: permitted(server) == "True", "the name is back")
    server.delete("KubeVirt", "kubevirt", "cozy-kubevirt")
    wait_until(lambda: order(server, tenant, "late"), "an absent KubeVirt keeps the last table")
    wait_until(lambda: phase(server, tenant, "late") == "Held", "and binds as before")
    permit(server, GPU)
    server.delete("GPUDevice", "late", tenant)
    wait_until(lambda: not server.exists("GPUDevice", "late", tenant), "its units are free again")


def test_N4_metrics_are_served_under_their_documented_names(running):
    assert used(running.metrics()) == set(METRICS)


def test_N6_C47_an_uninstall_with_a_live_controller_leaves_no_finalizer(server, running, tmp_path):
    """The last test of the module: the controller must be stopped before finalizers go, or it restores them."""
    namespace = "tenant-chartlast"
    make_namespace(server, namespace)
    order(server, namespace, "kept")
    wait_until(lambda: server.get("GPUDevice", "kept", namespace)["metadata"].get("finalizers"), "a finalizer")
    with HookPlayer(server, tmp_path) as player:
        helm_on(server, "uninstall", RELEASE)
    assert player.failed == [] and not running.running
    server.delete("Namespace", namespace)
    wait_until(lambda: not server.exists("Namespace", namespace), "the tenant's namespace goes", 60)
    server.delete("GPUClass", "chart-run")
    assert not server.exists("GPUClass", "chart-run")
    server.create(machine("after", devices={"gpus": device(GPU)}), "default", dry_run=True)
