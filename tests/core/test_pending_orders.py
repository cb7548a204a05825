"""Pending orders: which are retried when something is freed, and what their status says meanwhile (P1b)."""

from __future__ import annotations

import pytest

from reconciler.core.model.objects import DEVICE, POD, Constraints, Requirement, Term
from reconciler.core.model.vocabulary import SCHEDULABLE_LABEL, Outcome, Phase, Reason
from reconciler.core.state.decisions import Action
from tests.core.world import NS, R, World


def reason(world: World, name: str, ns: str = NS) -> str:
    return world.device(name, ns).conditions[0].reason


def test_p1b_orders_alike_are_accepted_one_by_one_the_oldest_first() -> None:
    world = World().ready(("n1", 2))
    world.order("all", 2)
    for name in ("first", "second", "third"):
        world.later(1)
        world.order(name)
    assert {world.device(name).phase for name in ("first", "second", "third")} == {Phase.PENDING}
    world.change(DEVICE, NS, "all", deleting=world.at)
    held = [name for name in ("first", "second", "third") if world.device(name).phase == Phase.HELD]
    assert held == ["first", "second"]
    world.change(DEVICE, NS, "first", deleting=world.at)
    assert world.device("third").phase == Phase.HELD


def test_p1b_the_next_of_the_orders_alike_has_its_turn_when_the_first_is_withdrawn() -> None:
    world = World().ready(("n1", 2))
    world.order("all", 2)
    world.order("first")
    world.order("second")
    world.refuse_writes = True
    world.change(DEVICE, NS, "all", deleting=world.at)
    world.refuse_writes = False
    for identity, decision, index in world.held_writes:
        world.land(identity, decision, index)
    world.run()
    world.gone(DEVICE, NS, "first")
    assert world.device("second").phase == Phase.HELD


def test_p1b_one_free_unit_costs_no_write_to_the_orders_it_does_not_suffice_for() -> None:
    """A thousand orders that wait for two units are not told each time that one is free; within a minute and its
    shares each of them reads so."""
    world = World().ready(("n1", 2))
    world.order("a")
    world.order("b")
    for number in range(100):
        world.order(f"waits-{number:03}", 2)
    before = len(world.decisions)
    world.change(DEVICE, NS, "a", deleting=world.at)
    told = [made for made in world.decisions[before:] if made.action == Action.REFUSE_ORDER]
    assert told == []
    assert "0 free" in world.device("waits-050").conditions[0].message
    world.later(61)
    told = [made for made in world.decisions[before:] if made.action == Action.REFUSE_ORDER]
    assert 0 < len(told) <= 2, "a share at a time"
    for _ in range(50):
        world.later(1)
    for number in range(100):
        assert "1 free" in world.device(f"waits-{number:03}").conditions[0].message


def test_r4_a_sibling_that_gets_a_smaller_budget_lets_the_others_order() -> None:
    world = World().ready(("n1", 8))
    world.quotas("a", {R: "4"})
    world.tenant("b", parent=NS)
    world.quotas("b", {R: "3"}, parent=NS)
    world.run()
    world.order("mine", 2)
    assert reason(world, "mine") == Reason.BUDGET_EXCEEDED
    world.quotas("b", {R: "2"}, parent=NS)
    world.run()
    assert world.device("mine").phase == Phase.HELD


def test_r4_a_raw_pod_that_never_ran_and_goes_gives_its_budget_back() -> None:
    """No node's free units change, the charge does (K3)."""
    world = World().ready(("n1", 8))
    world.quotas("a", {R: "2"})
    world.run()
    world.pod("raw", "", 2, phase="Pending")
    world.order("mine")
    assert reason(world, "mine") == Reason.BUDGET_EXCEEDED
    world.gone(POD, NS, "raw")
    assert world.device("mine").phase == Phase.HELD


def test_r4_an_order_refused_by_a_budget_is_asked_again_for_units_once_the_budget_lets_it_pass() -> None:
    """First the budget has room while no unit is free, then a unit is given back."""
    world = World().ready(("n1", 2))
    world.tenant("b")
    world.order("theirs", 2, ns="tenant-b")
    world.quotas("a", {R: "0"})
    world.run()
    world.order("mine")
    assert reason(world, "mine") == Reason.BUDGET_EXCEEDED
    world.quotas("a", {R: "1"})
    world.run()
    assert reason(world, "mine") == Reason.NO_FREE_UNITS
    world.change(DEVICE, "tenant-b", "theirs", deleting=world.at)
    assert world.device("mine").phase == Phase.HELD


ZONE = "topology.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("asked", "node"),
    [
        (Constraints(node_selector={ZONE: "z1"}), "n041"),
        (Constraints(terms=(Term((Requirement(ZONE, "In", ("z1", "z9")),)),)), "n041"),
        (
            Constraints(terms=(Term((Requirement(ZONE, "In", ("z8",)),)), Term((Requirement("gen", "Exists"),)))),
            "n077",
        ),
        (Constraints(terms=(Term((), (Requirement("metadata.name", "In", ("n050",)),)),)), "n050"),
        (Constraints(terms=(Term((Requirement(ZONE, "NotIn", ("z0",)),)),)), "n041"),
        (Constraints(node_selector={ZONE: "z9"}), ""),
        (Constraints(terms=()), ""),
    ],
)
def test_p2_a_start_that_names_labels_goes_where_they_are(asked: Constraints, node: str) -> None:
    """Few nodes carry the label or many; the labels of a node may change while they are asked for."""
    world = World().ready()
    for number in range(80):
        labels = {SCHEDULABLE_LABEL: "true", ZONE: "z1" if number == 79 else "z0"}
        world.node(f"n{number:03}", labels=labels | ({"gen": "5"} if number == 77 else {}))
    world.order("warm")
    world.ask("vm-warm", "warm", constraints=Constraints(node_selector={ZONE: "z1", "gen": "none"}))
    for number in (41, 79):
        zone = "z1" if number == 41 else "z0"
        world.node(f"n{number:03}", labels={SCHEDULABLE_LABEL: "true", ZONE: zone})
    world.order("mine")
    world.ask("vm", "mine", constraints=asked)
    answer = world.device("mine").bind_answer
    assert answer is not None
    assert (answer.outcome, answer.node) == (Outcome.BOUND if node else Outcome.REFUSED, node)
