"""Restores the placement state from the journal: nearest snapshot plus later entries (J6).

Read-only; works on a journal that is being written. Neighbours: `core.snapshot` for the format.
"""

from __future__ import annotations

from collections.abc import Callable

from journal.store import Journal
from reconciler.core import snapshot
from reconciler.core.fold import fold
from reconciler.core.state.placement_state import PlacementState

Progress = Callable[[int], None]
"""Called with the seq that has been reached."""


def start(journal: Journal, *, seq: int | None = None, at: int | None = None) -> PlacementState:
    """The state of the nearest snapshot at or before `seq` or `at`; the empty state if there is none."""
    found = journal.nearest_snapshot(seq=seq, at=at)
    return PlacementState() if found is None else snapshot.restore(found.payload)


def state_at(
    journal: Journal, *, seq: int | None = None, at: int | None = None, progress: Progress | None = None
) -> PlacementState:
    """The state after entry `seq`, or after every entry up to time `at` (ms); by default the latest."""
    state = start(journal, seq=seq, at=at)
    for entry in journal.read(after=state.seq, until=seq):
        if at is not None and entry.at > at:
            break
        fold(state, entry)
        if progress is not None:
            progress(entry.seq)
    return state
