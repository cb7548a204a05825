"""What one event costs the fold does not grow with what has finished; counted in objects looked at, not in time."""

from __future__ import annotations

import pytest

from reconciler.core.model.objects import NODE, POD, Pod
from reconciler.core.state.placement_state import PlacementState
from tests.core.world import NS, R, World


def finished(world: World, number: int) -> None:
    world.put(POD, Pod(name=f"job-{number}", namespace=NS, uid="", node="n1", phase="Failed", requests={R: 1}))


def pods_looked_at(world: World, patch: pytest.MonkeyPatch) -> list[int]:
    """How often a pod is looked up for each of a few events of the node."""
    calls = 0
    lookup = PlacementState.pod

    def counted(state: PlacementState, uid: str) -> Pod | None:
        nonlocal calls
        calls += 1
        return lookup(state, uid)

    found = []
    with patch.context() as context:
        context.setattr(PlacementState, "pod", counted)
        for event in (
            lambda: finished(world, 1_000_000),
            lambda: world.change(NODE, "", "n1", allocatable={R: 3}),
            lambda: world.change(POD, NS, "job-0", deleting=world.at),
            lambda: world.gone(POD, NS, "job-0"),
            lambda: world.order("order", 1),
            lambda: world.start("vm", "order"),
        ):
            calls = 0
            event()
            found.append(calls)
    return found


def test_r6_finished_pods_of_a_node_cost_its_events_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = {}
    for amount in (10, 1_000):
        world = World().ready(("n1", 4))
        for number in range(amount):
            finished(world, number)
        looked_at[amount] = pods_looked_at(world, monkeypatch)
    assert looked_at[10] == looked_at[1_000]


def test_r6_a_pod_that_finishes_leaves_the_account_of_its_node() -> None:
    world = World().ready(("n1", 4))
    world.pod("job", "n1", 3)
    assert world.state.units_on("n1", R).raw == 3
    world.change(POD, NS, "job", phase="Failed")
    state = world.state
    assert (state.units_on("n1", R).raw, state.units_on("n1", R).requests) == (0, 0)
    for index in (state.gpu_pods_on, state.raw_budget, state.raw_capacity, state.pod_namespaces):
        assert index == {}
