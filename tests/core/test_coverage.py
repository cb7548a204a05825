"""Launchers, coverage and raw usage (R6 to R9)."""

from __future__ import annotations

import msgspec
import pytest

from reconciler.core.capacity import coverage
from reconciler.core.model.objects import Attachment, Device, Placement, Pod, Vmi
from reconciler.core.model.vocabulary import Phase

R = "gpu.example/a"
S = "gpu.example/b"
NAMES = {R, S}


def launcher(uid: str = "p1", node: str = "n1", requests: dict[str, int] | None = None, phase: str = "Running") -> Pod:
    return Pod(
        name=f"virt-launcher-{uid}",
        namespace="tenant-a",
        uid=uid,
        node=node,
        phase=phase,
        requests={R: 1} if requests is None else requests,
        launcher=True,
        vmi_name="vm",
        vmi_uid="v1",
    )


def vmi(*pods: Pod, name: str = "vm", namespace: str = "tenant-a") -> Vmi:
    return Vmi(name=name, namespace=namespace, uid="v1", active_pods={pod.uid: pod.node for pod in pods})


def device(
    name: str = "d1", node: str = "n1", phase: Phase = Phase.BOUND, count: int = 1, of: str = "vm"
) -> tuple[Device, str]:
    return (
        Device(
            name=name,
            namespace="tenant-a",
            uid=name,
            class_name="a",
            count=count,
            phase=phase,
            attachment=Attachment(of) if of else None,
            placement=Placement(node, count) if node else None,
        ),
        R,
    )


def test_only_the_vmi_says_who_its_launcher_is() -> None:
    """R7, C25: owner reference and labels come from whoever made the pod."""
    pod = launcher()
    assert coverage.is_launcher(pod, vmi(pod))
    assert not coverage.is_launcher(pod, vmi(launcher("p2")))
    assert not coverage.is_launcher(pod, vmi(pod, namespace="tenant-b"))
    assert not coverage.is_launcher(pod, None)


def test_a_pod_that_claims_to_be_a_launcher_is_raw() -> None:
    """R7, R8: a forged launcher hides behind nobody's devices."""
    assert coverage.raw_for_budget(launcher("forged"), vmi(launcher()), [device()], NAMES) == {R: 1}
    assert coverage.raw_for_capacity(launcher("forged"), vmi(launcher()), [device()], NAMES) == {R: 1}


@pytest.mark.parametrize(
    ("pod", "raw"),
    [
        (launcher(phase="Failed"), {}),
        (launcher(phase="Succeeded"), {}),
        (launcher(phase="Pending"), {R: 1}),
        (msgspec.structs.replace(launcher(), deleting=1), {R: 1}),
        (launcher(node="", phase="Pending"), {}),
    ],
    ids=["p1 failed", "p2 succeeded", "p3 cannot pull its image", "p4 terminating", "p5 only nominated"],
)
def test_which_pods_take_units_of_a_node_c03(pod: Pod, raw: dict[str, int]) -> None:
    """C03, C05, R6: a deletionTimestamp alone frees nothing."""
    assert coverage.raw_for_capacity(pod, None, [], NAMES) == raw


def test_a_migration_is_no_second_use_of_the_budget_c09() -> None:
    """C09: two launchers, one device: raw stays 0, node n1 counts the device, node n2 a raw unit."""
    source, target = launcher("p1", "n1"), launcher("p2", "n2")
    machine = vmi(source, target)
    for pod in (source, target):
        assert coverage.raw_for_budget(pod, machine, [device()], NAMES) == {}
    assert coverage.raw_for_capacity(source, machine, [device()], NAMES) == {}
    assert coverage.raw_for_capacity(target, machine, [device()], NAMES) == {R: 1}


def test_gpus_in_the_resources_of_a_vm_without_devices_c10() -> None:
    """C10 (a): raw 1, charged to node and tenant."""
    pod = launcher()
    assert coverage.raw_for_budget(pod, vmi(pod), [], NAMES) == {R: 1}
    assert coverage.raw_for_capacity(pod, vmi(pod), [], NAMES) == {R: 1}


def test_gpus_in_the_resources_on_top_of_devices_c10() -> None:
    """C10 (b): total 2, covered 1, raw 1."""
    pod = launcher(requests={R: 2})
    assert coverage.raw_for_budget(pod, vmi(pod), [device()], NAMES) == {R: 1}
    assert coverage.raw_for_capacity(pod, vmi(pod), [device()], NAMES) == {R: 1}


def test_raw_is_never_negative_nor_crosses_names_c10() -> None:
    """C10: three covered units of one name pay for no unit of another."""
    pod = launcher(requests={R: 1, S: 1})
    assert coverage.raw_for_budget(pod, vmi(pod), [device(count=3)], NAMES) == {S: 1}
    assert coverage.raw_for_capacity(pod, vmi(pod), [device(count=3)], NAMES) == {S: 1}


def test_other_resources_are_no_gpus() -> None:
    """R6: only effective names."""
    pod = launcher(requests={R: 1, "intel.com/vf": 4})
    assert coverage.raw_for_budget(pod, None, [], NAMES) == {R: 1}


def test_a_lost_device_covers_the_budget_and_not_the_node() -> None:
    """R8, P4: it is charged as itself; while the launcher lives its request counts on the node."""
    pod = launcher()
    lost = [device(phase=Phase.LOST)]
    assert coverage.raw_for_budget(pod, vmi(pod), lost, NAMES) == {}
    assert coverage.raw_for_capacity(pod, vmi(pod), lost, NAMES) == {R: 1}


def test_a_launcher_away_from_its_placement_is_raw_there() -> None:
    """R8."""
    pod = launcher(node="n2")
    assert coverage.raw_for_budget(pod, vmi(pod), [device(node="n1")], NAMES) == {}
    assert coverage.raw_for_capacity(pod, vmi(pod), [device(node="n1")], NAMES) == {R: 1}


def test_devices_of_another_vm_or_of_none_cover_nothing() -> None:
    """R8: and an order that was never accepted is charged nowhere, so it pays for nothing."""
    pod = launcher()
    for other in (device(of="vm2"), device(of=""), device(phase=Phase.PENDING)):
        assert coverage.raw_for_budget(pod, vmi(pod), [other], NAMES) == {R: 1}
        assert coverage.raw_for_capacity(pod, vmi(pod), [other], NAMES) == {R: 1}


def test_a_device_of_an_unknown_class_covers_nothing() -> None:
    """R8: without its class it has no resource name."""
    pod = launcher()
    assert coverage.raw_for_budget(pod, vmi(pod), [(device()[0], "")], NAMES) == {R: 1}


def test_placed_units_wait_for_their_launcher() -> None:
    """R9: they are promised until the launcher is on the node and requests them."""
    devices = [device("d1", count=2), device("d2"), device("d3", node="n2"), device("d4", phase=Phase.LOST)]
    pending = launcher(node="")
    assert coverage.absent_launcher_units(None, "n1", [], devices) == {R: 3}
    assert coverage.absent_launcher_units(vmi(pending), "n1", [pending], devices) == {R: 3}
    here = launcher(requests={R: 2})
    assert coverage.absent_launcher_units(vmi(here), "n1", [here], devices) == {R: 1}
    more = launcher(requests={R: 9})
    assert coverage.absent_launcher_units(vmi(more), "n1", [more], devices) == {}
    assert coverage.absent_launcher_units(vmi(more), "n2", [more], devices) == {R: 1}


@pytest.mark.parametrize("pod", [launcher(phase="Failed"), launcher("forged")])
def test_a_dead_or_forged_launcher_is_absent(pod: Pod) -> None:
    """R7, R9."""
    assert coverage.absent_launcher_units(vmi(launcher()), "n1", [pod], [device()]) == ({R: 1})
