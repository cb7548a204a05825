"""A device that cannot be fenced blocks no other; writes an older leader still has in flight always conflict (J5)."""

from __future__ import annotations

import msgspec
import pytest

from journal import events
from reconciler.core import snapshot
from reconciler.core.decide import decide
from reconciler.core.model.device_state import epoch_mark
from reconciler.core.model.objects import DEVICE, Device
from reconciler.core.model.vocabulary import Phase
from reconciler.core.state.decisions import Action
from tests.core.world import NS, World


def unled(world: World) -> World:
    world.tell(events.LeadershipLost("binder-0", "test"))
    return world


def order(world: World, name: str, **fields: object) -> None:
    world.put(DEVICE, Device(name=name, namespace=NS, uid="", class_name="a10", generation=1, **fields))  # type: ignore[arg-type]


def test_j5_a_rejected_fence_holds_up_that_device_alone() -> None:
    """R10: an object nobody can write to stops nothing else, and is fenced before anything is granted to it."""
    world = unled(World().ready(("n1", 4)))
    order(world, "stubborn")
    order(world, "d2")
    world.tell(events.LeadershipAcquired("binder-0", 2))
    while (decision := decide(world.state)) is not None:
        world.tell(events.Decided(msgspec.Raw(msgspec.json.encode(decision))))
        for index, write in enumerate(decision.writes):
            identity = f"{world.state.seq}.{index}"
            if write.name == "stubborn":
                world.tell(events.WriteRejected(identity, "denied by another webhook"))
            else:
                world.land(identity, decision, index)
    assert world.device("d2").phase == Phase.HELD
    assert world.device("stubborn").phase == ""
    world.decisions.clear()
    world.later(31)
    about = [d.action for d in world.decisions if d.subject == f"{NS}/stubborn"]
    assert about[0] is Action.FENCE
    assert world.device("stubborn").phase == Phase.HELD


def test_r10_a_device_that_cannot_be_read_holds_up_no_leader() -> None:
    world = unled(World().ready(("n1", 4)))
    order(world, "broken")
    order(world, "d2")
    known = world.objects[(DEVICE.name, NS, "broken")]
    world.version += 1
    world.objects[(DEVICE.name, NS, "broken")] = msgspec.structs.replace(known, resource_version=str(world.version))
    world.tell(events.ObjectUnreadable(DEVICE.name, NS, "broken", known.uid, str(world.version), "status: wrong"))
    world.tell(events.LeadershipAcquired("binder-0", 2))
    world.run()
    assert world.device("d2").phase == Phase.HELD
    assert [d for d in world.decisions if d.subject == f"{NS}/broken" and d.action is not Action.FENCE] == []


def test_r10_a_device_that_becomes_unreadable_while_it_is_fenced_holds_up_no_leader() -> None:
    world = unled(World().ready(("n1", 4)))
    order(world, "broken")
    order(world, "d2")
    known = world.objects[(DEVICE.name, NS, "broken")]
    world.tell(events.LeadershipAcquired("binder-0", 2))
    decision = decide(world.state)
    assert decision is not None and decision.action is Action.FENCE
    world.tell(events.Decided(msgspec.Raw(msgspec.json.encode(decision))))
    world.tell(events.WriteConflicted(f"{world.state.seq}.0", "modified"))
    world.tell(events.ObjectUnreadable(DEVICE.name, NS, known.name, known.uid, "999", "status: wrong"))
    world.run()
    assert world.device("d2").phase == Phase.HELD


def test_r10_an_unreadable_device_keeps_its_units_and_is_not_written_to() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    world.start("vm", "d1")
    known = world.objects[(DEVICE.name, NS, "d1")]
    world.tell(events.ObjectUnreadable(DEVICE.name, NS, "d1", known.uid, "999", "status: wrong"))
    world.decisions.clear()
    world.order("d2")
    assert world.device("d2").phase == Phase.PENDING, "the unit is still taken"
    world.node("n1", 0)
    world.run()
    world.later(120)
    assert [d for d in world.decisions if d.subject == f"{NS}/d1"] == []


def test_j5_a_placed_device_of_a_set_that_does_not_agree_is_fenced_too() -> None:
    """The old leader decided the set anew and moves d1 to another node; its write must not land under the new one,
    which may give those units away."""
    world = World().ready(("n1", 2), ("n2", 2))
    world.order("d1")
    world.order("d2")
    world.refuse_writes = True
    world.ask("vm", "d1", "d2")
    world.refuse_writes = False
    writes, world.held_writes = world.held_writes[:2], []
    world.land(*writes[0])
    unled(world)
    world.tell(events.WriteDropped(writes[1][0]))
    world.decisions.clear()
    world.tell(events.LeadershipAcquired("binder-1", 2))
    world.run()
    fenced = {d.subject for d in world.decisions if d.action is Action.FENCE}
    assert fenced == {f"{NS}/d1", f"{NS}/d2"}


def test_j5_two_leaders_that_count_the_same_epoch_fence_each_other() -> None:
    """Both started from a deleted Lease."""
    world = unled(World().ready(("n1", 4)))
    order(world, "d", epoch=epoch_mark(3, "binder-0"))
    world.tell(events.LeadershipAcquired("binder-1", 3, epoch_mark(3, "binder-1")))
    world.run()
    assert [d.subject for d in world.decisions if d.action is Action.FENCE] == [f"{NS}/d"]
    assert world.device("d").epoch == "3/binder-1"
    world.change(DEVICE, NS, "d", epoch="3/binder-0")
    assert not world.state.leading, "another leader's fence ends the term"


@pytest.mark.parametrize("mark", ["7", "7/binder-0_1", "07/x"])
def test_j5_the_highest_epoch_is_that_of_devices_and_of_our_own_terms(mark: str) -> None:
    world = unled(World().ready(("n1", 4)))
    order(world, "d", epoch=mark)
    order(world, "forged", epoch="99999999999999")
    assert world.state.highest_epoch == 7
    world.tell(events.LeadershipAcquired("binder-0", 9, epoch_mark(9, "binder-0")))
    unled(world)
    restored = snapshot.restore(snapshot.export(world.state))
    assert restored.highest_epoch == 9


def test_j5_nothing_is_decided_before_every_fence_has_landed() -> None:
    """An older leader's grant may still be under way to the device that is not fenced yet."""
    world = unled(World().ready(("n1", 4)))
    order(world, "d1")
    order(world, "d2")
    world.decisions.clear()
    world.refuse_writes = True
    world.tell(events.LeadershipAcquired("binder-0", 2, "2/binder-0"))
    world.run()
    assert [d.action for d in world.decisions] == [Action.FENCE, Action.FENCE]
    world.land(*world.held_writes[0])
    world.run()
    assert [d.action for d in world.decisions if d.action is not Action.FENCE] == [], "one fence is still under way"
    world.land(*world.held_writes[1])
    world.run()
    assert world.decisions[2:] and Action.FENCE not in {d.action for d in world.decisions[2:]}


def test_j5_a_bound_set_that_agrees_is_not_touched_by_a_new_leader() -> None:
    world = World().ready(("n1", 2))
    world.order("d1")
    world.start("vm", "d1")
    unled(world)
    world.decisions.clear()
    world.tell(events.LeadershipAcquired("binder-1", 2))
    world.run()
    assert [d for d in world.decisions if d.kind == DEVICE.name] == []
