"""Restores the state at a start, whatever of the journal can no longer be read (J6).

Owns what is given up: a snapshot alone where an older one serves, the entries from the first unreadable one on, or the
whole journal. The cluster is the authority: what is given up is observed anew. Neighbour: `restore`, which reads only.
"""

from __future__ import annotations

from journal.store import Journal, JournalDamaged, JournalError, JournalTooNew
from reconciler.core import snapshot
from reconciler.core.fold import fold
from reconciler.core.state.placement_state import PlacementState


class _Unreadable(Exception):
    """`seq`: the first entry that cannot be read, None for the file as a whole."""

    def __init__(self, seq: int | None, why: str) -> None:
        super().__init__(why)
        self.seq, self.why = seq, why


def recover(journal: Journal, *, at: int) -> tuple[PlacementState, list[str]]:
    """The latest state, and one sentence for each part of the journal that was set aside because it cannot be read.
    `at`: now, in ms. Raises `JournalError` where the file cannot be read or written at all, which does not justify
    starting over."""
    told: list[str] = []
    while True:
        try:
            return _fold_rest(journal, _nearest(journal, at, told)), told
        except _Unreadable as found:
            told.append(journal.set_aside(found.seq, at=at, why=found.why))


def _nearest(journal: Journal, at: int, told: list[str]) -> PlacementState:
    """The state of the newest snapshot that can be read; the empty one where the journal has its first entry."""
    broken: list[tuple[int, str]] = []
    state = PlacementState()
    for seq in reversed(journal.snapshots()):
        try:
            state = _restored(journal, seq)
            break
        except _Unreadable as error:
            broken.append((seq, error.why))
    if broken and not state.seq and journal.first_seq > 1:
        raise _Unreadable(None, f"none of its snapshots can be read ({broken[0][1]}) and what came before is pruned")
    for seq, why in broken:
        told.append(journal.set_aside_snapshot(seq, at=at, why=why))
    return state


def _restored(journal: Journal, seq: int) -> PlacementState:
    try:
        found = journal.nearest_snapshot(seq)
        return PlacementState() if found is None else snapshot.restore(found.payload)
    except Exception as error:  # whatever it is, every further start would end in it
        raise _unreadable(error, None) from error


def _fold_rest(journal: Journal, state: PlacementState) -> PlacementState:
    """The state after the last entry. Raises `_Unreadable` for the first one that cannot be read or folded."""
    following = state.seq + 1 if state.seq else journal.first_seq
    try:
        for entry in journal.read(after=following - 1):
            fold(state, entry)
            following = entry.seq + 1
    except Exception as error:  # whatever it is, every further start would end in it
        raise _unreadable(error, following) from error
    return state


def _unreadable(error: Exception, seq: int | None) -> Exception:
    if isinstance(error, JournalDamaged):
        return _Unreadable(error.seq, error.why)
    if isinstance(error, JournalError) and not isinstance(error, JournalTooNew):
        return error
    return _Unreadable(seq, error.why if isinstance(error, JournalTooNew) else f"{type(error).__name__}: {error}")
