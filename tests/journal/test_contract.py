"""The journal contract, in memory and in SQLite (J1, J6)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.events import EVENTS, TimeReached
from journal.sqlite import SqliteJournal
from journal.store import Journal, JournalError, JournalPruned, MemoryJournal
from tests.journal.samples import MORNING, batches, node


def fill(journal: Journal, count: int, *, snapshots: tuple[int, ...] = ()) -> None:
    """`count` nodes, two a batch, 10 ms apart; the state after entry N is the text of N."""
    for first in range(1, count + 1, 2):
        numbers = range(first, min(first + 2, count + 1))
        journal.append([node(number) for number in numbers], at=first * 10, batch=(first + 1) // 2)
        for seq in numbers:
            if seq in snapshots:
                journal.snapshot(seq, journal.last_at, str(seq).encode(), build="0.1.0")


def seqs(journal: Journal, after: int = 0, until: int | None = None) -> list[int]:
    return [entry.seq for entry in journal.read(after, until)]


def test_an_empty_journal(journal: Journal) -> None:
    assert (journal.first_seq, journal.last_seq, journal.last_batch, journal.last_at) == (1, 0, 0, 0)
    assert list(journal.read()) == []
    assert journal.nearest_snapshot() is None
    assert journal.seq_at(10**13) == 0
    assert journal.prune(before_at=10**13, max_bytes=0) == 0


def test_j1_every_kind_reads_back_as_it_was_appended(journal: Journal) -> None:
    appended = [
        entry
        for number, events in enumerate(MORNING, 1)
        for entry in journal.append(events, at=1_760_000_000_000 + number, batch=number)
    ]
    assert list(journal.read()) == appended
    assert [entry.seq for entry in appended] == list(range(1, len(appended) + 1))
    assert [entry.event for entry in appended] == [event for events in MORNING for event in events]
    assert (journal.last_seq, journal.last_batch) == (len(appended), len(MORNING))
    assert {type(event).__name__ for events in MORNING for event in events} <= set(EVENTS)


def test_j1_an_empty_append_changes_nothing(journal: Journal) -> None:
    fill(journal, 2)
    assert journal.append([], at=999, batch=9) == []
    assert (journal.last_seq, journal.last_batch, journal.last_at) == (2, 1, 10)


def test_j1_a_clock_that_goes_back_does_not_turn_the_order(journal: Journal) -> None:
    journal.append([node(1)], at=500, batch=1)
    (late,) = journal.append([node(2)], at=400, batch=2)
    assert late.at == 500
    assert [entry.at for entry in journal.read()] == [500, 500]


def test_j1_a_batch_may_take_several_appends_but_never_goes_back(journal: Journal) -> None:
    journal.append([node(1)], at=1, batch=4)
    journal.append([node(2)], at=1, batch=4)
    with pytest.raises(ValueError, match="batch 3 comes after batch 4"):
        journal.append([node(3)], at=1, batch=3)
    assert [entry.batch for entry in journal.read()] == [4, 4]


def test_j1_an_event_that_cannot_be_written_takes_its_batch_with_it(journal: Journal) -> None:
    unwritable = node(2)
    broken = type(unwritable)("Node", "", "gpu", "n", "1", "watch", object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        journal.append([node(1), broken], at=1, batch=1)
    assert journal.last_seq == 0
    assert [entry.seq for entry in journal.append([node(1)], at=1, batch=1)] == [1]


def test_slices_stand_after_the_first_and_up_to_the_last(journal: Journal) -> None:
    fill(journal, 5)
    assert seqs(journal) == [1, 2, 3, 4, 5]
    assert seqs(journal, 2) == [3, 4, 5]
    assert seqs(journal, 2, 4) == [3, 4]
    assert seqs(journal, 0, 3) == [1, 2, 3]
    assert seqs(journal, 4, 2) == seqs(journal, 5) == seqs(journal, 99) == []


def test_a_read_ends_where_the_journal_ended_when_it_began(journal: Journal) -> None:
    """Reading and appending by turns is no endless loop."""
    fill(journal, 2)
    for entry in journal.read():
        journal.append([node(entry.seq)], at=1, batch=99)
    assert journal.last_seq == 4


def test_j7_the_entry_at_a_time(journal: Journal) -> None:
    fill(journal, 6)
    assert [journal.seq_at(at) for at in (0, 9, 10, 11, 30, 49, 50, 10**13)] == [0, 0, 2, 2, 4, 4, 6, 6]


def test_j6_the_nearest_snapshot_by_entry_and_by_time(journal: Journal) -> None:
    fill(journal, 9, snapshots=(3, 6))
    found = journal.nearest_snapshot()
    assert found is not None
    assert (found.seq, found.batch, found.at, found.build, found.payload) == (6, 3, 50, "0.1.0", b"6")

    def nearest(seq: int | None = None, at: int | None = None) -> int | None:
        snapshot = journal.nearest_snapshot(seq, at)
        return snapshot.seq if snapshot else None

    assert [nearest(seq) for seq in (2, 3, 5, 6, 99)] == [None, 3, 3, 6, 6]
    assert [nearest(at=at) for at in (29, 30, 49, 50, 10**13)] == [None, 3, 3, 6, 6]
    assert nearest(6, 49) == nearest(5, 10**13) == 3
    assert nearest(0) is None


def test_j6_a_snapshot_is_never_older_than_its_entry_and_can_be_made_anew(journal: Journal) -> None:
    fill(journal, 4)
    journal.snapshot(4, 0, b"first", build="0.1.0")
    journal.snapshot(4, 77, b"\0\xff" * 4000, build="0.2.0")
    found = journal.nearest_snapshot()
    assert found is not None
    assert (found.at, found.build, found.payload) == (77, "0.2.0", b"\0\xff" * 4000)
    journal.snapshot(4, 0, b"", build="0.2.0")
    found = journal.nearest_snapshot()
    assert found is not None
    assert (found.at, found.payload) == (30, b"")


@pytest.mark.parametrize("seq", [0, 5, -1])
def test_j6_no_snapshot_of_an_entry_that_is_not_there(journal: Journal, seq: int) -> None:
    fill(journal, 4)
    with pytest.raises(ValueError, match=f"no snapshot of entry {seq}: the journal holds entries 1 to 4"):
        journal.snapshot(seq, 1, b"", build="0.1.0")


def test_j6_pruning_by_age_keeps_the_snapshot_a_replay_starts_from(journal: Journal) -> None:
    fill(journal, 12, snapshots=(2, 6, 10))
    assert journal.prune(before_at=80) == 6
    assert (journal.first_seq, journal.last_seq) == (7, 12)
    base = journal.nearest_snapshot(seq=9)
    assert base is not None
    assert (base.seq, seqs(journal, base.seq, 9)) == (6, [7, 8, 9])
    assert journal.nearest_snapshot(seq=5) is None
    assert journal.prune(before_at=80) == 0


def test_j6_pruning_goes_no_further_than_the_newest_snapshot(journal: Journal) -> None:
    fill(journal, 12, snapshots=(2, 6))
    assert journal.prune(before_at=10**13, max_bytes=0) == 6
    assert seqs(journal) == [7, 8, 9, 10, 11, 12]
    base = journal.nearest_snapshot()
    assert base is not None
    assert base.seq == 6


def test_j6_without_a_snapshot_nothing_is_forgotten(journal: Journal) -> None:
    fill(journal, 4)
    assert journal.prune(before_at=10**13, max_bytes=0) == 0
    assert seqs(journal) == [1, 2, 3, 4]


def test_j6_a_journal_pruned_to_its_last_entry_goes_on_counting(journal: Journal) -> None:
    fill(journal, 4, snapshots=(4,))
    assert journal.prune(before_at=10**13) == 4
    assert (journal.first_seq, journal.last_seq, journal.last_batch, journal.last_at) == (5, 4, 2, 30)
    assert seqs(journal) == []
    journal.snapshot(4, 35, b"four", build="0.2.0")
    base = journal.nearest_snapshot()
    assert base is not None
    assert (base.seq, base.batch, base.at, base.payload) == (4, 2, 35, b"four")
    with pytest.raises(ValueError, match="no snapshot of entry 3: the journal holds entries 5 to 4"):
        journal.snapshot(3, 1, b"", build="0.2.0")
    assert [entry.seq for entry in journal.append([node(5)], at=1, batch=3)] == [5]
    assert seqs(journal) == [5]


def test_j6_entries_asked_for_by_number_are_never_silently_left_out(journal: Journal) -> None:
    fill(journal, 6, snapshots=(4,))
    journal.prune(before_at=10**13)
    assert seqs(journal) == seqs(journal, 4) == [5, 6]
    with pytest.raises(JournalPruned, match="entry 3 was asked for, but the journal now starts at entry 5"):
        list(journal.read(2))


def test_j6_a_reader_that_pruning_overtakes_is_told(journal: Journal) -> None:
    fill(journal, 2000, snapshots=(1998,))
    reading = journal.read()
    next(reading)
    journal.prune(before_at=10**13)
    with pytest.raises(JournalPruned):
        list(reading)


def test_j6_pruning_by_size_stops_as_soon_as_the_rest_fits(journal: Journal) -> None:
    fill(journal, 4000, snapshots=(1000, 2000, 3000, 4000))
    journal.checkpoint()
    whole = journal.size_bytes
    assert journal.prune(max_bytes=whole * 6 // 10) == 2000
    assert journal.size_bytes <= whole * 6 // 10
    base = journal.nearest_snapshot()
    assert base is not None
    assert seqs(journal, 2000) == list(range(2001, 4001))
    assert journal.prune(max_bytes=whole) == 0


def test_a_closed_journal_says_so(journal: Journal) -> None:
    journal.close()
    journal.close()
    for call in (
        lambda: journal.append([TimeReached()], at=1, batch=1),
        lambda: list(journal.read()),
        journal.nearest_snapshot,
        lambda: journal.prune(before_at=1),
        journal.checkpoint,
        lambda: journal.seq_at(1),
        lambda: journal.snapshot(1, 1, b"", build=""),
    ):
        with pytest.raises(JournalError, match="is closed"):
            call()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=batches,
    slices=st.lists(st.tuples(st.integers(-1, 40), st.none() | st.integers(-1, 40)), max_size=4),
)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_j1_whatever_was_appended_reads_back_equal_in_any_slice(
    kind: str, batches: list, slices: list, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("property") / "journal.sqlite"
    journal: Journal = MemoryJournal() if kind == "memory" else SqliteJournal(path)
    appended, batch = [], 0
    for events, at, step in batches:
        batch += step
        appended += journal.append(events, at=at, batch=batch)
    if kind == "sqlite":
        journal.close()
        journal = SqliteJournal(path)
    assert [entry.event for entry in appended] == [event for events, _, _ in batches for event in events]
    assert [entry.seq for entry in appended] == list(range(1, len(appended) + 1))
    assert [entry.at for entry in appended] == sorted(entry.at for entry in appended)
    assert list(journal.read()) == appended
    for after, until in slices:
        end = None if until is None else max(until, 0)
        assert list(journal.read(after, until)) == appended[max(after, 0) : end]
    journal.close()


def test_j6_entries_set_aside_take_their_batch_and_their_snapshots_along(journal: Journal) -> None:
    for batch in (1, 2, 3):
        journal.append([node(batch), node(batch)], at=batch * 10, batch=batch)
        journal.snapshot(batch * 2, 0, b"state", build="b")
    journal.mark(99)
    assert journal.snapshots() == [2, 4, 6]
    told = journal.set_aside(4, at=50, why="it is broken")
    assert told.startswith("entries 3 to 6 of journal ") and "(it is broken)" in told
    assert [entry.seq for entry in journal.read()] == [1, 2]
    assert (journal.snapshots(), journal.last_batch, journal.last_at, journal.watched_until) == ([2], 1, 10, 10)
    assert journal.append([node(9)], at=60, batch=2)[0].seq == 3
    told = journal.set_aside_snapshot(2, at=70, why="of a newer build")
    assert told.startswith("the snapshot of entry 2 of journal ") and "(of a newer build)" in told
    assert (journal.snapshots(), journal.last_seq) == ([], 3)


def test_j6_a_journal_set_aside_as_a_whole_begins_anew(journal: Journal) -> None:
    journal.append([node(1)], at=10, batch=1)
    journal.snapshot(1, 0, b"state", build="b")
    assert "it is broken" in journal.set_aside(None, at=50, why="it is broken")
    assert (list(journal.read()), journal.snapshots(), journal.last_seq) == ([], [], 0)
    assert journal.append([node(1)], at=60, batch=1)[0].seq == 1
