"""Forged and incomplete sets, and templates of two classes with one resource name (B2, P1, P3)."""

from __future__ import annotations

import msgspec

from journal import events
from reconciler.core.admission import checks
from reconciler.core.model.objects import DEVICE, NODE, Attachment, BindRequest, Constraints, Device
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.vocabulary import Phase, Reason
from reconciler.core.state.decisions import Action
from tests.core.world import NS, R, World


def carry(world: World, request: BindRequest, name: str, ns: str = NS) -> None:
    device = world.objects[(DEVICE.name, ns, name)]
    assert isinstance(device, Device)
    attachment = Attachment(vmi_name=request.vmi_name, request_id=request.id, since=world.at)
    world.put(DEVICE, msgspec.structs.replace(device, attachment=attachment, bind_request=request, phase="Attached"))
    world.run()


def test_b2_a_request_over_two_namespaces_places_nothing_and_ends() -> None:
    world = World().ready(("n1", 4))
    world.tenant("b")
    world.order("d1")
    world.order("d2", ns="tenant-b")
    request = BindRequest(id="forged", vmi_name="vm", set_size=2, requested_at=world.at)
    carry(world, request, "d1")
    carry(world, request, "d2", "tenant-b")
    assert world.device("d1").placement is None and world.device("d2", "tenant-b").placement is None
    world.order("d3")
    world.start("vm3", "d3")
    world.later(61)
    assert {world.device("d1").phase, world.device("d2", "tenant-b").phase} == {Phase.HELD}
    assert world.device("d3").phase == Phase.BOUND


def test_b2_a_set_that_is_not_of_its_size_places_nothing_and_ends() -> None:
    world = World().ready(("n1", 4))
    for name, size in (("d1", 3), ("d2", 1), ("d3", 1)):
        world.order(name)
        carry(world, BindRequest(id=f"of-{size}", vmi_name="vm", set_size=size, requested_at=world.at), name)
    carry(world, BindRequest(id="of-1", vmi_name="vm", set_size=1, requested_at=world.at), "d2")
    assert world.device("d1").placement is None
    world.later(61)
    assert world.device("d1").phase == Phase.HELD


def test_b2_devices_of_one_request_that_ask_for_different_things_place_nothing() -> None:
    world = World().ready(("n1", 4))
    world.order("d1")
    world.order("d2")
    carry(world, BindRequest(id="r", vmi_name="vm", set_size=2, requested_at=world.at), "d1")
    carry(world, BindRequest(id="r", vmi_name="vm", set_size=2, requested_at=world.at + 1), "d2")
    assert world.device("d1").placement is None and world.device("d2").placement is None


def test_p1_templates_of_two_classes_of_one_name_are_counted_together() -> None:
    """A hold that fits nowhere forbids nothing (P3), but its units stay its own: 3 free, 2 held, so 1 can be had."""
    world = World().ready(("n1", 2), ("n2", 1))
    world.gpu_class("a10-pair", R)
    world.run()
    world.order("d1", count=2)
    world.change(NODE, "", "n1", allocatable={R: 1})
    world.node("n3", 1)
    world.run()
    assert world.state.free_units(R) == 1
    templates = [TemplateReference("a10", 1), TemplateReference("a10-pair", 1)]
    refusal = checks.check_start(world.state, NS, "vm", [], templates, Constraints())
    assert refusal is not None and refusal.reason is Reason.NO_FREE_UNITS and refusal.missing == 1


def test_j5_a_half_placed_set_leaves_its_node_before_it_goes_to_another() -> None:
    """The two writes of a move from node to node could land apart and find the new node given away (B2)."""
    world = World().ready(("n1", 2), ("n2", 3))
    for name in ("d1", "d2"):
        world.order(name)
    world.refuse_writes = True
    world.ask("vm", "d1", "d2")
    world.refuse_writes = False
    (first, second), world.held_writes = world.held_writes[:2], []
    world.land(*first)
    assert world.device("d1").placement is not None
    world.pod("raw", "n1", 1)
    world.tell(events.WriteConflicted(second[0], "modified"))
    world.decisions.clear()
    world.put(DEVICE, world.objects[(DEVICE.name, NS, "d2")], "read")
    world.run()
    about = [(d.action, d.node) for d in world.decisions if d.kind == DEVICE.name]
    assert about == [(Action.RELEASE, "n1"), (Action.BIND, "n2")]
    nodes = {found.node for name in ("d1", "d2") if (found := world.device(name).placement)}
    assert nodes == {"n2"}
