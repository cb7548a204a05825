"""Orders: what is accepted, what is refused and when it is accepted after all (P1, P1b, R4, R9)."""

from __future__ import annotations

import pytest

from reconciler.core.admission.checks import check_order
from reconciler.core.model.objects import DEVICE, KUBEVIRT, NAMESPACE, NODE, RELEASE, KubeVirt
from reconciler.core.model.vocabulary import CLASS_FINALIZER, DEVICE_FINALIZER, SCHEDULABLE_LABEL, Mode, Phase, Reason
from tests.core.world import NS, R, World


def reason_of(world: World, name: str) -> str:
    return next(c.reason for c in world.device(name).conditions if c.type == "Held")


def message_of(world: World, name: str) -> str:
    return next(c.message for c in world.device(name).conditions if c.type == "Held")


def test_p1b_an_order_that_fits_becomes_held_and_guarded() -> None:
    world = World().ready(("n1", 2))
    device = world.order("d1")
    assert device.phase == Phase.HELD
    assert device.finalizers == (DEVICE_FINALIZER,)
    assert world.state.free_units(R) == 1


def test_p1b_orders_are_accepted_oldest_first_then_by_uid() -> None:
    world = World()
    world.node("n1", 1)
    world.gpu_class()
    world.kubevirt()
    world.order("late", created=2_000)
    world.order("early", created=1_000)
    world.sync()
    assert world.device("early").phase == Phase.HELD
    assert world.device("late").phase == Phase.PENDING


def test_p1b_a_refused_order_is_accepted_by_itself_when_it_fits() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    assert world.order("d2").phase == Phase.PENDING
    assert reason_of(world, "d2") == Reason.NO_FREE_UNITS
    world.change(DEVICE, NS, "d1", deleting=world.at)
    assert world.device("d2").phase == Phase.HELD


def test_r4_an_order_below_a_tenant_without_release_waits_for_that_release() -> None:
    """R4, P1b: nothing is known of the tenant between, so nothing is accepted; its release lets the order through."""
    world = World().ready(("n1", 1))
    world.tenant("z", parent="tenant-missing", **{R: "5"})
    world.order("d1", ns="tenant-missing-z")
    device = world.device("d1", "tenant-missing-z")
    (held,) = [found for found in device.conditions if found.type == "Held"]
    assert (device.phase, held.reason) == (Phase.PENDING, Reason.BUDGET_UNREADABLE)
    assert "tenant-root/tenant-missing" in held.message
    world.tenant("missing")
    world.run()
    assert world.device("d1", "tenant-missing-z").phase == Phase.HELD


@pytest.mark.parametrize("labels", [{SCHEDULABLE_LABEL: "false"}, {}])
def test_r9_units_where_kubevirt_starts_nothing_are_not_free(labels: dict[str, str]) -> None:
    """R9, P1b, O1: a silent virt-handler takes its node's units off what can be ordered and the class says so; with
    the label they come back, and with them the waiting order. What is placed there stays."""
    world = World(tenant_detail="Full").ready(("n1", 2), ("n2", 1))
    world.order("d1", 2)
    assert world.start("vm", "d1", units=2) == "n1"
    world.change(NODE, "", "n2", labels=labels)
    world.change(NODE, "", "n1", labels=labels)
    world.later(2)
    assert world.state.free_units(R) == 0
    assert world.order("d2").phase == Phase.PENDING
    assert reason_of(world, "d2") == Reason.NO_FREE_UNITS
    assert "KubeVirt starts nothing on node n1" in message_of(world, "d2")
    world.later(120)
    assert world.device("d1").phase == Phase.BOUND
    found = world.state.gpu_class("a10")
    assert found is not None and found.units is not None and (found.units.free, found.units.served) == (0, 3)
    (ready,) = [condition for condition in found.conditions if condition.type == "Ready"]
    assert (ready.status, ready.reason) == ("True", "NodesUnschedulable")
    assert "2 nodes" in ready.message and "n1" in ready.message
    world.change(NODE, "", "n2", labels={SCHEDULABLE_LABEL: "true"})
    assert world.device("d2").phase == Phase.HELD


def test_p1_unknown_class_names_the_classes() -> None:
    world = World().ready(("n1", 1))
    refusal = check_order(world.state, NS, "b200", 1)
    assert refusal is not None and refusal.reason is Reason.UNKNOWN_CLASS
    assert "a10" in refusal.message


@pytest.mark.parametrize(
    ("fields", "count", "reason", "missing"),
    [
        ({"max_count": 2}, 3, Reason.COUNT_ABOVE_MAXIMUM, 1),
        ({"deleting": 5}, 1, Reason.CLASS_DELETED, 0),
        ({"resource": "nvidia.com/OTHER"}, 1, Reason.NOT_PERMITTED, 0),
        ({"mode": Mode.VGPU}, 1, Reason.NOT_ENTITLED, 0),
        ({}, 9, Reason.NO_FREE_UNITS, 1),
        ({}, 5, Reason.NO_NODE_FITS, 1),
    ],
)
def test_p1_every_refusal_has_its_reason_and_the_missing_number(
    fields: dict[str, object], count: int, reason: Reason, missing: int
) -> None:
    world = World().ready(("n1", 4), ("n2", 4))
    world.gpu_class("x", **fields)  # type: ignore[arg-type]
    refusal = check_order(world.state, NS, "x", count)
    assert refusal is not None
    assert (refusal.reason, refusal.missing) == (reason, missing)


def test_k5_the_nearest_tenant_that_carries_the_entitlement_decides() -> None:
    world = World().ready(("n1", 4))
    world.gpu_class("v", mode=Mode.VGPU)
    world.tenant("b", parent=NS)
    world.put(NAMESPACE, _namespace(NS, "true"))
    assert check_order(world.state, f"{NS}-b", "v", 1) is None
    world.put(NAMESPACE, _namespace(f"{NS}-b", "false"))
    refusal = check_order(world.state, f"{NS}-b", "v", 1)
    assert refusal is not None and f"{NS}-b" in refusal.message


def _namespace(name: str, entitled: str):  # type: ignore[no-untyped-def]
    from reconciler.core.model.objects import Namespace

    return Namespace(name=name, uid="", entitlement=entitled)


def test_c11_a_child_without_a_quota_is_bound_by_its_ancestor() -> None:
    """A child without a budget draws on its parent's; one with a budget draws on what was carved out (R4)."""
    world = World().ready(("n1", 8))
    world.quotas("a", {R: "2"})
    world.tenant("b", parent=NS)
    world.order("mine")
    world.order("theirs", ns=f"{NS}-b")
    refused = world.order("more", ns=f"{NS}-b")
    assert refused.phase == Phase.PENDING
    condition = refused.conditions[0]
    assert condition.reason == Reason.BUDGET_EXCEEDED
    assert f"tenant {NS} has a budget of 2" in condition.message
    world.put(RELEASE, _release("tenant-c", NS, {R: "5"}))
    assert world.order("carved", ns=f"{NS}-c").phase == Phase.HELD


def _release(name: str, namespace: str, quotas: dict[str, object]):  # type: ignore[no-untyped-def]
    from reconciler.core.model.objects import Release

    return Release(name=name, namespace=namespace, uid="", quotas=quotas)


def test_c11_usage_of_a_removed_child_is_given_back() -> None:
    world = World().ready(("n1", 8))
    world.quotas("a", {R: "2"})
    world.tenant("b", parent=NS)
    world.order("mine")
    world.order("theirs", ns=f"{NS}-b")
    world.order("more")
    assert world.device("more").phase == Phase.PENDING
    world.change(DEVICE, f"{NS}-b", "theirs", deleting=world.at)
    assert world.device("more").phase == Phase.HELD


def test_r3_a_budget_that_cannot_be_read_refuses_and_names_tenant_and_key() -> None:
    world = World().ready(("n1", 8))
    world.quotas("a", {R: "two"})
    refused = world.order("d1")
    assert refused.conditions[0].reason == Reason.BUDGET_UNREADABLE
    assert NS in refused.conditions[0].message and R in refused.conditions[0].message


def test_c13_aliases_bound_and_a_misspelt_key_is_reported() -> None:
    world = World().ready(("n1", 8))
    world.quotas("a", {f"requests.{R}": "1", R.lower(): "0", "cpu/x": "1"})
    assert world.order("d1").phase == Phase.HELD
    assert world.order("d2").conditions[0].reason == Reason.BUDGET_EXCEEDED
    assert R.lower() in world.state.charges.budgets(NS).unmatched


def test_c36_a_name_that_leaves_the_table_stops_new_orders_and_touches_nothing_that_runs() -> None:
    world = World().ready(("n1", 2))
    world.order("d1")
    world.start("vm", "d1")
    world.change(KUBEVIRT, "cozy-kubevirt", "kubevirt", permitted=())
    assert world.device("d1").phase == Phase.BOUND
    assert world.order("d2").phase == Phase.PENDING
    assert reason_of(world, "d2") == Reason.NOT_PERMITTED
    world.kubevirt(R)
    assert world.device("d2").phase == Phase.HELD


def test_p6_an_absent_kubevirt_keeps_the_last_known_table() -> None:
    world = World().ready(("n1", 2))
    world.gone(KUBEVIRT, "cozy-kubevirt", "kubevirt")
    assert world.order("d1").phase == Phase.HELD
    world.put(KUBEVIRT, KubeVirt(name="kubevirt", namespace="cozy-kubevirt", uid="new", permitted=()))
    world.run()
    assert world.order("d2").phase == Phase.PENDING


def test_p6_a_class_waits_for_its_devices_and_says_how_many() -> None:
    world = World().ready(("n1", 2))
    world.order("d1")
    world.later(2)
    found = world.state.gpu_class("a10")
    assert found is not None and found.finalizers == (CLASS_FINALIZER,)
    from reconciler.core.model.objects import CLASS

    world.change(CLASS, "", "a10", deleting=world.at)
    world.later(2)
    found = world.state.gpu_class("a10")
    assert found is not None
    assert "1 device still in use" in next(c.message for c in found.conditions if c.type == "Ready")
    world.change(DEVICE, NS, "d1", deleting=world.at)
    world.later(2)
    assert world.state.gpu_class("a10") is None


def test_p3_an_order_that_would_strand_a_hold_is_refused() -> None:
    world = World().ready(("n1", 4), ("n2", 4))
    world.order("whole", count=4)
    world.order("one", count=1)
    refused = world.order("whole-2", count=4)
    assert refused.phase == Phase.PENDING
    assert refused.conditions[0].reason in (Reason.HOLDS_WOULD_NOT_FIT, Reason.NO_FREE_UNITS)


def test_p3_holds_of_three_do_not_fit_two_nodes_of_four_beside_another_three() -> None:
    world = World().ready(("n1", 4), ("n2", 4))
    world.order("a", count=3)
    world.order("b", count=3)
    refused = world.order("c", count=2)
    assert refused.conditions[0].reason == Reason.HOLDS_WOULD_NOT_FIT


def test_o1_a_class_shows_its_units_and_largest_free() -> None:
    world = World().ready(("n1", 4), ("n2", 2))
    world.order("d1", count=2)
    world.order("d2")
    world.start("vm", "d1", units=2)
    world.pod("raw", "n1", 1)
    world.later(2)
    found = world.state.gpu_class("a10")
    assert found is not None and found.units is not None and found.largest_free is not None
    assert (found.units.served, found.units.bound, found.units.held, found.units.raw) == (6, 2, 1, 1)
    assert found.units.free == 6 - 2 - 1 - 1
    assert (found.largest_free.node, found.largest_free.units) == ("n1", 3)


def test_k4_settings_are_published_and_hand_edits_repaired() -> None:
    from reconciler.core.model.objects import SETTINGS
    from reconciler.core.model.vocabulary import SETTINGS_CONFIGMAP

    world = World(manager_users=("u",)).ready(("n1", 4))
    namespace = world.state.settings.namespace
    found = world.state.settings_map(SETTINGS_CONFIGMAP)
    assert found is not None
    assert found.data == {"resourceNames": R, "rawNamePolicy": "Allowed", "managerUsers": "u"}
    world.change(SETTINGS, namespace, SETTINGS_CONFIGMAP, data={"resourceNames": "", "mine": "x"})
    repaired = world.state.settings_map(SETTINGS_CONFIGMAP)
    assert repaired is not None and repaired.data == found.data
    world.gpu_class("b", resource="nvidia.com/OTHER")
    world.run()
    after = world.state.settings_map(SETTINGS_CONFIGMAP)
    assert after is not None and after.data["resourceNames"] == f"{R},nvidia.com/OTHER"
