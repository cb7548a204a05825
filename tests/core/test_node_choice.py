"""Which node a set goes to: ties, and holds that have to stay startable (P2, P3)."""

from __future__ import annotations

import pytest

from reconciler.core.model.objects import Constraints
from reconciler.core.model.vocabulary import SCHEDULABLE_LABEL, Outcome, Phase
from tests.core.world import R, World

L4 = "nvidia.com/L4"
ZONE = "topology.kubernetes.io/zone"


def test_p3_a_start_that_leaves_a_hold_no_node_is_refused() -> None:
    """`small` may only go to the one node that can still take `big`."""
    world = World()
    for name, units in (("n1", 3), ("n2", 2)):
        world.node(name, units, labels={SCHEDULABLE_LABEL: "true", ZONE: name})
    world.ready()
    world.order("big", 3)
    world.order("small", 1)
    assert world.device("small").phase == Phase.HELD
    world.ask("vm", "small", constraints=Constraints(node_selector={ZONE: "n1"}))
    answer = world.device("small").bind_answer
    assert answer is not None and answer.outcome == Outcome.REFUSED
    world.ask("vm", "small", constraints=Constraints(node_selector={ZONE: "n2"}))
    placement = world.device("small").placement
    assert placement is not None and placement.node == "n2"


@pytest.mark.parametrize("selector", [{}, {ZONE: "east"}], ids=["any node", "few nodes"])
@pytest.mark.parametrize("classes", [("a10",), ("a10", "l4")], ids=["one name", "two names"])
def test_p2_a_tie_goes_to_the_first_name(classes: tuple[str, ...], selector: dict[str, str]) -> None:
    world = World()
    for name in ("n3", "n1", "n2"):
        labels = {SCHEDULABLE_LABEL: "true", ZONE: "east"}
        world.node(name, allocatable={R: 2, L4: 2}, labels=labels)
    world.gpu_class("l4", L4)
    world.ready()
    world.kubevirt(R, L4)
    devices = [f"d-{name}" for name in classes]
    for device, class_name in zip(devices, classes, strict=True):
        world.order(device, class_name=class_name)
    world.ask("vm", *devices, constraints=Constraints(node_selector=selector))
    for device in devices:
        placement = world.device(device).placement
        assert placement is not None and placement.node == "n1"
