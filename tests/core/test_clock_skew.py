"""Clocks that disagree, restarts and old VMIs under a new start's name (P4, P5, R10)."""

from __future__ import annotations

import msgspec

from journal import events
from reconciler.core import snapshot
from reconciler.core.model.objects import DEVICE, NODE, VMI, Attachment, BindRequest, Device
from reconciler.core.model.vocabulary import Phase
from tests.core.world import NS, R, World


def ask_at(world: World, vmi: str, name: str, at: int) -> None:
    """A start whose webhook's clock shows `at`."""
    device = world.objects[(DEVICE.name, NS, name)]
    assert isinstance(device, Device)
    request = BindRequest(id=f"req-{vmi}", vmi_name=vmi, set_size=1, requested_at=at)
    attachment = Attachment(vmi_name=vmi, request_id=request.id, since=at)
    world.put(DEVICE, msgspec.structs.replace(device, attachment=attachment, bind_request=request, phase="Attached"))
    world.run()


def test_p5_a_webhook_whose_clock_is_behind_does_not_lose_its_starts() -> None:
    """The grace time is the binder's own: it runs from when the binder learnt of the attachment."""
    world = World().ready(("n1", 1))
    world.order("d1")
    ask_at(world, "vm", "d1", world.at - 300_000)
    assert world.device("d1").phase == Phase.BOUND
    world.later(59)
    assert world.device("d1").phase == Phase.BOUND
    world.later(2)
    assert world.device("d1").phase == Phase.HELD


def test_p5_a_webhook_whose_clock_is_ahead_does_not_keep_a_device_for_ever() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    ask_at(world, "vm", "d1", world.at + 86_400_000)
    world.later(61)
    assert world.device("d1").phase == Phase.HELD


def test_p5_the_grace_time_survives_a_restart() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    ask_at(world, "vm", "d1", world.at)
    world.later(40)
    world.state = snapshot.restore(snapshot.export(world.state))
    world.tell(events.ControllerStarted("binder-0", "test"))
    world.sync(lead=False)
    world.tell(events.LeadershipAcquired("binder-0", 2))
    world.run()
    world.later(21)
    assert world.device("d1").phase == Phase.HELD


def test_p5_an_attachment_is_not_taken_for_the_old_vmi_of_that_name() -> None:
    """The API server had deleted the old VMI when the webhook looked; the binder hears of it after the start."""
    world = World().ready(("n1", 1))
    world.order("d1")
    world.vmi("vm")
    world.later(300)
    world.ask("vm", "d1")
    assert world.device("d1").phase == Phase.BOUND
    world.gone(VMI, NS, "vm")
    assert world.device("d1").phase == Phase.BOUND, "the start's own VMI has still to appear"
    world.vmi("vm", uid="new")
    world.later(120)
    assert world.device("d1").phase == Phase.BOUND
    world.gone(VMI, NS, "vm")
    assert world.device("d1").phase == Phase.HELD


def test_p4_a_grace_time_that_ended_with_a_node_does_not_run_on_under_its_name() -> None:
    """A node goes with a Lost device, the device goes, the node returns: the next shortage has a grace of its own."""
    world = World().ready(("n1", 1))
    world.order("d1")
    world.start("vm", "d1")
    world.gone(NODE, "", "n1")
    world.later(10)
    world.gone(VMI, NS, "vm")
    assert world.device("d1").phase == Phase.HELD
    pod = next(key for key in world.objects if key[0] == "Pod")
    world.objects.pop(pod)
    world.tell(events.ObjectDeleted("Pod", pod[1], pod[2], world.state.objects["Pod"][pod[1:]].uid))
    world.later(300)
    assert world.state.short_since == {}
    world.node("n1", 1)
    world.run()
    world.start("vm2", "d1")
    world.change(NODE, "", "n1", allocatable={R: 0})
    world.later(5)
    assert world.device("d1").phase == Phase.BOUND
