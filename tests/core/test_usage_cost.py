"""The meter's work and memory (U3): it evaluates only what an entry touched and keeps nothing of closed intervals."""

from __future__ import annotations

import pytest

from reconciler.core.metering import device_usage, pod_usage
from reconciler.core.model.objects import DEVICE, NODE, POD, VMI, Device
from reconciler.core.model.vocabulary import DEVICE_FINALIZER
from tests.core.world import NS, World


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the devices and pods whose usage is evaluated."""
    seen: list[str] = []
    steps, raw_units = device_usage.steps, pod_usage.raw_units

    def counted_steps(before, span, now, *rest):  # type: ignore[no-untyped-def]
        seen.append(now.name)
        return steps(before, span, now, *rest)

    def counted_units(marks, *rest):  # type: ignore[no-untyped-def]
        seen.extend(mark.seen.name for mark in marks)
        return raw_units(marks, *rest)

    monkeypatch.setattr(device_usage, "steps", counted_steps)
    monkeypatch.setattr(pod_usage, "raw_units", counted_units)
    return seen


def test_u3_an_entry_costs_what_it_touches(looks: list[str]) -> None:
    """U3: among many subjects, one change looks at one, and a node at none."""
    world = World().ready(("n1", 200), ("n2", 200))
    for number in range(60):
        world.order(f"d{number}")
        world.pod(f"p{number}", "n1", 1)
    world.start("vm", "d7")
    looks.clear()
    world.change(NODE, "", "n1", memory=1 << 40)
    world.later(5)
    assert looks == []
    world.change(POD, NS, "p3", deleting=world.at)
    assert set(looks) == {"p3"}
    looks.clear()
    world.change(DEVICE, NS, "d3", deleting=world.at)
    assert set(looks) == {"d3"}
    looks.clear()
    world.change(DEVICE, NS, "d7", deleting=world.at)
    assert set(looks) == {"d7"}, "its launcher stays covered while it is bound"


def test_u3_nothing_is_kept_of_what_is_closed() -> None:
    """U3, J6: after many orders and pods came and went, the meter's memory is what it was."""
    world = World().ready(("n1", 8))
    for number in range(120):
        world.order("d")
        world.start(f"vm{number}", "d")
        world.pod("raw", "n1", 1)
        world.later(90)
        world.change(POD, NS, "raw", phase="Succeeded", finished=world.at)
        for pod in ("raw", f"virt-launcher-vm{number}"):
            world.gone(POD, NS, pod)
        world.gone(VMI, NS, f"vm{number}")
        world.change(DEVICE, NS, "d", deleting=world.at)
        kept = world.state.meter.export()
        assert (kept.devices, kept.pods, kept.parked) == ([], [], [])
    assert world.state.touched == {} and world.state.landed == []


def test_u1_a_device_of_an_old_build_without_phase_since_is_told_with_bounds() -> None:
    """U1, U2: the Held condition tells when it was accepted; without it the creation bounds the start."""
    world = World().ready(("n1", 8))
    world.put(DEVICE, _old("told", conditions=()))
    world.run()
    (span,) = [one for one in world.state.meter.open(world.state, world.at + 1) if one.what.name == "told"]
    assert (span.start.at, span.start.earliest) == (world.at, 5_000)


def _old(name: str, **fields: object) -> Device:
    return Device(
        name=name,
        namespace=NS,
        uid=f"uid-{name}",
        class_name="a10",
        phase="Held",
        created=5_000,
        finalizers=(DEVICE_FINALIZER,),
        **fields,  # type: ignore[arg-type]
    )
