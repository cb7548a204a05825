"""Replay a journal: the state at any time, and whether this build makes the decisions recorded in it (J7).

Owns the reconstruction of states from entries. Neighbours: `explain` for one decision, `core.snapshot` for where a
replay starts. Read-only; works on a journal that is being written.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import msgspec

from journal import events
from journal.events import Entry
from journal.store import Journal, Snapshot
from reconciler import VERSION
from reconciler.core import snapshot
from reconciler.core.decide import decide
from reconciler.core.fold import fold
from reconciler.core.state.decisions import Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.runtime.restore import Progress, start


class Difference(msgspec.Struct, frozen=True):
    """The first decision that differs. `recorded` None: this build makes a decision that the journal does not
    hold; `recomputed` None: the reverse. `what`: the first difference, in one line."""

    seq: int
    at: int
    what: str
    recorded: Decision | None
    recomputed: Decision | None


class Verified(msgspec.Struct, frozen=True):
    """What was checked, and the first difference if any. `snapshots`: how many of this build were compared."""

    entries: int
    decisions: int
    snapshots: int
    difference: Difference | None = None


def decisions(journal: Journal, after: int = 0) -> Iterator[tuple[Entry, Decision]]:
    """Every recorded decision in order."""
    for entry in journal.read(after=after):
        if isinstance(entry.event, events.Decided):
            yield entry, decision_of(entry.event)


def decision_of(event: events.Decided) -> Decision:
    return msgspec.json.decode(event.decision, type=Decision)


def verify(journal: Journal, progress: Progress | None = None, *, build: str = VERSION) -> Verified:
    """Recompute every decision from the state before it.

    Starts at the first entry, or where the journal was pruned at its oldest snapshot. The newest snapshot is compared
    as well if `build` took it.
    """
    first = journal.first_seq
    state = PlacementState() if first <= 1 else start(journal, seq=_oldest(journal, first))
    newest = journal.nearest_snapshot()
    made = checked = entries = 0
    for _, group in groupby(journal.read(after=state.seq), key=lambda entry: entry.batch):
        batch = list(group)
        entries += len(batch)
        found, count = _verify_batch(state, batch)
        made += count
        if found is None and newest is not None and newest.seq == state.seq and newest.build == build:
            checked += 1
            found = _compare(state, newest)
        if found is not None:
            return Verified(entries, made, checked, found)
        if progress is not None:
            progress(state.seq)
    return Verified(entries, made, checked)


DIES_WITH_THE_PROCESS = ("questions", "deadlines")
"""Of a snapshot: items added while deciding are not in the journal, and a killed process lost them. A
new term enqueues everything, so nothing depends on them."""


def _compare(state: PlacementState, recorded: Snapshot) -> Difference | None:
    theirs, ours = (msgspec.json.decode(payload) for payload in (recorded.payload, snapshot.export(state)))
    fields = [
        name
        for name in sorted({*theirs, *ours})
        if name not in DIES_WITH_THE_PROCESS and theirs.get(name) != ours.get(name)
    ]
    if not fields:
        return None
    return Difference(recorded.seq, recorded.at, f"the snapshot differs in {', '.join(fields)}", None, None)


def _oldest(journal: Journal, first: int) -> int:
    for seq in range(first - 1, journal.last_seq + 1):
        if journal.nearest_snapshot(seq=seq) is not None:
            return seq
    return first


def _verify_batch(state: PlacementState, batch: list[Entry]) -> tuple[Difference | None, int]:
    recorded = [entry for entry in batch if isinstance(entry.event, events.Decided)]
    for entry in batch:
        if not isinstance(entry.event, events.Decided):
            fold(state, entry)
    for entry in recorded:
        assert isinstance(entry.event, events.Decided)
        written, again = decision_of(entry.event), decide(state)
        if again is None or msgspec.json.encode(again) != msgspec.json.encode(written):
            return _difference(entry, written, again), len(recorded)
        fold(state, entry)
    surplus = decide(state)
    if surplus is not None:
        return _difference(batch[-1], None, surplus), len(recorded)
    return None, len(recorded)


def _difference(entry: Entry, written: Decision | None, again: Decision | None) -> Difference:
    if written is None or again is None:
        only = written or again
        assert only is not None
        side = "recorded" if again is None else "recomputed"
        what = f"only {side}: {only.action.value} {only.subject}"
    else:
        what = _first_field(written, again)
    return Difference(entry.seq, entry.at, what, written, again)


def _first_field(written: Decision, again: Decision) -> str:
    for name in written.__struct_fields__:
        if getattr(written, name) != getattr(again, name):
            return f"{name}: recorded {getattr(written, name)!r}, recomputed {getattr(again, name)!r}"
    return "the encoding differs"
