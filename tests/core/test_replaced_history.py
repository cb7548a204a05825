"""The API server's data is replaced by an older copy of it: what follows for decisions and usage (J5, U2)."""

from __future__ import annotations

import msgspec

from journal import events
from reconciler.core import snapshot
from reconciler.core.metering.intervals import Interval
from reconciler.core.model.objects import DEVICE, KINDS, POD, VMI, Object
from reconciler.core.model.vocabulary import Phase
from tests.core.world import NS, R, World

Objects = dict[tuple[str, str, str], Object]


def metered(world: World) -> tuple[World, list[Interval]]:
    """The world, and the intervals its meter closes from now on."""
    found: list[Interval] = []
    tell = world.tell

    def telling(event: events.Event) -> None:
        before = world.state.seq
        tell(event)
        if world.state.seq > before:
            found.extend(world.state.meter.closed)

    world.tell = telling  # type: ignore[method-assign]
    return world, found


def restore(world: World, objects: Objects, *, lead: bool = True) -> None:
    """Every kind is listed from the backup, as the informers do it."""
    known = dict(world.objects)
    world.objects = dict(objects)
    world.tell(events.HistoryReplaced(DEVICE.name, str(world.version), "1"))
    for kind in KINDS.values():
        for key, item in sorted(known.items()):
            if key[0] == kind.name and key not in objects:
                gone = events.ObjectDeleted(kind.name, key[1], key[2], item.uid, False, world.state.meter._last_at)
                world.tell(gone)
        for key, item in sorted(objects.items()):
            if key[0] == kind.name:
                world.tell(world.observation(kind, item, "list"))
        world.tell(events.KindListed(kind.name))
    if lead:
        world.tell(events.LeadershipAcquired("binder-0", 2, "2/binder-0"))
    world.run()


def test_j5_versions_of_ours_from_before_a_restore_stop_nothing() -> None:
    world = World().ready(("n1", 4))
    world.order("d")
    backup = dict(world.objects)
    world.start("vm", "d")
    world.later(60)
    restore(world, backup, lead=False)
    assert world.device("d").phase == Phase.HELD
    world.tell(events.LeadershipAcquired("binder-0", 2, "2/binder-0"))
    assert world.start("vm2", "d") == "n1"


def test_j5_nothing_is_decided_before_every_kind_is_read_anew() -> None:
    world = World().ready(("n1", 4))
    world.order("d")
    world.tell(events.HistoryReplaced(DEVICE.name, "50", "3"))
    assert not world.state.synced and not world.state.leading
    world.decisions.clear()
    world.later(300)
    assert world.decisions == []


def test_u2_a_seam_ends_usage_inexactly_and_overlaps_nothing() -> None:
    world, closed = metered(World().ready(("n1", 4)))
    world.order("d")
    world.order("e")
    backup = dict(world.objects)
    world.later(100)
    world.start("vm", "d")
    world.later(100)
    world.gone(DEVICE, NS, "e")
    world.order("young")
    world.later(100)
    seam = world.at
    world.at += 50_000
    restore(world, backup)
    world.later(100)
    spans = list(world.state.meter.open(world.state, world.at))
    by_name: dict[str, list[tuple[int, int]]] = {}
    for one in closed:
        by_name.setdefault(one.what.name, []).append((one.start.at, one.end.at))
    for span in spans:
        start = span.start
        by_name.setdefault(span.what.name, []).append((start.at, world.at))
        if span.what.name in ("d", "e"):
            assert not start.exact and (start.earliest, start.latest) == (seam, seam + 50_000)
    for found in by_name.values():
        assert all(end <= start for (_, end), (start, _) in zip(sorted(found), sorted(found)[1:], strict=False)), found
    bound = next(one for one in closed if one.what.name == "d" and one.what.state == "bound")
    assert bound.end.at - bound.start.at == 250_000, "the use that was seen is not taken back"
    young = next(one for one in closed if one.what.name == "young")
    assert not young.end.exact


def test_u2_a_pod_that_a_restore_brings_back_is_metered_from_the_seam() -> None:
    world, closed = metered(World().ready(("n1", 4)))
    world.pod("raw", "n1", 2, started=world.at)
    world.later(100)
    backup = dict(world.objects)
    world.gone(POD, NS, "raw")
    world.later(100)
    seam = world.at
    world.at += 50_000
    restore(world, backup)
    world.put(POD, msgspec.structs.replace(backup[(POD.name, NS, "raw")], memory=5))  # type: ignore[call-arg]
    world.later(100)
    (span,) = [one for one in world.state.meter.open(world.state, world.at) if one.what.name == "raw"]
    assert (span.start.at, span.start.earliest) == (seam + 50_000, seam)
    assert [one.what.resource_name for one in closed if one.what.name == "raw"] == [R]


def test_j6_a_snapshot_at_the_seam_restores_it() -> None:
    world = World().ready(("n1", 4))
    world.order("d")
    world.vmi("vm")
    assert world.state.get(VMI.name, NS, "vm") is not None
    world.later(10)
    world.tell(events.HistoryReplaced(DEVICE.name, "50", "3"))
    exported = snapshot.export(world.state)
    assert b'"seam":true' in exported
    assert snapshot.export(snapshot.restore(exported)) == exported
