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


def for_budget(pod: Pod, machine: Vmi | None, devices: list[tuple[Device, str]]) -> dict[str, int]:
    """Raw use of a pod that is alone."""
    return coverage.raw_for_budget([pod], machine, devices, NAMES)[pod.uid]


def for_capacity(pod: Pod, machine: Vmi | None, devices: list[tuple[Device, str]]) -> dict[str, int]:
    return coverage.raw_for_capacity([pod], machine, devices, NAMES)[pod.uid]


def test_only_the_vmi_says_who_its_launcher_is() -> None:
    """R7, C25: owner reference and labels come from whoever made the pod."""
    pod = launcher()
    assert coverage.is_launcher(pod, vmi(pod))
    assert not coverage.is_launcher(pod, vmi(launcher("p2")))
    assert not coverage.is_launcher(pod, vmi(pod, namespace="tenant-b"))
    assert not coverage.is_launcher(pod, None)


def test_a_pod_that_claims_to_be_a_launcher_is_raw() -> None:
    """R7, R8: a forged launcher hides behind nobody's devices."""
    assert for_budget(launcher("forged"), vmi(launcher()), [device()]) == {R: 1}
    assert for_capacity(launcher("forged"), vmi(launcher()), [device()]) == {R: 1}


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
    assert for_capacity(pod, None, []) == raw


def test_r8_a_migration_target_is_raw_until_its_source_ends_c09() -> None:
    """C09, R8: two launchers, one device: the one on the placement's node is covered, the other is raw use of the
    budget and of node n2. Once the source has ended, the device covers the target's budget."""
    source, target = launcher("p1", "n1"), launcher("p2", "n2")
    machine = vmi(source, target)
    assert coverage.raw_for_budget([target, source], machine, [device()], NAMES) == {"p1": {}, "p2": {R: 1}}
    assert coverage.raw_for_capacity([target, source], machine, [device()], NAMES) == {"p1": {}, "p2": {R: 1}}
    ended = msgspec.structs.replace(source, phase="Succeeded")
    assert coverage.raw_for_budget([ended, target], machine, [device()], NAMES) == {"p1": {}, "p2": {}}
    assert coverage.raw_for_capacity([ended, target], machine, [device()], NAMES) == {"p1": {}, "p2": {R: 1}}


def test_r8_listed_pods_share_the_units_once_by_node_age_and_uid() -> None:
    """R8: the pod on the placement's node comes first, then the oldest, then by uid; partly covered counts the rest."""
    oldest, there = launcher("p9", "n2"), msgspec.structs.replace(launcher("p8", "n1"), created=9)
    second, third = (msgspec.structs.replace(launcher(uid, "n2", {R: 2}), created=5) for uid in ("p1", "p2"))
    pods = [third, second, oldest, there]
    raw = coverage.raw_for_budget(pods, vmi(*pods), [device(count=3)], NAMES)
    assert raw == {"p8": {}, "p9": {}, "p1": {R: 1}, "p2": {R: 2}}


def test_r8_forged_pods_on_the_list_are_raw_on_every_node() -> None:
    """R8: whoever got three pods on a VMI's list has them counted, beside the launcher and on other nodes."""
    own = launcher()
    forged = [
        msgspec.structs.replace(launcher(f"f{n}", node), created=n) for n, node in enumerate(("n1", "n1", "n2"), 1)
    ]
    for pods in ([own, *forged], [*forged, own]):
        machine = vmi(*pods)
        for raw in (
            coverage.raw_for_budget(pods, machine, [device()], NAMES),
            coverage.raw_for_capacity(pods, machine, [device()], NAMES),
        ):
            assert raw == {"p1": {}, "f1": {R: 1}, "f2": {R: 1}, "f3": {R: 1}}


def test_r8_a_pod_that_is_not_listed_takes_nobodys_turn() -> None:
    """R7, R8: nor does one of another VMI, or one that has ended."""
    own = msgspec.structs.replace(launcher(), created=5)
    others = [
        launcher("f1"),
        msgspec.structs.replace(launcher("f2"), vmi_name="vm2"),
        launcher("f3", phase="Failed"),
    ]
    machine = vmi(own, *others[1:])
    raw = coverage.raw_for_budget([*others, own], machine, [device()], NAMES)
    assert raw == {"p1": {}, "f1": {R: 1}, "f2": {R: 1}, "f3": {}}


def test_gpus_in_the_resources_of_a_vm_without_devices_c10() -> None:
    """C10 (a): raw 1, charged to node and tenant."""
    pod = launcher()
    assert for_budget(pod, vmi(pod), []) == {R: 1}
    assert for_capacity(pod, vmi(pod), []) == {R: 1}


def test_gpus_in_the_resources_on_top_of_devices_c10() -> None:
    """C10 (b): total 2, covered 1, raw 1."""
    pod = launcher(requests={R: 2})
    assert for_budget(pod, vmi(pod), [device()]) == {R: 1}
    assert for_capacity(pod, vmi(pod), [device()]) == {R: 1}


def test_raw_is_never_negative_nor_crosses_names_c10() -> None:
    """C10: three covered units of one name pay for no unit of another."""
    pod = launcher(requests={R: 1, S: 1})
    assert for_budget(pod, vmi(pod), [device(count=3)]) == {S: 1}
    assert for_capacity(pod, vmi(pod), [device(count=3)]) == {S: 1}


def test_other_resources_are_no_gpus() -> None:
    """R6: only effective names."""
    pod = launcher(requests={R: 1, "intel.com/vf": 4})
    assert for_budget(pod, None, []) == {R: 1}


def test_a_lost_device_covers_the_budget_and_not_the_node() -> None:
    """R8, P4: it is charged as itself; while the launcher lives its request counts on the node."""
    pod = launcher()
    lost = [device(phase=Phase.LOST)]
    assert for_budget(pod, vmi(pod), lost) == {}
    assert for_capacity(pod, vmi(pod), lost) == {R: 1}


def test_a_launcher_away_from_its_placement_is_raw_there() -> None:
    """R8."""
    pod = launcher(node="n2")
    assert for_budget(pod, vmi(pod), [device(node="n1")]) == {}
    assert for_capacity(pod, vmi(pod), [device(node="n1")]) == {R: 1}


def test_devices_of_another_vm_or_of_none_cover_nothing() -> None:
    """R8: and an order that was never accepted is charged nowhere, so it pays for nothing."""
    pod = launcher()
    for other in (device(of="vm2"), device(of=""), device(phase=Phase.PENDING)):
        assert for_budget(pod, vmi(pod), [other]) == {R: 1}
        assert for_capacity(pod, vmi(pod), [other]) == {R: 1}


def test_a_device_of_an_unknown_class_covers_nothing() -> None:
    """R8: without its class it has no resource name."""
    pod = launcher()
    assert for_budget(pod, vmi(pod), [(device()[0], "")]) == {R: 1}


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
