"""Usage keeps the tenants it was used under when releases come and go (R2, U1, U2)."""

from __future__ import annotations

import pytest

from journal import events
from reconciler.core.metering.usage_records import Record
from reconciler.core.model.objects import DEVICE, RELEASE, Release
from tests.core.test_usage_twin import records
from tests.core.world import World

NAMESPACE = "tenant-a-b"
BELOW_A = (NAMESPACE, "tenant-a", "tenant-root")
BELOW_ROOT = (NAMESPACE, "tenant-root")


def claim(world: World, name: str, namespace: str) -> Release:
    found = world.put(RELEASE, Release(name=name, namespace=namespace, uid="", created=world.at))
    assert isinstance(found, Release)
    return found


def shared_namespace() -> World:
    """A held device in a namespace that two releases claim; the older one puts it below tenant-a."""
    world = World().ready(("n1", 4))
    claim(world, "tenant-a", "tenant-root")
    claim(world, "tenant-b", "tenant-a")
    world.later(60)
    claim(world, NAMESPACE, "tenant-root")
    world.later(60)
    world.order("d1", ns=NAMESPACE)
    world.later(100)
    return world


def held(world: World) -> list[Record]:
    return [one for one in records(world.entries, world.at) if one.kind == DEVICE.name]


def test_u1_of_two_releases_that_claim_a_namespace_the_one_that_goes_takes_no_past_usage_along() -> None:
    """R2, U1: until the older release is gone its tenants are billed, from then on those of the other."""
    world = shared_namespace()
    (before,) = held(world)
    assert before.tenants == BELOW_A
    went = world.at
    world.gone(RELEASE, "tenant-a", "tenant-b")
    world.later(50)
    assert [(one.tenants, one.start, one.end, one.exact) for one in held(world)] == [
        (BELOW_A, before.start, went, True),
        (BELOW_ROOT, went, world.at, True),
    ]


def test_u2_a_release_whose_deletion_nobody_observed_splits_usage_inexactly() -> None:
    """U2: bounds on the split, no unit-second lost or doubled."""
    world = shared_namespace()
    (before,) = held(world)
    gone = world.objects.pop((RELEASE.name, "tenant-a", "tenant-b"))
    world.tell(events.ObjectDeleted(RELEASE.name, "tenant-a", "tenant-b", gone.uid, seen=False, last_seen=world.at))
    went = world.at
    world.later(50)
    first, second = held(world)
    assert (first.tenants, first.end, first.exact) == (BELOW_A, went, False)
    assert (second.tenants, second.start, second.end) == (BELOW_ROOT, went, world.at)
    assert first.start == before.start


@pytest.mark.parametrize("older", [True, False])
def test_r2_a_release_that_appears_takes_the_namespace_only_if_it_is_older(older: bool) -> None:
    """R2, U1: from its creation on, which precedes its observation."""
    world = World().ready(("n1", 4))
    world.later(60)
    if not older:
        claim(world, NAMESPACE, "tenant-root")
    world.order("d1", ns=NAMESPACE, phase="Held", phase_since=world.at)
    world.later(100)
    (before,) = held(world)
    created = world.at - 10_000
    world.put(RELEASE, Release(name="tenant-a", namespace="tenant-root", uid="", created=created))
    world.put(RELEASE, Release(name="tenant-b", namespace="tenant-a", uid="", created=created))
    found = [(one.tenants, one.start) for one in held(world)]
    if older:
        assert found == [(before.tenants, before.start), (BELOW_A, created)]
    else:
        assert found == [(BELOW_ROOT, before.start)]
