"""`plan` and `plan --drain` predict the binder: compared with the core's decisions in generated worlds (P1, P2, P3,
R4, B2, J7)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core import snapshot
from reconciler.core.admission import checks
from reconciler.core.admission.checks import Order, Start
from reconciler.core.model.objects import (
    CLASS,
    DEVICE,
    KUBEVIRT,
    NODE,
    POD,
    VMI,
    Constraints,
    Device,
    PermittedDevice,
    Taint,
    Toleration,
)
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.vocabulary import DEVICE_FINALIZER, Outcome, Phase, Reason
from reconciler.debugging.planning import drain as drains
from reconciler.debugging.planning import plan as plans
from reconciler.debugging.planning import what_if
from reconciler.debugging.planning.plan import Plan
from tests.core.world import NS, R, World

CLASSES = ("a10", "a10-small", "gone")
"""Two classes of one resource name and one that does not exist."""

Set = tuple[list[int], list[tuple[str, int]]]
"""Indexes of held devices, (class, count) templates."""


def template(world: World, name: str, class_name: str, count: int) -> None:
    """A template device as the webhook makes it, not yet looked at."""
    world.put(
        DEVICE,
        Device(
            name=name,
            namespace=NS,
            uid="",
            class_name=class_name,
            count=count,
            generation=1,
            template=True,
            finalizers=(DEVICE_FINALIZER,),
        ),
    )


def releasing() -> World:
    """A device of two units that is deleted while its VM runs."""
    world = World().ready(("n1", 2))
    world.order("d1", count=2)
    world.start("vm", "d1", units=2)
    world.change(DEVICE, NS, "d1", deleting=world.at)
    assert world.device("d1").phase == Phase.RELEASING
    return world


RELEASING = f"GPUDevice {NS}/d1 is Releasing: its 2 units on node n1 are taken until VMI vm has ended"


def test_o2_a_start_with_a_releasing_device_is_blocked_and_says_so() -> None:
    world = releasing()
    found = plans.plan_start(world.state, VMI.name, start_of(world, "other", ["d1"], []))
    assert found.outcome == plans.Outcome.BLOCKED
    assert found.blockers[0].reason == Reason.DEVICE_DELETED
    assert (Reason.DEVICE_DELETED.value, RELEASING) in [(one.reason, one.message) for one in found.blockers]


def test_o2_an_order_under_the_name_of_a_releasing_device_is_blocked_and_says_so() -> None:
    world = releasing()
    order = Order(namespace=NS, class_name="a10", count=2)
    found = plans.plan_order(world.state, DEVICE.name, "d1", order)
    assert (found.outcome, found.blockers[0].reason, found.blockers[0].message) == (
        plans.Outcome.BLOCKED,
        Reason.DEVICE_DELETED.value,
        RELEASING,
    )


def test_o2_a_restart_of_the_vm_of_a_releasing_device_finds_it_deleted() -> None:
    """The restart frees its units but brings the device no owner back."""
    world = releasing()
    tried = what_if.copy(world.state)
    what_if.stop(tried, NS, "vm")
    device = tried.device(NS, "d1")
    assert device is not None and device.deleting is not None and device.placement is None
    assert (tried.units_on("n1", R).free, tried.held(R)) == (2, 0)
    found = plans.plan_start(tried, VMI.name, start_of(world, "vm", [], [("a10", 2)]))
    assert found.outcome == plans.Outcome.BOUND
    found = plans.plan_start(tried, VMI.name, Start(namespace=NS, vmi_name="vm", devices=(device,)))
    assert [one.reason for one in found.blockers] == [Reason.DEVICE_DELETED, Reason.DEVICE_DELETED]
    assert found.blockers[1].message == f"GPUDevice {NS}/d1 is Releasing: it goes when its VM stops"


def test_o2_units_of_a_releasing_device_are_taken_until_its_launcher_is_gone() -> None:
    world = releasing()
    start = start_of(world, "other", [], [("a10", 1)])

    def outcome() -> plans.Outcome:
        return plans.plan_start(world.state, VMI.name, start).outcome

    assert outcome() == plans.Outcome.BLOCKED
    world.gone(VMI, NS, "vm")
    assert world.state.device(NS, "d1") is None and outcome() == plans.Outcome.BLOCKED
    world.gone(POD, NS, "virt-launcher-vm")
    assert outcome() == plans.Outcome.BOUND


def start_of(world: World, vmi: str, devices: Sequence[str], templates: Sequence[tuple[str, int]]) -> Start:
    return Start(
        namespace=NS,
        vmi_name=vmi,
        devices=tuple(world.device(name) for name in devices),
        templates=tuple(TemplateReference(name, count) for name, count in templates),
        constraints=Constraints(memory=1 << 30),
    )


def really(world: World, vmi: str, devices: Sequence[str], templates: Sequence[tuple[str, int]]) -> Device:
    """The start happens: templates are made, the binder is asked, its answer stands on every device."""
    names = [f"{vmi}-template-{index}" for index in range(len(templates))]
    for name, (class_name, count) in zip(names, templates, strict=True):
        template(world, name, class_name, count)
    world.ask(vmi, *devices, *names, constraints=Constraints(memory=1 << 30))
    return world.device((*devices, *names)[0])


def launched(world: World, vmi: str) -> None:
    """The VMI appears with its launcher where its set was placed."""
    devices = world.state.devices_of_vmi(NS, vmi)
    placement = devices[0].placement
    assert placement is not None
    world.vmi(vmi)
    world.launcher(vmi, placement.node, sum(device.count for device in devices))


def build(
    nodes: list[int], orders: list[tuple[str, int]], running: list[Set], raw: list[tuple[int, int]], budget: int | None
) -> World:
    world = World().ready(*((f"n{index}", units) for index, units in enumerate(nodes)))
    world.gpu_class("a10-small", max_count=2)
    quotas = {} if budget is None else {R: budget}
    world.quotas("a", quotas)
    world.run()
    for index, (class_name, count) in enumerate(orders):
        world.order(f"d{index}", count=count, class_name=class_name)
    for index, (node, units) in enumerate(raw):
        world.pod(f"raw{index}", f"n{node % len(nodes)}", units)
    for index, (held, templates) in enumerate(running):
        names = free_devices(world, held)
        known = [(name, count) for name, count in templates if name != "gone"]
        if names or known:
            really(world, f"vm{index}", names, known)
            answer = world.state.devices_of_vmi(NS, f"vm{index}")[0].bind_answer
            if answer is not None and answer.outcome == Outcome.BOUND:
                launched(world, f"vm{index}")
            else:
                world.later(61)
    return world


def free_devices(world: World, indexes: list[int]) -> list[str]:
    names = [f"d{index}" for index in dict.fromkeys(indexes) if world.state.device(NS, f"d{index}") is not None]
    return [name for name in names if world.device(name).phase == Phase.HELD and world.device(name).attachment is None]


SETS = st.tuples(
    st.lists(st.integers(0, 4), max_size=2, unique=True),
    st.lists(st.tuples(st.sampled_from(CLASSES), st.integers(1, 3)), max_size=2),
)
WORLDS = st.builds(
    build,
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(CLASSES[:2]), st.integers(1, 3)), max_size=5),
    st.lists(SETS, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2)), max_size=2),
    st.none() | st.integers(0, 8),
)


@settings(max_examples=200, deadline=None)
@given(WORLDS, SETS)
def test_b2_a_planned_start_gets_what_the_binder_then_decides(world: World, wanted: Set) -> None:
    """The node, or the first blocker as reason, message and missing number (B2, P2, J7)."""
    names = [f"d{index}" for index in sorted(wanted[0]) if world.state.device(NS, f"d{index}") is not None]
    if not names and not wanted[1]:
        return
    if any(world.device(name).attachment is not None for name in names):
        return
    start = start_of(world, "new", names, wanted[1])
    planned = plans.plan_start(world.state, "VirtualMachine", start)
    decided = really(world, "new", names, wanted[1])
    answer = decided.bind_answer
    assert answer is not None, decided
    if planned.outcome is plans.Outcome.BOUND:
        assert (answer.outcome, answer.node) == (Outcome.BOUND, planned.node)
    else:
        assert answer.outcome == Outcome.REFUSED
        assert (answer.reason, answer.message) == (planned.blockers[0].reason, planned.blockers[0].message)


@settings(max_examples=200, deadline=None)
@given(WORLDS, st.sampled_from(CLASSES), st.integers(1, 4))
def test_p1b_a_planned_order_is_held_just_when_the_binder_holds_it(world: World, class_name: str, count: int) -> None:
    order = Order(namespace=NS, class_name=class_name, count=count)
    planned = plans.plan_order(world.state, "GPUDevice", "new", order)
    device = world.order("new", count=count, class_name=class_name)
    assert (device.phase == Phase.HELD) == (planned.outcome is plans.Outcome.HELD) == (not planned.blockers)
    if planned.blockers:
        condition = device.conditions[0]
        assert (condition.reason, condition.message) == (planned.blockers[0].reason, planned.blockers[0].message)


@settings(max_examples=150, deadline=None)
@given(WORLDS, SETS)
def test_p1_the_blockers_are_complete(world: World, wanted: Set) -> None:
    """Every check that says no to the whole set is there, none that says yes, and each stands once."""
    names = free_devices(world, wanted[0])
    known = [(name, count) for name, count in wanted[1] if name != "gone"]
    if not names and not known:
        return
    start = start_of(world, "new", names, known)
    reasons = [blocker.reason for blocker in plans.plan_start(world.state, "VirtualMachine", start).blockers]
    for check in checks.ABOUT_A_START:
        refusal = check(world.state, start)
        assert refusal is None or refusal.reason.value in reasons
    assert bool(reasons) == isinstance(checks.judge_start(world.state, start), checks.Refusal)


@settings(max_examples=150, deadline=None)
@given(WORLDS, st.integers(0, 3))
def test_p2_a_planned_drain_is_what_happens_when_the_vms_restart_in_its_order(world: World, index: int) -> None:
    """Cordon, then stop and start VM after VM: each lands where the plan says, or is refused for its reason. Waiting
    orders are taken away first, since they might take what a stop frees."""
    node = f"n{index}"
    if world.state.node(node) is None:
        return
    for device in [device for device in world.state.all_devices() if device.phase == Phase.PENDING]:
        world.gone(DEVICE, NS, device.name)
    before = snapshot.export(world.state)
    planned = drains.drain(world.state, node)
    assert snapshot.export(world.state) == before
    world.change(NODE, "", node, unschedulable=True)
    for move in planned.moves:
        old = [world.device(name) for name in move.devices]
        templates = [(device.class_name, device.count) for device in old if device.template]
        world.gone(POD, NS, f"virt-launcher-{move.vmi}")
        world.gone(VMI, NS, move.vmi)
        held = [device.name for device in old if not device.template]
        decided = really(world, move.vmi, held, templates)
        answer = decided.bind_answer
        assert answer is not None
        if move.node:
            assert (answer.outcome, answer.node) == (Outcome.BOUND, move.node)
            launched(world, move.vmi)
        else:
            assert (answer.outcome, answer.reason) == (Outcome.REFUSED, move.blockers[0].reason)
            for device in world.state.devices_of_vmi(NS, move.vmi):
                if device.template:
                    world.gone(DEVICE, NS, device.name)
            world.later(61)
    left = [device for device in world.state.devices_on(node) if device.placement is not None]
    assert not left


def _reasons(plan: Plan) -> list[str]:
    return [blocker.reason for blocker in plan.blockers]


def test_j7_every_blocker_with_its_number_not_only_the_first() -> None:
    """P1, R4: the maximum, the permission, budgets of two tenants, the units and the node, each once."""
    world = World().ready(("n1", 2), ("n2", 1))
    world.change(CLASS, "", "a10", max_count=3)
    world.tenant("b", parent=NS, **{R.replace("/", "__"): 4})
    world.quotas("a", {R: 5})
    world.kubevirt("nvidia.com/other")
    world.run()
    order = Order(namespace=f"{NS}-b", class_name="a10", count=6)
    planned = plans.plan_order(world.state, "GPUDevice", "new", order)
    found = [(blocker.reason, blocker.missing) for blocker in planned.blockers]
    assert found == [
        ("CountAboveMaximum", 3),
        ("NotPermitted", 0),
        ("BudgetExceeded", 2),
        ("BudgetExceeded", 1),
        ("NoFreeUnits", 3),
        ("NoNodeFits", 4),
        ("HoldsWouldNotFit", 0),
    ]
    tenants = [line.tenant for line in planned.budgets if line.budget is not None]
    assert tenants == [f"{NS}-b", NS]


def test_j7_each_device_and_each_class_of_a_set_is_told_by_itself() -> None:
    world = World().ready(("n1", 1))
    world.order("held")
    world.order("pending")
    world.order("other")
    world.order("lost", class_name="gone")
    start = start_of(world, "new", ["pending", "other"], [("a10", 1), ("gone", 2)])
    planned = plans.plan_start(world.state, "VirtualMachine", start)
    assert _reasons(planned).count("DeviceNotHeld") == 2
    assert {"UnknownClass", "NoFreeUnits"} <= set(_reasons(planned))
    numbers = {blocker.reason: blocker.missing for blocker in planned.blockers}
    assert numbers["NoFreeUnits"] == 2
    assert [(verdict.node, verdict.missing) for verdict in planned.nodes] == [("n1", 2)]


def test_p2_a_plan_reads_the_vms_constraints() -> None:
    world = World().ready(("n1", 1), ("n2", 1))
    world.change(NODE, "", "n1", labels={})
    world.order("d1")
    start = start_of(world, "new", ["d1"], [])
    assert plans.plan_start(world.state, "VirtualMachine", start).node == "n2"
    asking = msgspec.structs.replace(start, constraints=Constraints(node_selector={"zone": "a"}))
    planned = plans.plan_start(world.state, "VirtualMachine", asking)
    assert planned.outcome is plans.Outcome.BLOCKED
    assert all("zone=a" in verdict.why or "schedulable" in verdict.why for verdict in planned.nodes)


def test_p3_the_largest_set_goes_first_and_what_does_not_fit_says_how_much_it_lacks() -> None:
    """Two sets leave n1; n2 takes the large one, then the small one lacks a unit."""
    world = World().ready(("n1", 4), ("n2", 3))
    world.change(NODE, "", "n2", unschedulable=True)
    world.order("small")
    world.order("large", count=3)
    world.start("one", "small")
    world.start("three", "large", units=3)
    world.change(NODE, "", "n2", unschedulable=False)
    planned = drains.drain(world.state, "n1")
    assert [(move.vmi, move.node) for move in planned.moves] == [("three", "n2"), ("one", "")]
    assert planned.moves[1].missing == 1
    assert planned.stuck == 1


def test_r8_a_drain_names_raw_pods_and_leaves_launchers_out() -> None:
    world = World().ready(("n1", 4))
    world.order("d1")
    world.start("vm", "d1")
    world.pod("raw", "n1", 2)
    planned = drains.drain(world.state, "n1")
    assert [(pod.pod, pod.units) for pod in planned.raw] == [("raw", {R: 2})]
    assert [move.vmi for move in planned.moves] == ["vm"]


def test_p4_a_lost_device_whose_vm_still_runs_is_part_of_the_drain() -> None:
    world = World().ready(("n1", 1), ("n2", 1))
    world.order("d1")
    node = world.start("vm", "d1")
    world.change(NODE, "", node, allocatable={R: 0})
    world.later(61)
    assert world.device("d1").phase == Phase.LOST
    planned = drains.drain(world.state, node)
    assert [(move.vmi, move.node) for move in planned.moves] == [("vm", "n2")]


def test_c26_a_tolerating_vm_is_planned_onto_its_tainted_node() -> None:
    world = World().ready(("n1", 1), ("n2", 1))
    world.change(NODE, "", "n1", taints=(Taint("dedicated", "NoSchedule"),))
    world.change(NODE, "", "n2", unschedulable=True)
    world.order("d1")
    start = start_of(world, "new", ["d1"], [])
    refused = plans.plan_start(world.state, "VirtualMachine", start)
    assert refused.outcome is plans.Outcome.BLOCKED
    assert {verdict.node for verdict in refused.nodes} == {"n1", "n2"}
    tolerant = Constraints(tolerations=(Toleration("dedicated", "Exists"),))
    planned = plans.plan_start(world.state, "VirtualMachine", msgspec.structs.replace(start, constraints=tolerant))
    assert planned.node == "n1"


@settings(max_examples=100, deadline=None)
@given(WORLDS, st.sampled_from(CLASSES[:2]), st.integers(1, 9))
def test_r4_every_budget_that_says_no_is_told_and_the_binders_is_among_them(
    world: World, class_name: str, count: int
) -> None:
    units = checks.budget_units(world.state, [(class_name, count)])
    first = world.state.charges.check(NS, units)
    every = world.state.charges.refusals(NS, units)
    assert (first is None) == (not every)
    assert first is None or first in every


def test_p6_a_name_that_left_the_permitted_table_is_told() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    permitted = (PermittedDevice("nvidia.com/other", vendor="10DE"),)
    world.change(KUBEVIRT, "cozy-kubevirt", "kubevirt", permitted=permitted)
    planned = plans.plan_start(world.state, "VirtualMachine", start_of(world, "new", ["d1"], []))
    assert _reasons(planned) == [Reason.NOT_PERMITTED.value]
