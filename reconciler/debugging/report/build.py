"""Build the report data: units per node over time, who held them, and every refusal and loss.

Owns the one pass through the journal and where it starts. The result is bounded regardless of the journal's length
(`page_data.Bounds`). Neighbours: `timeline` (recorded along the fold), `page` (the page).
"""

from __future__ import annotations

from journal.store import Journal
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging.report.incidents import newest
from reconciler.debugging.report.page_data import Bounds, ReportData
from reconciler.debugging.report.timeline import TimelineBuilder
from reconciler.runtime import restore

_CHUNK = 5_000
"""Entries per read while searching backwards; bounds memory."""


def build(
    journal: Journal,
    *,
    start: int | None = None,
    end: int | None = None,
    bounds: Bounds | None = None,
    progress: restore.Progress | None = None,
) -> ReportData:
    """The report of the time from `start` to `end` (ms since the epoch; the whole journal without). Raises the
    journal's errors, and `LookupError` where nothing was recorded in that time."""
    bounds = bounds or Bounds()
    last = journal.last_seq if end is None else journal.seq_at(end)
    before = journal.first_seq - 1 if start is None else max(journal.first_seq - 1, journal.seq_at(start - 1))
    if last <= before:
        raise LookupError("nothing was recorded in that time")
    first = next(iter(journal.read(after=before, until=before + 1)))
    timeline = TimelineBuilder(
        _state_after(journal, before),
        first.at if start is None else start,
        bounds,
        _explained(journal, before, last, bounds.explained),
    )
    for entry in journal.read(after=before, until=last):
        timeline.take(entry)
        if progress is not None:
            progress(entry.seq)
    return timeline.data(before + 1, last, end)


def _state_after(journal: Journal, seq: int) -> PlacementState:
    return PlacementState() if seq < 1 else restore.state_at(journal, seq=seq)


def _explained(journal: Journal, before: int, last: int, most: int) -> frozenset[int]:
    """The entries whose decisions are explained, newest first from the journal's end: an explanation judges every node,
    so only as much of the journal is read as is needed."""
    known: dict[tuple[str, ...], int] = {}
    upper = last
    while upper > before:
        lower = max(before, upper - _CHUNK)
        if newest(reversed(list(journal.read(after=lower, until=upper))), most, known):
            break
        upper = lower
    return frozenset(known.values())
