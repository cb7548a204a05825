"""Usage export: windows, tenants, merging of replicas, plain formats (U1, U2, U3, C50)."""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import events
from journal.events import Entry
from journal.store import JournalPruned, MemoryJournal
from reconciler.billing.export import COLUMNS, complete_until, row, usage, write_csv, write_jsonl
from reconciler.billing.external_sort import ExternalSort
from reconciler.core import snapshot
from reconciler.core.fold import fold
from reconciler.core.metering.usage_records import Record
from reconciler.core.model.objects import DEVICE, KINDS, NODE, POD, VMI, Device
from reconciler.core.state.placement_state import PlacementState
from tests.core.test_usage_twin import SETTLE, Story, check_no_overlap, play, used
from tests.core.world import NS, R

FIRST = 1_000_000


def journal_of(entries: list[Entry]) -> MemoryJournal:
    journal = MemoryJournal()
    for batch, entry in enumerate(entries, 1):
        journal.append([entry.event], at=entry.at, batch=batch)
    return journal


def export(*journals: MemoryJournal, **options: Any) -> list[Record]:
    return list(usage(journals, cluster="c1", **options))


def story() -> Story:
    world = Story(settle=SETTLE).ready(("n1", 4), ("n2", 3))
    assert isinstance(world, Story)
    return world


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 30), data=st.data())
@settings(max_examples=60, deadline=None)
def test_u2_any_window_holds_its_own_unit_seconds(seed: int, steps: int, data: Any) -> None:
    """U2, U3: cut to a window the records sum to the twin's seconds, and windows add up."""
    world = play(seed, steps)
    journal = journal_of(world.entries)
    seconds = (world.at - FIRST) // 1000
    start = FIRST + data.draw(st.integers(0, seconds)) * 1000
    end = start + data.draw(st.integers(1, seconds + 1)) * 1000
    found = export(journal, start=start, end=end)
    check_no_overlap(found)
    assert all(start <= one.start < one.end <= end for one in found)
    assert found == sorted(found, key=lambda one: (one.start, one.namespace, one.kind, one.name, one.uid))
    assert used(found, start, end) == world.twin.used(SETTLE, start, min(end, world.at))


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_u1_two_replicas_journals_merge_to_the_bytes_of_one(seed: int, steps: int) -> None:
    """U1: leader's, follower's and both in either order export the same bytes."""
    world = play(seed, steps)
    leader, follower = journal_of(world.entries), journal_of(world.follower())
    one = text(export(leader))
    assert text(export(follower)) == one
    assert text(export(leader, follower)) == one
    assert text(export(follower, leader)) == one


@given(seed=st.integers(0, 2**32), steps=st.integers(2, 30), data=st.data())
@settings(max_examples=60, deadline=None)
def test_u2_a_replica_that_was_down_adds_what_it_saw_and_no_doubles(seed: int, steps: int, data: Any) -> None:
    """U2: merged with a replica that saw only a part of the story, the one that saw all is told unchanged."""
    world = play(seed, steps)
    told = world.follower()
    until = data.draw(st.integers(1, len(told)))
    whole = export(journal_of(told))
    assert text(export(journal_of(told), journal_of(told[:until]))) == text(whole)
    assert text(export(journal_of(told[:until]), journal_of(told))) == text(whole)


@given(seed=st.integers(0, 2**32), steps=st.integers(2, 30), data=st.data())
@settings(max_examples=100, deadline=None)
def test_u2_a_replica_that_returns_invents_nothing_beside_one_that_stayed(seed: int, steps: int, data: Any) -> None:
    """U2: alone it overlaps nothing; together with the other it changes nothing."""
    world = play(seed, steps)
    ready = 25
    start = data.draw(st.integers(ready, len(world.told) - 1))
    gappy = journal_of(world.follower((start, data.draw(st.integers(start + 1, len(world.told))))))
    check_no_overlap(export(gappy))
    whole = journal_of(world.entries)
    assert text(export(whole, gappy)) == text(export(whole))
    assert text(export(gappy, whole)) == text(export(whole))


@given(seed=st.integers(0, 2**32), steps=st.integers(2, 30), cut=st.floats(0.01, 0.99))
@settings(max_examples=40, deadline=None)
def test_j6_a_pruned_journal_tells_the_same_of_what_came_after(seed: int, steps: int, cut: float) -> None:
    """J6, U3: a window after the snapshot at which a journal was pruned is exported to the same bytes."""
    world = play(seed, steps)
    whole, pruned = journal_of(world.entries), journal_of(world.entries)
    state = PlacementState()
    at = max(1, int(len(world.entries) * cut))
    for entry in world.entries[:at]:
        fold(state, entry)
    pruned.snapshot(at, state.now, snapshot.export(state), build="test")
    pruned.prune(before_at=state.now)
    assert pruned.first_seq == at + 1
    assert text(export(pruned, start=state.now)) == text(export(whole, start=state.now))


def text(records: list[Record]) -> str:
    out = io.StringIO()
    write_jsonl(records, out)
    return out.getvalue()


def test_j6_a_journal_without_its_beginning_says_so() -> None:
    """J6: entries that are gone without a snapshot cannot be billed from."""

    class Torn(MemoryJournal):
        @property
        def first_seq(self) -> int:
            return 7

    with pytest.raises(JournalPruned, match="starts at entry 7"):
        export(Torn())


def test_u3_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ends .*00:00:01.000Z.* before it begins"):
        export(MemoryJournal(), start=2_000, end=1_000)


# U2: ends nobody saw


def restarted(world: Story, *gone: tuple[Any, str], last_seen: int) -> None:
    """The controller was down; at its return these objects are missing from the lists."""
    world.tell(events.ControllerStarted("binder-0", "test"))
    for kind, name in gone:
        item = world.objects.pop((kind.name, NS, name))
        world.tell(events.ObjectDeleted(kind.name, NS, name, item.uid, seen=False, last_seen=last_seen))
    for kind in KINDS:
        world.tell(events.KindListed(kind))


def test_c50_a_device_that_went_while_nobody_looked_ends_at_its_last_proven_moment() -> None:
    """U2, C50: inexact, with bounds; not at the time of the restart."""
    world = story()
    world.order("d1")
    world.start("vm", "d1")
    world.wait(600)
    seen = world.at
    world.at += 7_200_000
    restarted(world, (DEVICE, "d1"), last_seen=seen)
    (bound,) = [one for one in export(journal_of(world.entries)) if one.state == "bound"]
    assert (bound.end, bound.end_earliest, bound.end_latest) == (seen, seen, world.at)
    assert not bound.exact and not bound.open
    assert row(bound)["toNotAfter"] == "1970-01-01T02:26:40.000Z"


def test_c50_a_deletion_that_was_asked_for_is_proven_until_its_timestamp() -> None:
    """U2, C50: the deletion timestamp lies after the last look."""
    world = story()
    world.pod("raw", "n1", 1)
    world.wait(120)
    world.change(POD, NS, "raw", deleting=world.at + 30_000)
    seen = world.at
    world.at += 3_600_000
    restarted(world, (POD, "raw"), last_seen=seen)
    (raw,) = export(journal_of(world.entries))
    assert (raw.end, raw.end_earliest, raw.end_latest) == (seen + 30_000, seen + 30_000, world.at)


def test_u2_another_replica_that_saw_the_end_is_believed() -> None:
    """U1, U2: the same id, and the exact end."""
    blind, seeing = story(), story()
    for world in (blind, seeing):
        world.pod("raw", "n1", 1)
        world.wait(120)
    seen = blind.at
    seeing.wait(60)
    seeing.change(POD, NS, "raw", phase="Succeeded", finished=seeing.at)
    blind.at += 3_600_000
    restarted(blind, (POD, "raw"), last_seen=seen)
    alone = export(journal_of(blind.entries))
    both = export(journal_of(blind.entries), journal_of(seeing.entries))
    assert [one.id for one in alone] == [one.id for one in both]
    assert not alone[0].exact
    assert both[0].exact and both[0].end == seen + 60_000
    assert text(both) == text(export(journal_of(seeing.entries)))


def test_u2_what_only_a_dead_replica_saw_ends_with_it() -> None:
    """U2: it was open at the dead replica's end, and a replica that listed everything later does not know it."""
    dead, alive = story(), Story(settle=SETTLE)
    dead.order("d1")
    dead.wait(30)
    alive.at = dead.at + 1_000_000
    alive.ready(("n1", 4))
    alive.wait(10)
    merged = export(journal_of(dead.entries), journal_of(alive.entries))
    (held,) = [one for one in merged if one.name == "d1"]
    assert (held.end, held.end_latest, held.open) == (dead.at, alive.at - 10_000, False)


def test_c50_a_new_uid_under_an_old_name_opens_its_own_interval() -> None:
    """R10, C50: a resize is another object; the old one ends where the new one is seen."""
    world = story()
    first = world.order("d1", count=1)
    world.wait(10)
    world.objects.pop((DEVICE.name, NS, "d1"))
    world.put(DEVICE, msgspec.structs.replace(first, uid="uid-new", count=2, phase_since=world.at))
    world.wait(10)
    found = export(journal_of(world.entries))
    assert [(one.uid, one.units, one.open) for one in found] == [(first.uid, 1, False), ("uid-new", 2, True)]


def test_c50_an_order_that_was_never_accepted_produces_nothing() -> None:
    """C50: deleted while Pending."""
    world = story()
    world.order("big", count=99)
    world.wait(10)
    world.gone(DEVICE, NS, "big")
    assert export(journal_of(world.entries)) == []


def test_c50_a_guest_shutdown_ends_the_bound_interval() -> None:
    """C50: the VMI is Succeeded and stays; the hold goes on."""
    world = story()
    world.order("d1")
    world.start("vm", "d1")
    world.wait(10)
    world.change(VMI, NS, "vm", phase="Succeeded")
    world.wait(10)
    found = export(journal_of(world.entries))
    assert [(str(one.state), one.vmi, one.end - one.start, one.open) for one in found if one.kind == "GPUDevice"] == [
        ("bound", "vm", 10_000, False),
        ("held", "", 10_000, True),
    ]


# Raw use


def test_u1b_a_launcher_listed_after_the_settling_time_was_one_from_its_first_moment() -> None:
    """U1b: an open interval that was told before is taken back."""
    world = story()
    world.order("d1")
    world.ask("vm", "d1")
    world.vmi("vm")
    pod = world.pod("virt-launcher-vm", "n1", 1, vmi_name="vm", launcher=True)
    world.wait(90)
    early = export(journal_of(world.entries))
    assert [one.kind for one in early if one.state == "raw"] == ["Pod"]
    world.change(VMI, NS, "vm", active_pods={pod.uid: "n1"}, phase="Running")
    world.wait(10)
    assert not [one for one in export(journal_of(world.entries)) if one.state == "raw"]


def test_r7_a_forged_launcher_is_billed_as_raw_from_its_start() -> None:
    """R7, U1b: owner and labels of a VMI that does not list it."""
    world = story()
    vmi = world.vmi("vm")
    pod = world.pod("forged", "n1", 1, vmi_name="vm", vmi_uid=vmi.uid, launcher=True, started=world.at - 5_000)
    world.wait(59)
    assert export(journal_of(world.entries))[0].uid == pod.uid, "settled at 64 s"
    (raw,) = export(journal_of(world.entries))
    assert (raw.start, str(raw.state), raw.vmi, raw.units) == (FIRST - 5_000, "raw", "", 1)


def test_u1b_raw_use_shorter_than_the_settling_time_is_no_fact() -> None:
    world = story()
    world.pod("brief", "n1", 1)
    world.wait(59)
    world.change(POD, NS, "brief", phase="Succeeded", finished=world.at)
    world.wait(100)
    assert export(journal_of(world.entries)) == []


def test_c10_only_what_no_device_covers_is_raw() -> None:
    """C10: one device and a request of two."""
    world = story()
    world.order("d1")
    world.ask("vm", "d1")
    world.vmi("vm")
    world.launcher("vm", "n1", 2)
    world.wait(60)
    raw = [one for one in export(journal_of(world.entries)) if one.state == "raw"]
    assert [(one.units, one.end - one.start, one.vmi) for one in raw] == [(1, 60_000, "vm")]


def test_r8_c09_a_second_launcher_during_a_migration_is_raw_until_the_first_ends() -> None:
    """C09, R8: a device covers its units once over all listed pods, so of a migration's two launchers the target is
    raw use while both run. It was billed nowhere before, and neither was a forged pod on the list."""
    world = story()
    world.order("d1")
    world.start("vm", "d1")
    target = world.launcher("vm", "n2", 1, name="virt-launcher-target")
    world.wait(120)
    world.change(POD, NS, "virt-launcher-vm", phase="Succeeded", finished=world.at)
    world.wait(60)
    raw = [one for one in export(journal_of(world.entries)) if one.state == "raw"]
    assert [(one.uid, one.units, one.end - one.start) for one in raw] == [(target.uid, 1, 120_000)]


def test_r8_forged_pods_on_a_vmis_list_are_billed() -> None:
    """R8: three pods with the label and the owner of a running VM of one unit; all four are listed."""
    world = story()
    world.order("d1")
    node = world.start("vm", "d1")
    forged = [world.launcher("vm", node, 1, name=f"forged-{number}") for number in range(3)]
    world.wait(120)
    raw = [one for one in export(journal_of(world.entries)) if one.state == "raw"]
    assert sorted((one.uid, one.units, one.end - one.start) for one in raw) == [(pod.uid, 1, 120_000) for pod in forged]


def test_c06_a_stopped_vm_keeps_its_hold_and_is_billed_for_it() -> None:
    """C06: held while the VM is down, bound again when it is back; no second between them is lost."""
    world = story()
    world.order("d1")
    world.start("vm", "d1")
    world.wait(5)
    world.gone(POD, NS, "virt-launcher-vm")
    world.gone(VMI, NS, "vm")
    world.wait(5)
    world.start("vm", "d1")
    world.wait(5)
    found = [one for one in export(journal_of(world.entries)) if one.kind == "GPUDevice"]
    assert [str(one.state) for one in found] == ["bound", "held", "bound"]
    assert [one.start for one in found[1:]] == [one.end for one in found[:-1]]


# Windows, tenants, open intervals


def test_u3_a_tenants_subtree_and_nothing_beside_it() -> None:
    """U3: below `tenant-a`, not `tenant-ab`."""
    world = story()
    world.tenant("b", parent="tenant-a")
    world.tenant("ab")
    for ns in ("tenant-a", "tenant-a-b", "tenant-ab"):
        world.order("d", ns=ns)
    world.wait(5)
    journal = journal_of(world.entries)
    assert {one.tenant for one in export(journal, tenant="tenant-a")} == {"tenant-a", "tenant-a-b"}
    assert {one.tenant for one in export(journal, tenant="tenant-root")} == {
        "tenant-a",
        "tenant-a-b",
        "tenant-ab",
    }
    assert export(journal, tenant="tenant-x") == []


def test_u1_another_tenant_splits_the_interval() -> None:
    """U1, R2: a namespace without a release belongs to the nearest tenant above until it gets its own."""
    world = story()
    world.order("d", ns="tenant-a-b", phase="Held", phase_since=world.at)
    world.wait(10)
    world.tenant("b", parent="tenant-a")
    world.wait(10)
    found = export(journal_of(world.entries))
    assert [(one.tenants, one.end - one.start) for one in found] == [
        (("tenant-a", "tenant-root"), 10_000),
        (("tenant-a-b", "tenant-a", "tenant-root"), 10_000),
    ]


def test_u3_what_is_in_use_where_the_journal_ends_is_open_and_a_past_window_is_complete() -> None:
    """U3, J3: a mark extends what the journal knows."""
    world = story()
    world.order("d1")
    world.wait(100)
    journal = journal_of(world.entries)
    (open_one,) = export(journal)
    assert open_one.open and open_one.end == world.at == complete_until([journal])
    (past,) = export(journal, end=FIRST + 50_000)
    assert not past.open and past.exact and past.end == FIRST + 50_000
    journal.mark(world.at + 5_000)
    (later,) = export(journal)
    assert later.open and later.end == world.at + 5_000 == complete_until([MemoryJournal(), journal])


def test_u3_pieces_of_one_interval_have_ids_of_their_own_and_name_it() -> None:
    """U1, U3: two windows' exports can be put together by id without losing a piece."""
    world = story()
    world.order("d1")
    world.wait(100)
    journal = journal_of(world.entries)
    (first,) = export(journal, start=FIRST, end=FIRST + 50_000)
    (second,) = export(journal, start=FIRST + 50_000, end=FIRST + 90_000)
    assert first.id != second.id
    assert first.interval == second.interval == first.id


def test_u3_as_of_an_earlier_time_later_entries_are_not_read() -> None:
    world = story()
    world.order("d1")
    world.wait(10)
    known = world.at
    world.wait(10)
    world.change(DEVICE, NS, "d1", deleting=world.at)
    journal = journal_of(world.entries)
    assert not export(journal)[0].open
    (then,) = export(journal, as_of=known)
    assert then.open and then.end == known


def test_u3_progress_ends_at_all_there_is() -> None:
    world = story()
    world.wait(1)
    seen: list[tuple[int, int]] = []
    export(journal_of(world.entries), progress=lambda read, total: seen.append((read, total)))
    assert seen[-1] == (len(world.entries), len(world.entries))


# Formats


def test_u3_json_lines_and_csv_say_the_same() -> None:
    """U3: exact decimals, RFC 3339, an empty field for null."""
    world = play(7, 30)
    found = export(journal_of(world.entries))
    lines, table = io.StringIO(), io.StringIO()
    assert write_jsonl(found, lines) == write_csv(found, table) == len(found) > 5
    objects = [msgspec.json.decode(line) for line in lines.getvalue().splitlines()]
    rows = list(csv.DictReader(io.StringIO(table.getvalue())))
    assert tuple(rows[0]) == tuple(objects[0]) == COLUMNS
    for one, cells, record in zip(objects, rows, found, strict=True):
        assert Decimal(cells["unitSeconds"]) * 1000 == record.unit_milliseconds
        assert cells == {
            key: "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in one.items()
        }


def test_u3_a_year_is_sorted_on_disk() -> None:
    """U3: runs that do not fit in memory are merged in order."""
    world = play(11, 30)
    found = export(journal_of(world.entries))
    shuffled = random.Random(1).sample(found, len(found))
    with ExternalSort(Record, lambda one: (one.start, one.id), run_records=3) as sorter:
        for record in shuffled:
            sorter.add(record)
        assert len(sorter._files) == len(found) // 3
        assert list(sorter) == sorted(found, key=lambda one: (one.start, one.id))


def test_u1_states_of_a_lost_and_returned_device() -> None:
    """U1, P4: bound, lost while its node serves less, bound again; the launcher stays covered."""
    world = story()
    world.order("d1")
    node = world.start("vm", "d1")
    world.wait(10)
    world.change(NODE, "", node, allocatable={R: 0})
    world.wait(70)
    world.wait(5)
    world.change(NODE, "", node, allocatable={R: 4})
    world.wait(70)
    states = Counter(str(one.state) for one in export(journal_of(world.entries)))
    assert states["lost"] == 1 and states["bound"] == 2 and not states["raw"], states


# Starts whose VMI never comes (W7)


def test_w7_a_start_whose_vmi_never_comes_is_billed_as_held_and_its_template_to_nobody() -> None:
    """W7: a forged review, or a start that a later webhook refused; released after the grace period."""
    world = story()
    world.order("d1")
    world.put(DEVICE, Device(name="t1", namespace=NS, uid="", class_name="a10", template=True, generation=1))
    world.ask("ghost", "d1", "t1")
    assert {world.device(name).phase for name in ("d1", "t1")} == {"Bound"}
    world.wait(30)
    assert [(one.name, str(one.state)) for one in export(journal_of(world.entries))] == [("d1", "held")]
    world.wait(90)
    assert world.state.device(NS, "t1") is None and world.device("d1").phase == "Held"
    found = export(journal_of(world.entries))
    assert {(one.name, str(one.state), one.vmi) for one in found} == {("d1", "held", "")}
    assert sum(one.unit_milliseconds for one in found) == world.at - FIRST


def test_w7_a_start_whose_vmi_comes_is_billed_as_bound_since_its_placement() -> None:
    """W7, U1: nothing of the wait is lost, whether the export is made before or after."""
    world = story()
    world.order("d1")
    world.put(DEVICE, Device(name="t1", namespace=NS, uid="", class_name="a10", template=True, generation=1))
    world.wait(10)
    placed = world.at
    world.ask("vm", "d1", "t1")
    world.wait(20)
    world.vmi("vm")
    world.wait(5)
    found = [(one.name, str(one.state), one.start, one.end) for one in export(journal_of(world.entries))]
    assert sorted(found) == [
        ("d1", "bound", placed, world.at),
        ("d1", "held", FIRST, placed),
        ("t1", "bound", placed, world.at),
    ]
