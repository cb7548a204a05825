"""Build the report data: units per node over time, who held them, and every refusal and loss.

Owns the one pass through the journal and where it starts. The result is bounded regardless of the journal's length
(`page_data.Bounds`). Neighbours: `timeline` (recorded along the fold), `page` (the page).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from journal.store import Journal
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging import replicas
from reconciler.debugging.report.incidents import newest
from reconciler.debugging.report.page_data import Bounds, Incident, ReportData
from reconciler.debugging.report.timeline import TimelineBuilder
from reconciler.runtime import restore

OBSERVED_WITHIN_MILLISECONDS = 60_000
"""A decision of another replica is observed within this time, or its watch would be unhealthy."""

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


def build_all(
    journals: Mapping[str, Journal],
    *,
    start: int | None = None,
    end: int | None = None,
    bounds: Bounds | None = None,
    progress: restore.Progress | None = None,
) -> tuple[str, ReportData]:
    """(name of the journal with the page's units and holders, the report) of the journals of several replicas, by name:
    units and holders from the one that knows most, decisions and refusals from all. Raises as `build`."""
    best = replicas.best_at(list(journals.values()), end)
    name = next(name for name, journal in journals.items() if journal is best)
    data = build(best, start=start, end=end, bounds=bounds, progress=progress)
    for other, journal in journals.items():
        if journal is best:
            continue
        try:
            found = build(journal, start=data.start, end=data.end, bounds=bounds, progress=progress)
        except LookupError:
            continue
        _add(data, found, other)
    return name, data


def _add(data: ReportData, found: ReportData, journal: str) -> None:
    """Add the incidents that another journal decided, in place of what was only observed of them, and their reasons."""
    known = {_same(incident) for incident in data.incidents}
    added = [one for one in found.incidents if not one.observed and _same(one) not in known]
    seen = [one for one in data.incidents if one.observed and any(_observes(one, each) for each in added)]
    for incident in added:
        incident.journal = journal
        data.counts[incident.kind] += 1
    for incident in seen:
        data.incidents.remove(incident)
        data.counts[incident.kind] -= 1
    data.incidents = sorted([*data.incidents, *added], key=lambda one: one.at)
    wanted = {incident.key for incident in added}
    renamed = (msgspec.structs.replace(one, journal=journal) for one in found.explained)
    data.explained += [one for one in renamed if one.key in wanted]


def _same(incident: Incident) -> tuple[object, ...]:
    return incident.at, incident.kind, incident.action, incident.subject, incident.message


def _observes(seen: Incident, decided: Incident) -> bool:
    same = (seen.kind, seen.subject) == (decided.kind, decided.subject)
    return same and abs(seen.at - decided.at) <= OBSERVED_WITHIN_MILLISECONDS


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
