"""State that must not grow with history, and objects that cannot be read (J6, R10)."""

from __future__ import annotations

from journal import events
from reconciler.core.model.objects import CLASS, DEVICE, NODE, POD, RELEASE, Device, Function, Release
from reconciler.core.model.vocabulary import Phase
from tests.core.world import NS, R, World


def test_j5_a_follower_keeps_no_questions_about_what_is_gone() -> None:
    """A replica that never leads folds for months; its agenda and snapshots must not hold every device ever."""
    world = World().ready(("n1", 4))
    world.tell(events.LeadershipLost("binder-0", "test"))
    world.run()
    for round_ in range(40):
        name = f"d{round_}"
        world.put(DEVICE, Device(name=name, namespace=NS, uid="", class_name="a10", generation=1))
        world.ask(f"vm{round_}", name)
        world.gone(DEVICE, NS, name)
        world.later(61)
    assert len(world.state.work_queue) <= 10
    world.put(DEVICE, Device(name="last", namespace=NS, uid="", class_name="a10", generation=1))
    world.tell(events.LeadershipAcquired("binder-0", 2))
    world.run()
    assert world.device("last").phase == Phase.HELD, "a new leader asks everything anew"


def test_j5_a_new_leader_sees_losses_that_became_due_before() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    world.start("vm", "d1")
    world.tell(events.LeadershipLost("binder-0", "test"))
    world.node("n1", 0)
    world.later(90)
    world.tell(events.LeadershipAcquired("binder-0", 2))
    world.run()
    assert world.device("d1").phase == Phase.LOST


def test_k3_a_class_that_is_gone_matches_no_budget_key() -> None:
    """C13: a budget for a class that is deleted is reported as matching nothing."""
    world = World().ready(("n1", 4))
    world.quotas("a", {"gpu.cozystack.io/a10": "2"})
    release = world.state.tenant_release("tenant-a")
    assert release is not None
    assert world.state.budgets_of(release).unmatched == ()
    world.gone(CLASS, "", "a10")
    assert world.state.budgets_of(release).unmatched == ("gpu.cozystack.io/a10",)
    assert world.state.class_resources == {}


def test_r10_a_class_that_went_before_its_devices_keeps_their_charge_until_they_go() -> None:
    world = World().ready(("n1", 4))
    world.order("d1", 2)
    world.gone(CLASS, "", "a10")
    assert world.state.class_resources == {"a10": R}
    world.gone(DEVICE, NS, "d1")
    assert world.state.class_resources == {}


def test_r5_a_report_that_cannot_be_read_no_longer_speaks() -> None:
    """The agent writes nonsense: what it said before is stale from then on, and unknown is not zero."""
    world = World().ready(("n1", 2))
    world.report("n1", Function(id="0000:01:00.0", stable_id="u1", resource_name=R))
    assert world.state.known_served("n1", R) == 1
    world.tell(events.ObjectUnreadable("GPUNode", "", "n1", "uid", "99", "status.functions: expected a list"))
    assert world.state.known_served("n1", R) is None
    world.report("n1", Function(id="0000:01:00.0", stable_id="u1", resource_name=R))
    assert world.state.known_served("n1", R) == 1


def test_r2_a_release_that_cannot_be_read_takes_no_namespace_from_an_older_one() -> None:
    """`tenant-a-b` may be `a-b` below the root or `b` below `tenant-a`; the older release owns it (R9)."""
    world = World().ready(("n1", 2))
    world.put(RELEASE, Release(name="tenant-a-b", namespace="tenant-root", uid=""))
    world.at += 1000
    world.tell(events.ObjectUnreadable(RELEASE.name, "tenant-a", "tenant-b", "evil", "99", "metadata: wrong"))
    assert world.state.claims.owner("tenant-a-b") == ("tenant-root", "tenant-a-b")


def test_nodes_that_went_leave_nothing_behind() -> None:
    world = World().ready(("n1", 2))
    for round_ in range(20):
        name = f"spot{round_}"
        world.node(name, 1)
        pod = world.pod("raw", name, 1)
        world.gone(NODE, "", name)
        world.gone(POD, NS, pod.name)
    state = world.state
    for index in (state.gpu_pods_on, state.memory_on, state.accounts, state.usage, state.spoken, state.vanished):
        assert sorted(index) in ([], ["n1"]), index
