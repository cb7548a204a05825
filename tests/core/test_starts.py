"""Starts and ends: bind requests, releases, losses, returns (B2, B6, P2, P3, P4, P5)."""

from __future__ import annotations

from typing import Any

import msgspec

from journal import events
from reconciler.core.model.objects import (
    DEVICE,
    NODE,
    POD,
    VMI,
    Attachment,
    Constraints,
    Device,
    Function,
    Taint,
    Toleration,
    Vmi,
)
from reconciler.core.model.vocabulary import Outcome, Phase, Reason
from reconciler.core.state.decisions import Action
from reconciler.core.tenancy.tenants import raw_key
from tests.core.world import NS, R, World


def actions(world: World) -> list[str]:
    return [decision.action.value for decision in world.decisions]


def functions(*names: str, resource: str = R) -> list[Function]:
    return [Function(id=f"0000:{name}:00.0", stable_id=name, resource_name=resource) for name in names]


def template(world: World, name: str, count: int = 1, ns: str = NS) -> None:
    world.put(
        DEVICE,
        Device(
            name=name,
            namespace=ns,
            uid="",
            class_name="a10",
            count=count,
            generation=1,
            template=True,
            finalizers=("gpu.cozystack.io/units",),
        ),
    )
    world.run()


def test_p2_the_node_left_with_the_least_free_units_wins_then_the_name() -> None:
    world = World().ready(("n1", 4), ("n2", 2), ("n3", 2))
    world.order("d1", count=2)
    world.ask("vm", "d1")
    assert world.device("d1").placement is not None
    assert world.device("d1").placement.node == "n2"  # type: ignore[union-attr]


def test_p2_a_set_goes_to_one_node_or_nowhere() -> None:
    world = World().ready(("n1", 2), ("n2", 2))
    world.order("d1", count=1)
    world.order("d2", count=2)
    world.ask("vm", "d1", "d2")
    for name in ("d1", "d2"):
        answer = world.device(name).bind_answer
        assert answer is not None and answer.outcome == Outcome.REFUSED
        assert world.device(name).placement is None
    assert answer is not None and "3 nvidia.com/GA102" in answer.message


def test_b2_held_devices_and_a_template_are_placed_together() -> None:
    world = World().ready(("n1", 4), ("n2", 8))
    world.order("d1")
    world.order("d2")
    template(world, "t", count=2)
    world.ask("vm", "d1", "d2", "t")
    placed = {world.device(name).placement.node for name in ("d1", "d2", "t")}  # type: ignore[union-attr]
    assert placed == {"n1"}
    assert world.device("t").phase == Phase.BOUND


def test_b2_an_incomplete_set_waits() -> None:
    world = World().ready(("n1", 4))
    world.order("d1")
    world.order("d2")
    request = world.ask("vm", "d1")
    device = world.objects[(DEVICE.name, NS, "d1")]
    assert isinstance(device, Device) and device.bind_request is not None
    world.change(
        DEVICE, NS, "d1", bind_request=msgspec.structs.replace(device.bind_request, id=request + "x", set_size=2)
    )
    assert world.device("d1").bind_answer is None or world.device("d1").bind_answer.request_id != request + "x"  # type: ignore[union-attr]


def test_b2_a_template_over_budget_is_refused_and_nothing_is_placed() -> None:
    world = World().ready(("n1", 4))
    world.quotas("a", {R: 1})
    world.order("d1")
    template(world, "t")
    world.ask("vm", "d1", "t")
    answer = world.device("t").bind_answer
    assert answer is not None and answer.reason == Reason.BUDGET_EXCEEDED
    assert world.device("d1").placement is None


def test_b6_a_conflict_is_read_again_and_decided_anew() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    world.refuse_writes = True
    world.ask("vm", "d1")
    identity, decision, index = world.held_writes[-1]
    assert decision.action is Action.BIND
    world.refuse_writes = False
    device = world.objects[(DEVICE.name, NS, "d1")]
    world.objects[(DEVICE.name, NS, "d1")] = msgspec.structs.replace(
        device, resource_version="9999", attachment=None, bind_request=None, phase="Held"
    )
    world.version = 10_000
    world.land(identity, decision, index)
    world.run()
    assert world.device("d1").phase == Phase.HELD
    assert world.device("d1").placement is None
    assert world.state.free_units(R) == 0


def test_j4_a_pending_bind_counts_before_its_write_lands() -> None:
    world = World().ready(("n1", 1))
    template(world, "t1")
    template(world, "t2")
    world.refuse_writes = True
    world.ask("vm1", "t1")
    assert world.device("t1").placement is not None
    world.ask("vm2", "t2")
    answer = world.device("t2").bind_answer
    assert answer is not None and answer.outcome == Outcome.REFUSED


def test_c41_an_older_list_does_not_undo_our_own_write() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    old = world.objects[(DEVICE.name, NS, "d1")]
    world.start("vm", "d1")
    world.tell(world.observation(DEVICE, old, "list"))
    world.run()
    assert world.device("d1").placement is not None
    assert world.order("d2").phase == Phase.PENDING


def test_c26_cordoned_and_tainted_nodes_take_nothing_new() -> None:
    world = World().ready(("n1", 1), ("n2", 1), ("n3", 1))
    world.order("d1")
    world.order("d2")
    world.order("d3")
    assert world.start("vm1", "d1") == "n1"
    world.change(NODE, "", "n1", unschedulable=True)
    world.change(NODE, "", "n2", taints=(Taint("dedicated", "NoSchedule", "gpu"),))
    world.change(NODE, "", "n3", ready=False)
    world.ask("vm2", "d2")
    answer = world.device("d2").bind_answer
    assert answer is not None and answer.outcome == Outcome.REFUSED and "dedicated" in answer.message
    tolerant = Constraints(tolerations=(Toleration("dedicated", "Equal", "gpu", "NoSchedule"),))
    world.ask("vm3", "d3", constraints=tolerant)
    assert world.device("d3").placement is not None
    assert world.device("d3").placement.node == "n2"  # type: ignore[union-attr]
    assert world.device("d1").phase == Phase.BOUND


def test_p2_a_node_without_memory_for_the_guest_is_no_candidate() -> None:
    world = World().ready(("n1", 1), ("n2", 1))
    world.change(NODE, "", "n1", memory=1 << 30)
    world.order("d1")
    world.ask("vm", "d1", constraints=Constraints(memory=8 << 30))
    assert world.device("d1").placement.node == "n2"  # type: ignore[union-attr]


def test_p5_a_gone_vmi_returns_held_devices_and_deletes_templates() -> None:
    world = World().ready(("n1", 4))
    world.order("d1")
    template(world, "t")
    world.start("vm", "d1", "t", units=2)
    world.gone(VMI, NS, "vm")
    assert world.device("d1").phase == Phase.HELD
    assert world.device("d1").attachment is None and world.device("d1").placement is None
    assert world.state.device(NS, "t") is None
    assert actions(world)[-3:].count("Delete") == 1 and "Finalize" in actions(world)


def test_p5_a_finished_vmi_releases_too() -> None:
    for phase in ("Succeeded", "Failed"):
        world = World().ready(("n1", 4))
        world.order("d1")
        world.start("vm", "d1")
        world.change(VMI, NS, "vm", phase=phase)
        assert world.device("d1").phase == Phase.HELD


def test_p5_an_attachment_whose_vmi_never_appears_is_released_after_the_grace_time() -> None:
    world = World().ready(("n1", 4))
    world.order("d1")
    world.ask("vm", "d1")
    world.later(30)
    assert world.device("d1").phase == Phase.BOUND
    world.later(31)
    assert world.device("d1").phase == Phase.HELD


def test_p5_a_template_whose_webhook_died_is_deleted_after_the_grace_time() -> None:
    world = World().ready(("n1", 4))
    template(world, "t")
    world.later(61)
    assert Action.DELETE.value in actions(world)


def test_c06_a_held_device_survives_its_vm_s_restart_and_a_waiting_order_does_not_get_it() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    world.start("a", "d1")
    assert world.order("d2").phase == Phase.PENDING
    world.gone(VMI, NS, "a")
    world.gone(POD, NS, "virt-launcher-a")
    assert world.device("d2").phase == Phase.PENDING
    assert world.start("a", "d1") == "n1"


def test_c07_all_or_nothing_and_facts_not_condition_history() -> None:
    world = World().ready(("n1", 1))
    template(world, "t1")
    template(world, "t2")
    world.ask("vm", "t1", "t2")
    assert world.device("t1").placement is None and world.device("t2").placement is None
    world.order("d9")
    world.change(
        DEVICE,
        NS,
        "d9",
        phase="Bound",
        attachment=Attachment("absent", "r", world.at - 100_000),
        placement=_placement("n1"),
    )
    world.later(61)
    assert world.device("d9").phase == Phase.HELD


def _placement(node: str) -> Any:
    from reconciler.core.model.objects import Placement

    return Placement(node, 1, 0)


def test_c01_allocatable_drops_to_zero_while_the_agent_still_sees_the_cards() -> None:
    world = World().ready(("n1", 2))
    world.report("n1", *functions("f1", "f2"))
    world.order("d1")
    world.start("vm", "d1")
    world.change(NODE, "", "n1", allocatable={R: 0})
    world.later(120)
    assert world.device("d1").phase == Phase.BOUND
    assert world.state.units_on("n1", R).free == 0
    waiting = world.order("d2")
    assert waiting.phase == Phase.PENDING and "0 nvidia.com/GA102 allocatable" in waiting.conditions[0].message
    world.change(NODE, "", "n1", allocatable={R: 2})
    assert world.device("d2").phase == Phase.HELD


def test_c01_b_a_blip_above_the_healthy_functions_gives_nothing() -> None:
    world = World().ready(("n1", 1))
    unhealthy = Function(id="0000:f2:00.0", stable_id="f2", resource_name=R, healthy=False)
    world.report("n1", *functions("f1"), unhealthy)
    world.order("d1")
    world.start("vm", "d1")
    world.order("d2")
    for allocatable in (1, 2, 1):
        world.change(NODE, "", "n1", allocatable={R: allocatable})
        assert world.device("d2").phase == Phase.PENDING


def test_c03_which_pods_count() -> None:
    world = World().ready(("n1", 4))
    world.pod("p1", "n1", 1, phase="Failed")
    world.pod("p2", "n1", 1, phase="Succeeded")
    world.pod("p3", "n1", 1, phase="Pending")
    world.pod("p4", "n1", 1, deleting=5)
    world.pod("p5", "", 1, phase="Pending")
    assert world.state.units_on("n1", R).requests == 2
    assert world.state.units_on("n1", R).free == 2


def test_c05_a_silent_node_keeps_its_devices_and_takes_nothing_new() -> None:
    world = World().ready(("n1", 2))
    world.report("n1", *functions("f1", "f2"))
    world.order("d1")
    world.start("vm", "d1")
    world.change(POD, NS, "virt-launcher-vm", deleting=world.at)
    world.change(NODE, "", "n1", ready=False)
    world.tell(events.ReportSilenced("n1"))
    world.later(3600)
    assert world.device("d1").phase == Phase.BOUND
    assert world.order("d2").phase == Phase.PENDING
    world.change(NODE, "", "n1", ready=True)
    assert world.device("d1").placement.node == "n1"  # type: ignore[union-attr]


def test_r8_c09_a_migration_target_counts_on_its_node_and_against_the_budget() -> None:
    """C09, R8: one device covers one of two launchers. While both run, the second is raw use of the tenant as well."""
    world = World().ready(("n1", 1), ("n2", 1))
    world.quotas("a", {R: "3"})
    world.order("d1")
    assert world.start("vm", "d1") == "n1"
    world.launcher("vm", "n2", 1, name="target")
    assert world.state.charges.charge(NS, raw_key(R)) == 2
    assert world.state.units_on("n2", R).free == 0
    assert world.state.units_on("n1", R).free == 0
    world.change(POD, NS, "virt-launcher-vm", phase="Succeeded")
    assert world.state.charges.charge(NS, raw_key(R)) == 1


def test_r8_forged_pods_on_a_vmis_list_leave_no_budget_for_another_order() -> None:
    """R8: a budget of 3, a running VM of one unit, and three forged pods of one unit that its VMI lists. Each is
    charged, so the next order is refused; with their end it is accepted."""
    world = World().ready(("n1", 9))
    world.quotas("a", {R: "3"})
    world.order("d1")
    world.start("vm", "d1")
    for number in range(3):
        world.launcher("vm", "n1", 1, name=f"forged-{number}")
    assert world.state.charges.charge(NS, raw_key(R)) == 4
    assert world.state.units_on("n1", R).raw == 3
    assert world.order("d2").phase == Phase.PENDING
    for number in range(2):
        world.gone(POD, NS, f"forged-{number}")
    assert world.state.charges.charge(NS, raw_key(R)) == 3 and world.device("d2").phase == Phase.HELD


def test_c10_raw_use_is_what_the_pod_asks_beyond_its_devices() -> None:
    world = World().ready(("n1", 4))
    world.pod("raw", "n1", 1)
    assert world.state.charges.charge(NS, raw_key(R)) == 1
    world.order("d1")
    world.start("vm", "d1", units=2)
    assert world.state.charges.charge(NS, raw_key(R)) == 3
    assert world.state.units_on("n1", R).raw == 2


def test_c27_a_ghost_card_loses_its_device_and_stops_the_node_until_number_and_report_agree() -> None:
    world = World().ready(("n1", 2))
    world.report("n1", *functions("f1", "f2"))
    world.order("d1")
    world.order("d2")
    world.start("vm1", "d1")
    world.later(1)
    world.start("vm2", "d2")
    world.report("n1", *functions("f1"))
    world.later(61)
    assert world.device("d2").phase == Phase.LOST
    assert world.device("d1").phase == Phase.BOUND
    world.gone(VMI, NS, "vm2")
    world.gone(POD, NS, "virt-launcher-vm2")
    world.gone(VMI, NS, "vm1")
    world.gone(POD, NS, "virt-launcher-vm1")
    assert world.state.units_on("n1", R).free == 0
    world.change(NODE, "", "n1", allocatable={R: 1})
    assert world.state.units_on("n1", R).free == 1


def test_c27_a_card_that_returns_restores_its_device_without_a_new_grant() -> None:
    world = World().ready(("n1", 2))
    world.report("n1", *functions("f1", "f2"))
    for name in ("d1", "d2"):
        world.order(name)
        world.start(f"vm-{name}", name)
        world.later(1)
    before = world.device("d2").placement
    world.report("n1", *functions("f1"))
    world.later(61)
    assert world.device("d2").phase == Phase.LOST
    world.report("n1", *functions("f1", "f2"))
    assert world.device("d2").phase == Phase.BOUND
    assert world.device("d2").placement == before


def test_c28_a_card_under_a_new_address_is_the_same_unit() -> None:
    world = World().ready(("n1", 1))
    world.report("n1", Function(id="0000:3b:00.0", stable_id="u1", resource_name=R))
    world.order("d1")
    world.start("vm", "d1")
    other = Function(id="0000:3b:00.0", stable_id="u9", resource_name="nvidia.com/OTHER")
    world.report("n1", Function(id="0000:5e:00.0", stable_id="u1", resource_name=R), other)
    world.later(120)
    assert world.device("d1").phase == Phase.BOUND
    world.report("n1", other)
    world.later(120)
    assert world.device("d1").phase == Phase.LOST


def test_c30_a_lost_or_held_device_without_vm_can_always_be_deleted() -> None:
    world = World().ready(("n1", 1))
    world.report("n1", *functions("f1"))
    world.order("d1")
    world.start("vm", "d1")
    world.report("n1", Function(id="0000:f1:00.0", stable_id="f1", resource_name=R, healthy=False, message="driver"))
    world.change(NODE, "", "n1", allocatable={R: 0})
    world.later(61)
    assert world.device("d1").phase == Phase.LOST
    world.change(DEVICE, NS, "d1", deleting=world.at)
    assert world.state.device(NS, "d1") is None


def test_c31_virtual_functions_that_vanish_on_reboot_lose_and_return() -> None:
    world = World().ready(("n1", 4))
    card = Function(id="0000:01:00.0", stable_id="p0", resource_name="")
    vfs = [
        Function(
            id=f"0000:01:00.{i + 4}",
            stable_id=f"v{i}",
            parent="0000:01:00.0",
            kind="VirtualFunction",
            resource_name=R,
        )
        for i in range(4)
    ]
    world.report("n1", card, *vfs)
    world.order("d1")
    world.start("vm", "d1")
    world.report("n1", card)
    world.change(NODE, "", "n1", allocatable={R: 0})
    world.later(30)
    assert world.device("d1").phase == Phase.BOUND
    world.later(31)
    assert world.device("d1").phase == Phase.LOST
    typeless = [msgspec.structs.replace(vf, resource_name="") for vf in vfs]
    world.report("n1", card, *typeless)
    assert world.device("d1").phase == Phase.LOST
    world.report("n1", card, *vfs)
    world.change(NODE, "", "n1", allocatable={R: 4})
    assert world.device("d1").phase == Phase.BOUND


def test_p4_without_a_live_launcher_first_then_the_youngest() -> None:
    world = World().ready(("n1", 3))
    for name in ("old", "young"):
        world.order(name)
        world.start(f"vm-{name}", name)
        world.later(1)
    world.order("idle")
    world.ask("vm-idle", "idle")
    world.vmi("vm-idle")
    world.change(NODE, "", "n1", allocatable={R: 2})
    world.later(61)
    assert [world.device(n).phase for n in ("old", "young", "idle")] == ["Bound", "Bound", "Lost"]
    world.change(NODE, "", "n1", allocatable={R: 1})
    world.later(61)
    assert [world.device(n).phase for n in ("old", "young", "idle")] == ["Bound", "Lost", "Lost"]


def test_p4_a_deleted_node_loses_its_devices_after_the_grace_time() -> None:
    world = World().ready(("n1", 1), ("n2", 1))
    world.order("d1")
    world.start("vm", "d1")
    world.gone(NODE, "", "n1")
    assert world.device("d1").phase == Phase.BOUND
    world.later(61)
    assert world.device("d1").phase == Phase.LOST


def test_p4_a_lost_device_keeps_its_charge_and_gives_its_units() -> None:
    world = World().ready(("n1", 1))
    world.quotas("a", {R: 1})
    world.order("d1")
    world.start("vm", "d1")
    world.change(NODE, "", "n1", allocatable={R: 0})
    world.later(61)
    assert world.device("d1").phase == Phase.LOST
    assert world.order("d2").conditions[0].reason == Reason.BUDGET_EXCEEDED


def test_o2_a_deleted_device_waits_for_its_vmi_then_goes() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    world.start("vm", "d1")
    world.change(DEVICE, NS, "d1", deleting=world.at)
    assert world.device("d1").phase == Phase.RELEASING
    world.gone(VMI, NS, "vm")
    assert world.state.device(NS, "d1") is None


def test_o2_a_releasing_device_reports_its_current_generation() -> None:
    """A deletion raises the generation; a status of the generation before reads as not yet reconciled."""
    world = World().ready(("n1", 1))
    world.order("d1")
    world.start("vm", "d1")
    world.change(DEVICE, NS, "d1", deleting=world.at, generation=2)
    device = world.device("d1")
    assert (device.phase, device.observed_generation) == (Phase.RELEASING, 2)
    assert {condition.observed_generation for condition in device.conditions} == {2}
    since = device.phase_since
    world.later(5)
    decided = len(world.decisions)
    world.change(DEVICE, NS, "d1", generation=3)
    device = world.device("d1")
    assert (device.phase, device.phase_since, device.observed_generation) == (Phase.RELEASING, since, 3)
    assert [decision.action for decision in world.decisions[decided:]] == [Action.AWAIT]


def test_o2_a_device_that_others_keep_reports_its_current_generation_once_its_units_are_released() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    other = (*world.device("d1").finalizers, "example.org/audit")
    world.change(DEVICE, NS, "d1", finalizers=other)
    world.change(DEVICE, NS, "d1", deleting=world.at, generation=2)
    device = world.device("d1")
    assert device.finalizers == ("example.org/audit",)
    assert (device.phase, device.placement, device.observed_generation) == (Phase.RELEASING, None, 2)


def test_p5_a_device_deleted_while_its_vmi_never_appears_goes_after_the_grace_time() -> None:
    """Found by simulation seed 67: a new journal knew nothing of a VMI that had come and gone."""
    world = World().ready(("n1", 1))
    world.order("d1")
    world.ask("vm", "d1")
    world.change(DEVICE, NS, "d1", deleting=world.at)
    assert world.device("d1").phase == Phase.RELEASING
    world.later(61)
    assert world.state.device(NS, "d1") is None


def test_p5_a_deletion_seen_before_its_answer_goes_on() -> None:
    """The watch told of the deletion before the API server answered the delete: nothing is left to wait for."""
    world = World().ready(("n1", 1))
    template(world, "t")
    world.start("vm", "t")
    world.refuse_writes = True
    world.gone(VMI, NS, "vm")
    identity, decision, _ = world.held_writes[-1]
    assert decision.action is Action.DELETE
    world.refuse_writes = False
    world.change(DEVICE, NS, "t", deleting=world.at)
    world.tell(events.WriteSucceeded(identity, ""))
    world.run()
    assert world.state.device(NS, "t") is None


def test_r10_a_new_vmi_under_an_old_name_inherits_nothing() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    world.start("vm", "d1")
    world.put(VMI, Vmi(name="vm", namespace=NS, uid="another", phase="Running"))
    world.run()
    assert world.device("d1").phase == Phase.HELD


def test_r10_a_late_delete_of_the_old_object_changes_nothing() -> None:
    world = World().ready(("n1", 1))
    world.order("d1")
    world.tell(events.ObjectDeleted(DEVICE.name, NS, "d1", "some-older-uid"))
    assert world.device("d1").phase == Phase.HELD


def test_r9_nothing_is_decided_before_every_kind_was_listed() -> None:
    world = World()
    world.node("n1", 1)
    world.gpu_class()
    world.kubevirt()
    world.tell(events.LeadershipAcquired("binder-0", 1))
    assert world.order("d1").phase == ""
    world.sync()
    assert world.device("d1").phase == Phase.HELD


def test_j5_a_new_leader_touches_what_an_older_one_may_have_granted() -> None:
    world = World().ready(("n1", 1))
    template(world, "t1")
    world.refuse_writes = True
    world.ask("vm1", "t1")
    (stale_bind, decision, index) = world.held_writes[-1]
    world.refuse_writes = False
    world.tell(events.LeadershipLost("binder-0", "test"))
    world.tell(events.WriteConflicted(stale_bind, "leadership ended"))
    device = world.objects[(DEVICE.name, NS, "t1")]
    world.tell(world.observation(DEVICE, device, "read"))
    world.tell(events.LeadershipAcquired("binder-1", 2))
    world.run()
    assert Action.FENCE.value in actions(world)
    current = world.objects[(DEVICE.name, NS, "t1")]
    assert current.resource_version != decision.writes[index].resource_version
    assert world.device("t1").epoch == "2"


def test_j5_a_fence_that_conflicts_holds_nothing_up() -> None:
    """Found by simulation seed 56: the version that won is new enough, and everything else goes on."""
    world = World().ready(("n1", 2))
    template(world, "t1")
    world.tell(events.LeadershipLost("binder-0", "test"))
    world.refuse_writes = True
    world.tell(events.LeadershipAcquired("binder-1", 2))
    device = world.objects[(DEVICE.name, NS, "t1")]
    assert isinstance(device, Device)
    world.put(DEVICE, msgspec.structs.replace(device, attachment=Attachment("vm", "r", world.at)))
    world.run()
    world.refuse_writes = False
    for identity, decision, index in world.held_writes:
        world.land(identity, decision, index)
    assert world.order("d1").phase == Phase.HELD


def test_o3_granting_one_vgpu_type_lowers_its_sibling_at_once_and_only_once() -> None:
    from reconciler.core.model.objects import Profile

    world = World()
    small, large = "nvidia.com/A-4", "nvidia.com/A-8"
    world.node("n1", allocatable={small: 4, large: 2})
    world.gpu_class("small", resource=small)
    world.gpu_class("large", resource=large)
    world.kubevirt(small, large)
    world.tenant("a")
    world.sync()

    def parent(used_small: int, small_left: int, large_left: int) -> Function:
        profiles = (Profile(small, used_small, small_left), Profile(large, 0, large_left))
        return Function(id="0000:01:00.0", stable_id="p", kind="MdevParent", profiles=profiles)

    world.report("n1", parent(0, 4, 2))
    assert world.state.units_on("n1", large).free == 2
    world.order("d1", class_name="small")
    world.ask("vm", "d1")
    assert world.state.units_on("n1", large).free == 1
    assert world.state.units_on("n1", small).free == 3
    world.vmi("vm")
    world.launcher("vm", "n1", 1, resource=small)
    world.report("n1", parent(1, 3, 1))
    assert world.state.units_on("n1", large).free == 1
    assert world.state.units_on("n1", small).free == 3
