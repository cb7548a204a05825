"""The loop's clock: a wall clock that jumps delays no deadline (J5, P4)."""

from __future__ import annotations

from journal.store import MemoryJournal
from reconciler.core.state.decisions import Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.state.work_queue import ItemKind, WorkItem
from reconciler.demo.virtual_time import VirtualTime
from reconciler.runtime.loop import Loop
from tests.edges.memory_cluster import START_MS

DAY = 86_400_000


class NoWriter:
    def send(self, seq: int, decision: Decision) -> None:
        raise AssertionError("nothing is decided here")


class Clock:
    def __init__(self) -> None:
        self.time = VirtualTime(START_MS)
        self.jump = 0

    def __call__(self) -> int:
        return self.time.clock() + self.jump


def test_j5_a_clock_that_jumps_forward_ends_no_grace_time_at_once() -> None:
    clock, state = Clock(), PlacementState()
    loop = Loop(MemoryJournal(), state, NoWriter(), clock=clock, timer=clock.time.timer)
    state.work_queue.add_at(clock() + 60_000, WorkItem(ItemKind.NODE, 0, "n1"))
    clock.jump = DAY
    assert not loop.step()
    clock.time.skip(29)
    assert not loop.step(), "time catches up at twice its pace"
    clock.time.skip(2)
    assert loop.step()


def test_j5_a_clock_that_was_ahead_and_is_set_right_does_not_stop_time() -> None:
    clock, state = Clock(), PlacementState()
    loop = Loop(MemoryJournal(), state, NoWriter(), clock=clock, timer=clock.time.timer)
    clock.jump = DAY
    clock.time.skip(600)
    loop.step()
    clock.jump = 0
    state.work_queue.add_at(clock(), WorkItem(ItemKind.NODE, 0, "n1"))
    assert loop.step()
    ahead = state.now
    state.work_queue.add_at(ahead + 60_000, WorkItem(ItemKind.NODE, 0, "n1"))
    clock.time.skip(59)
    assert not loop.step()
    clock.time.skip(2)
    assert loop.step(), "the grace time ends after its minute, not once the clock has caught up"


def test_j5_a_journal_written_in_the_future_does_not_stop_time() -> None:
    clock, state = Clock(), PlacementState()
    state.now = clock() + DAY
    loop = Loop(MemoryJournal(), state, NoWriter(), clock=clock, timer=clock.time.timer)
    state.work_queue.add_at(state.now + 60_000, WorkItem(ItemKind.NODE, 0, "n1"))
    clock.time.skip(61)
    assert loop.step()
