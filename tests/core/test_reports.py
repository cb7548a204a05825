"""Node agents' reports over restarts: an old one takes nothing away, and what it took comes back (R5, P4)."""

from __future__ import annotations

from journal import events
from reconciler.core.model.objects import CLASS, GPU_NODE, KINDS, NODE, Function
from reconciler.core.model.vocabulary import Phase
from tests.core.world import R, World


def cards(healthy: int, of: int = 4) -> list[Function]:
    return [
        Function(id=f"0000:{index:02x}:00.0", stable_id=f"card-{index}", resource_name=R, healthy=index < healthy)
        for index in range(of)
    ]


def running(units: int = 4) -> World:
    """A VM with all units of its node, by the kubelet's count."""
    world = World().ready(("n1", 4))
    world.order("d", units)
    assert world.start("vm", "d", units=units) == "n1"
    return world


def restarted(world: World, **settings: int) -> World:
    """The same cluster, read by a controller with a fresh journal."""
    fresh = World(**settings)
    fresh.at, fresh.version, fresh.objects = world.at, world.version, world.objects
    for kind in KINDS.values():
        for (name, _, _), item in sorted(world.objects.items()):
            if name == kind.name:
                fresh.tell(fresh.observation(kind, item, "list"))
    fresh.sync()
    return fresh


def test_p4_a_report_found_at_a_start_makes_nothing_lost_until_it_changes() -> None:
    world = running()
    world.report("n1", *cards(2))
    world = restarted(world)
    world.later(3600)
    assert world.device("d").phase == Phase.BOUND
    world.report("n1", *cards(2))
    world.later(59)
    assert world.device("d").phase == Phase.BOUND, "the grace time begins once the report is heard"
    world.later(2)
    assert world.device("d").phase == Phase.LOST


def test_p4_a_restart_on_the_old_journal_hears_the_report_anew() -> None:
    world = running()
    world.report("n1", *cards(2))
    world.later(30)
    world.tell(events.ControllerStarted("binder-0", "test"))
    world.sync()
    world.later(3600)
    assert world.device("d").phase == Phase.BOUND
    world.report("n1", *cards(2))
    world.later(61)
    assert world.device("d").phase == Phase.LOST


def test_p4_a_node_that_is_gone_loses_its_devices_whatever_its_report_is_worth() -> None:
    world = running()
    world.report("n1", *cards(4))
    world = restarted(world)
    world.gone(NODE, "", "n1")
    world.later(61)
    assert world.device("d").phase == Phase.LOST


def test_p4_a_lost_device_returns_when_the_report_falls_silent_and_the_kubelet_serves_it() -> None:
    world = running()
    world.report("n1", *cards(2))
    world.later(61)
    assert world.device("d").phase == Phase.LOST
    world.tell(events.ReportSilenced("n1"))
    world.run()
    assert world.device("d").phase == Phase.BOUND
    world.report("n1", *cards(2))
    world.later(61)
    assert world.device("d").phase == Phase.LOST, "heard again, the report counts again"


def test_p4_a_lost_device_returns_when_the_report_is_deleted_or_broken() -> None:
    for ending in ("deleted", "broken"):
        world = running()
        world.report("n1", *cards(2))
        world.later(61)
        uid = world.objects[(GPU_NODE.name, "", "n1")].uid
        if ending == "deleted":
            world.gone(GPU_NODE, "", "n1")
        else:
            world.tell(events.ObjectUnreadable(GPU_NODE.name, "", "n1", uid, "900", "functions: not a list"))
            world.run()
        assert world.device("d").phase == Phase.BOUND, ending


def test_p4_a_silent_node_that_serves_too_few_brings_nothing_back() -> None:
    world = running()
    world.report("n1", *cards(2))
    world.later(61)
    world.change(NODE, "", "n1", allocatable={R: 3})
    world.tell(events.ReportSilenced("n1"))
    world.run()
    assert world.device("d").phase == Phase.LOST
    world.change(NODE, "", "n1", allocatable={R: 4}, ready=False)
    assert world.device("d").phase == Phase.LOST
    world.change(NODE, "", "n1", ready=True)
    assert world.device("d").phase == Phase.BOUND


def test_p4_a_lost_device_returns_although_its_class_was_taken_away() -> None:
    world = running()
    world.gone(CLASS, "", "a10")
    world.change(NODE, "", "n1", allocatable={R: 2})
    world.later(61)
    assert world.device("d").phase == Phase.LOST
    world.change(NODE, "", "n1", allocatable={R: 4})
    world.later(61)
    assert world.device("d").phase == Phase.BOUND
