"""The raw-name policy on a real API server, as V1, V2 and V3 say, case by case."""

import copy
import uuid

import pytest

from tests.chart.api import Refused, wait_until
from tests.chart.charting import CLUSTER_NAME, NAMESPACE
from tests.chart.conftest import make_namespace
from tests.chart.policy_cases import (
    A10,
    CASES,
    HOT_PLUG,
    KEPT,
    KEY,
    KUBEVIRT,
    LABEL_NEEDED,
    LAUNCHER,
    MARKED,
    ONLY_KUBEVIRT,
    ORDERED,
    REFERENCE,
    TABLE_ONLY,
    TENANT,
    both,
    device,
    instance,
    machine,
    pod,
)

pytestmark = pytest.mark.realserver


def publish(server, policy, names=(A10, TABLE_ONLY)):
    """Settings as the binder publishes them; returns when the policy reads them."""
    data = {"resourceNames": ",".join(sorted(names)), "rawNamePolicy": policy, "managerUsers": KUBEVIRT}
    server.patch("ConfigMap", "gpu-settings", {"data": data}, NAMESPACE)
    probe = machine("probe", devices={"gpus": device(A10)})
    tenant = server.as_user(TENANT)
    wait_until(
        lambda: (ORDERED in told(tenant, probe, "tenant-acme")) is (policy == "Forbidden"),
        f"the policy reads {policy}",
    )


def told(api, manifest, namespace, *, dry_run=True):
    """What the API server says to a create: "" is yes."""
    try:
        api.create(manifest, namespace, dry_run=dry_run)
    except Refused as refused:
        return refused.message
    return ""


@pytest.fixture(scope="module")
def policies(installed, webhooks_away):
    """Switches the published policy, and only when it differs from the one before."""
    for namespace in ("tenant-acme", "cozy-elsewhere"):
        make_namespace(installed, namespace)
    publish(installed, "Forbidden")
    current = ["Forbidden"]

    def switch(policy):
        if policy != current[0]:
            publish(installed, policy)
            current[0] = policy
        return installed

    yield switch
    for namespace in ("tenant-acme", "cozy-elsewhere"):
        installed.delete("Namespace", namespace)


@pytest.fixture(scope="module")
def webhooks_away(installed):
    """The policy alone is asked: with nobody behind them the webhooks would refuse what it lets through."""
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        installed.delete(kind, CLUSTER_NAME)


@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: case.policy), ids=lambda case: case.name)
def test_V1_V2_V3_the_policy_refuses_and_lets_through(policies, case):
    server = policies(case.policy)
    message = told(server.as_user(case.user), case.manifest, case.namespace)
    assert (case.refused in message) if case.refused else (message == "")


def test_V1_the_refusal_names_what_was_asked_and_the_way_out(policies):
    server = policies("Forbidden")
    message = told(server.as_user(TENANT), pod("p", **both(A10)), "tenant-acme")
    for part in (A10, "tenant-acme", "GPUDevice", KEY):
        assert part in message


def test_V1_an_ephemeral_container_cannot_ask_either(policies):
    server = policies("Forbidden")
    name = f"p-{uuid.uuid4().hex[:6]}"
    server.create(pod(name), "tenant-acme")
    extra = {"name": "debug", "image": "none", "resources": both(A10)}
    with pytest.raises(Refused) as refused:
        server.as_user(TENANT).patch(
            "Pod", name, {"spec": {"ephemeralContainers": [extra]}}, "tenant-acme", sub="ephemeralcontainers"
        )
    # The API server itself forbids resources there; where it did not, the policy would.
    assert refused.value.code in (403, 422)
    extra.pop("resources")
    server.as_user(TENANT).patch(
        "Pod", name, {"spec": {"ephemeralContainers": [extra]}}, "tenant-acme", sub="ephemeralcontainers"
    )
    server.delete("Pod", name, "tenant-acme")


def test_V1_what_ran_before_can_be_finished_and_not_extended(policies):
    server = policies("Allowed")
    raw = machine(f"old-{uuid.uuid4().hex[:6]}", devices={"gpus": device(A10)})
    name = server.create(raw, "tenant-acme")["metadata"]["name"]
    policies("Forbidden")
    kubevirt, tenant = server.as_user(KUBEVIRT), server.as_user(TENANT)
    kubevirt.patch("VirtualMachine", name, {"metadata": {"finalizers": ["kubevirt.io/x"]}}, "tenant-acme")
    tenant.patch("VirtualMachine", name, {"spec": {"running": True}}, "tenant-acme")
    more = copy.deepcopy(raw["spec"])
    more["template"]["spec"]["domain"]["devices"]["gpus"] *= 2
    with pytest.raises(Refused, match=ORDERED):
        tenant.patch("VirtualMachine", name, {"spec": more}, "tenant-acme")
    kubevirt.patch("VirtualMachine", name, {"metadata": {"finalizers": None}}, "tenant-acme")
    server.delete("VirtualMachine", name, "tenant-acme")


def test_V2_an_update_cannot_take_the_label_away(policies):
    server = policies("Allowed")
    marked = machine(f"m-{uuid.uuid4().hex[:6]}", labels={KEY: "true"}, annotations={KEY: REFERENCE})
    name = server.create(marked, "tenant-acme")["metadata"]["name"]
    with pytest.raises(Refused, match=LABEL_NEEDED):
        server.patch("VirtualMachine", name, {"spec": {"template": {"metadata": {"labels": None}}}}, "tenant-acme")
    server.delete("VirtualMachine", name, "tenant-acme")


@pytest.fixture(scope="module")
def owners(policies):
    """Owners that exist, or the garbage collector takes the pod: two instances and something else, as references."""
    server, found = policies("Forbidden"), {}
    settings = {"kind": "ConfigMap", "metadata": {"name": "owner"}}
    for name, manifest in (("vm", instance("owner")), ("other", instance("other")), ("map", settings)):
        made = server.as_user(KUBEVIRT).create(manifest, "tenant-acme")
        metadata = made["metadata"]
        reference = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": metadata["name"]}
        found[name] = [reference | {"uid": metadata["uid"], "controller": True}]
    return found


UPDATES = {
    "the label": ({}, "", {"labels": LAUNCHER}, ""),
    "an instance as controller": ({}, "", {}, "vm"),
    "any label of KubeVirt beside a controller": ({}, "map", {"labels": HOT_PLUG}, "map"),
    "a controller beside any label of KubeVirt": (HOT_PLUG, "", {}, "map"),
    "the instance of another launcher": (LAUNCHER, "vm", {}, "other"),
}
"""The pod's labels and owner, and what an update makes of its metadata and owner."""


@pytest.mark.parametrize("policy", ["Forbidden", "Allowed"])
@pytest.mark.parametrize("what", UPDATES)
def test_V3_an_update_makes_a_pod_no_launcher(policies, owners, policy, what):
    """Only KubeVirt may give the pod what is asked; everybody may change something else of it."""
    server = policies(policy)
    labels, owner, change, new_owner = UPDATES[what]
    change = change | {"ownerReferences": owners.get(new_owner)}
    kubevirt, tenant = server.as_user(KUBEVIRT), server.as_user(TENANT)
    name = f"p-{uuid.uuid4().hex[:6]}"
    kubevirt.create(pod(name, labels=labels, owners=owners.get(owner, ())), "tenant-acme")
    with pytest.raises(Refused, match=ONLY_KUBEVIRT):
        tenant.patch("Pod", name, {"metadata": change}, "tenant-acme")
    tenant.patch("Pod", name, {"metadata": {"annotations": {"note": "mine"}}}, "tenant-acme")
    kubevirt.patch("Pod", name, {"metadata": change}, "tenant-acme")
    tenant.patch("Pod", name, {"metadata": {"annotations": {"note": None}}}, "tenant-acme")
    server.delete("Pod", name, "tenant-acme")


def test_V1_a_pod_that_asked_before_can_still_be_changed(policies):
    """An update of a pod cannot change what it asks for, so it is not judged again by the policy of today."""
    server = policies("Allowed")
    name = f"raw-{uuid.uuid4().hex[:6]}"
    server.as_user(TENANT).create(pod(name, **both(A10)), "tenant-acme")
    policies("Forbidden")
    server.as_user(TENANT).patch("Pod", name, {"metadata": {"labels": {"app": "old"}}}, "tenant-acme")
    server.delete("Pod", name, "tenant-acme")


@pytest.mark.parametrize("policy", ["Forbidden", "Allowed"])
def test_V3_an_instance_keeps_its_reference_label_and_annotation(policies, policy):
    """Without them the launcher of a migration would pass the pod webhook. KubeVirt itself may change them."""
    server = policies(policy)
    kubevirt, tenant = server.as_user(KUBEVIRT), server.as_user(TENANT)
    kind, marked, plain = "VirtualMachineInstance", f"i-{uuid.uuid4().hex[:6]}", f"i-{uuid.uuid4().hex[:6]}"
    kubevirt.create(instance(marked, labels=MARKED, annotations={KEY: REFERENCE}), "tenant-acme")
    kubevirt.create(instance(plain), "tenant-acme")
    changes = (
        (marked, {"labels": {KEY: None}}),
        (marked, {"labels": {KEY: "false"}}),
        (marked, {"annotations": {KEY: None}}),
        (marked, {"annotations": {KEY: "[]"}}),
        (marked, {"labels": {KEY: None}, "annotations": {KEY: None}}),
        (plain, {"labels": MARKED}),
        (plain, {"labels": MARKED, "annotations": {KEY: REFERENCE}}),
    )
    try:
        for name, change in changes:
            with pytest.raises(Refused, match=KEPT):
                tenant.patch(kind, name, {"metadata": change}, "tenant-acme")
        tenant.patch(kind, marked, {"metadata": {"labels": {"app": "mine"}}}, "tenant-acme")
        kubevirt.patch(kind, marked, {"metadata": {"annotations": {KEY: "[]"}}}, "tenant-acme")
        kubevirt.patch(kind, marked, {"metadata": {"labels": {KEY: None}, "annotations": {KEY: None}}}, "tenant-acme")
    finally:
        for name in (marked, plain):
            server.delete(kind, name, "tenant-acme")


def test_V1_a_name_leaves_the_set_when_the_binder_says_so(policies):
    server = policies("Forbidden")
    publish(server, "Forbidden", names=(A10,))
    asked = machine("m", devices={"gpus": device(TABLE_ONLY)})
    wait_until(lambda: told(server.as_user(TENANT), asked, "tenant-acme") == "", "the name is no GPU")
    publish(server, "Forbidden")
    wait_until(lambda: ORDERED in told(server.as_user(TENANT), asked, "tenant-acme"), "the name is a GPU")


def test_V1_missing_or_cut_settings_fail_closed_for_tenants_and_stop_nothing_else(policies):
    server = policies("Forbidden")
    tenant = server.as_user(TENANT)
    plain = pod("plain")
    make_namespace(server, "cozy-network", **{"cozystack.io/system": "true"})
    before = server.get("ConfigMap", "gpu-settings", NAMESPACE)["data"]
    server.patch("ConfigMap", "gpu-settings", {"data": {"resourceNames": None}}, NAMESPACE)
    wait_until(lambda: "gpu-settings lacks" in told(tenant, plain, "tenant-acme"), "cut settings refuse")
    server.delete("ConfigMap", "gpu-settings", NAMESPACE)
    wait_until(lambda: "param" in told(tenant, plain, "tenant-acme"), "missing settings refuse")
    for namespace in ("kube-system", NAMESPACE, "cozy-network"):
        assert told(server, plain, namespace) == "", namespace
    settings = {"kind": "ConfigMap", "metadata": {"name": "gpu-settings"}, "data": before}
    server.create(settings, NAMESPACE)
    wait_until(lambda: told(tenant, plain, "tenant-acme") == "", "restored settings let through")
    server.delete("Namespace", "cozy-network")


def test_V1_the_policy_has_no_type_errors(installed):
    def checked():
        found = installed.get("ValidatingAdmissionPolicy", f"{CLUSTER_NAME}-raw-names")
        status = found.get("status", {})
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else None

    status = wait_until(checked, "the policy's types are checked")
    assert status.get("typeChecking", {}).get("expressionWarnings", []) == []
