"""Rejected, dropped and conflicting writes: no busy retries, nothing skipped, nothing blocked."""

from __future__ import annotations

import msgspec

from journal import events
from reconciler.core.decide import decide
from reconciler.core.model.objects import DEVICE, POD, SETTINGS, Device, SettingsMap
from reconciler.core.model.vocabulary import Phase
from reconciler.core.state.decisions import Action, Decision
from tests.core.world import NS, World

LIMIT = 50


def refuse_all(world: World, answer: type[events.WriteRejected] | type[events.WriteDropped]) -> list[Decision]:
    """Decide while every write is rejected; stops at `LIMIT` decisions."""
    made: list[Decision] = []
    while len(made) < LIMIT and (decision := decide(world.state)) is not None:
        made.append(decision)
        world.tell(events.Decided(msgspec.Raw(msgspec.json.encode(decision))))
        for index in range(len(decision.writes)):
            identity = f"{world.state.seq}.{index}"
            world.tell(
                answer(identity, "forbidden") if answer is events.WriteRejected else events.WriteDropped(identity)
            )
    return made


def held_back(world: World) -> list[tuple[str, Decision, int]]:
    """The writes decided now, without outcomes yet."""
    world.refuse_writes = True
    world.run()
    world.refuse_writes = False
    taken, world.held_writes = world.held_writes, []
    return taken


def test_b6_a_rejected_class_status_is_not_written_again_at_once() -> None:
    world = World().ready(("n1", 4))
    world.node("n2", 2)
    world.at += 5000
    world.tell(events.TimeReached())
    made = refuse_all(world, events.WriteRejected)
    assert len([d for d in made if d.action is Action.PUBLISH_CLASS]) == 1
    world.at += 31_000
    world.tell(events.TimeReached())
    assert len(refuse_all(world, events.WriteRejected)) == 1, "and again once its rules may have changed"


def test_b6_a_rejected_settings_map_is_not_made_again_at_once() -> None:
    """A missing right to make the ConfigMap must not become a storm of requests and journal entries."""
    world = World()
    world.sync(lead=False)
    world.tell(events.LeadershipAcquired("binder-0", 1))
    assert len(refuse_all(world, events.WriteRejected)) == 1
    world.at += 31_000
    world.tell(events.TimeReached())
    assert [d.action for d in refuse_all(world, events.WriteRejected)] == [Action.PUBLISH_SETTINGS]


def test_b6_a_settings_map_that_exists_and_cannot_be_read_is_not_made_again_at_once() -> None:
    """R10: the ConfigMap is set aside; every attempt to make it is answered AlreadyExists."""
    world = World()
    world.tell(events.ObjectUnreadable(SETTINGS.name, "cozy-gpu-binder", "gpu-settings", "cm", "9", "data: list"))
    world.sync(lead=False)
    world.tell(events.LeadershipAcquired("binder-0", 1))
    made = 0
    while made < LIMIT and (decision := decide(world.state)) is not None:
        made += 1
        world.tell(events.Decided(msgspec.Raw(msgspec.json.encode(decision))))
        world.tell(events.WriteConflicted(f"{world.state.seq}.0", "already exists"))
        world.tell(events.ObjectUnreadable(SETTINGS.name, "cozy-gpu-binder", "gpu-settings", "cm", "9", "data: list"))
    assert made <= 1


def test_a_rejected_settings_patch_is_not_written_again_at_once() -> None:
    world = World().ready(("n1", 4))
    known = world.objects[(SETTINGS.name, "cozy-gpu-binder", "gpu-settings")]
    assert isinstance(known, SettingsMap)
    world.put(SETTINGS, msgspec.structs.replace(known, data={"resourceNames": "edited"}))
    assert len(refuse_all(world, events.WriteRejected)) == 1


def test_j5_writes_dropped_for_a_doubtful_lease_are_not_decided_again_at_once() -> None:
    """Between the writer's doubt and the end of the term the loop must not spin."""
    world = World().ready(("n1", 4))
    world.put(DEVICE, Device(name="d1", namespace=NS, uid="", class_name="a10", generation=1))
    assert len(refuse_all(world, events.WriteDropped)) <= 2
    world.later(2)
    assert world.device("d1").phase == Phase.HELD, "the lease was ours after all"


def test_p4_a_loss_that_conflicts_is_not_passed_on_to_another_device() -> None:
    """Without a live launcher first: d2 loses; while its object is being read again d1, which runs, must not."""
    world = World().ready(("n1", 2))
    for name in ("d1", "d2"):
        world.order(name)
        world.ask(f"vm-{name}", name)
        world.vmi(f"vm-{name}")
    world.launcher("vm-d1", "n1", 1)
    world.node("n1", 1)
    world.run()
    world.at += 61_000
    world.tell(events.TimeReached())
    (write,) = [found for found in held_back(world) if found[1].action is Action.LOSE]
    assert write[1].subject == f"{NS}/d2"
    world.tell(events.WriteConflicted(write[0], "modified"))
    world.run()
    assert world.device("d1").phase == Phase.BOUND
    world.put(DEVICE, world.objects[(DEVICE.name, NS, "d2")], "read")
    world.run()
    assert world.device("d2").phase == Phase.LOST
    assert world.device("d1").phase == Phase.BOUND


def test_p4_a_rejected_loss_is_tried_again() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    world.start("vm", "d1")
    world.node("n1", 0)
    world.run()
    world.at += 61_000
    world.tell(events.TimeReached())
    refuse_all(world, events.WriteRejected)
    assert world.device("d1").phase == Phase.BOUND
    world.later(31)
    assert world.device("d1").phase == Phase.LOST


def test_p4_the_older_loss_comes_back_first_even_if_its_write_conflicts() -> None:
    world = World().ready(("n1", 2))
    for name in ("d1", "d2"):
        world.order(name)
        world.start(f"vm-{name}", name)
        world.later(1)
    world.node("n1", 0)
    world.run()
    world.later(61)
    assert {world.device(name).phase for name in ("d1", "d2")} == {Phase.LOST}
    for name in ("d1", "d2"):
        pod = f"virt-launcher-vm-{name}"
        world.change(POD, NS, pod, phase="Failed")
    world.node("n1", 1)
    (write,) = [found for found in held_back(world) if found[1].action is Action.RESTORE]
    assert write[1].subject == f"{NS}/d1"
    world.tell(events.WriteConflicted(write[0], "modified"))
    world.run()
    assert world.device("d2").phase == Phase.LOST
    world.put(DEVICE, world.objects[(DEVICE.name, NS, "d1")], "read")
    world.run()
    assert world.device("d1").phase == Phase.BOUND


def test_b2_a_bound_set_that_is_refused_anew_no_longer_says_it_is_on_a_node() -> None:
    """Half of a set was placed, then its node left: the refusal clears placement and what the condition says."""
    world = World().ready(("n1", 2))
    world.order("d1")
    world.order("d2")
    world.refuse_writes = True
    world.ask("vm", "d1", "d2")
    world.refuse_writes = False
    (first, second), world.held_writes = world.held_writes[:2], []
    world.land(*first)
    world.node("n1", 0)
    world.tell(events.WriteConflicted(second[0], "modified"))
    world.put(DEVICE, world.objects[(DEVICE.name, NS, "d2")], "read")
    world.run()
    found = world.device("d1")
    assert found.placement is None
    assert not any("on node" in condition.message for condition in found.conditions)


def test_rejections_and_pending_keys_are_forgotten() -> None:
    """Nothing grows with the number of devices and restarts there ever were."""
    world = World().ready(("n1", 4))
    for round_ in range(3):
        world.put(DEVICE, Device(name=f"d{round_}", namespace=NS, uid="", class_name="a10", generation=1))
        refuse_all(world, events.WriteRejected)
        world.gone(DEVICE, NS, f"d{round_}")
    known = {item.uid for items in world.state.objects.values() for item in items.values()}
    assert set(world.state.rejections) <= known
    world.later(40)
    assert world.state.rejections == {}
    world.put(DEVICE, Device(name="last", namespace=NS, uid="", class_name="a10", generation=1))
    held_back(world)
    world.tell(events.ControllerStarted("binder-0", "test"))
    assert world.state.pending == {}
    assert world.state.pending_keys == {}
