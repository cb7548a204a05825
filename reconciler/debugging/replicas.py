"""Reads the journals of several replicas as one history (J7).

A decision is in the journal of the replica that led, a webhook's refusal in that of the replica that served the
request; the objects are in all of them. Neighbours: `outcomes` reads an entry, `explain` and `replay` one journal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

import msgspec

from journal import events
from journal.events import Entry
from journal.store import Journal, complete_until
from reconciler.core.model.objects import CLASS, DEVICE, VMI
from reconciler.core.state.decisions import Action
from reconciler.debugging.outcomes import Outcome, outcome_of
from reconciler.debugging.replay import decision_of

SUBJECT_KINDS = {"device": DEVICE.name, "vmi": VMI.name, "class": CLASS.name}
"""What has a history, and the kind it is of."""
J = TypeVar("J", bound=Journal)
Wanted = Callable[[Entry], bool]


def best_at(journals: Sequence[J], at: int | None) -> J:
    """The journal that knows most of the state at a time (ms; None: the latest): complete until then, and of several
    the one with most entries, which is that of the leader."""

    def known(journal: Journal) -> tuple[int, int]:
        until = complete_until(journal)
        return (until, journal.last_seq) if at is None else (min(until, at), journal.seq_at(at))

    return max(journals, key=known)


def outcomes(
    journals: Sequence[Journal], *, start: int | None = None, end: int | None = None, wanted: Wanted | None = None
) -> Iterator[tuple[int, Outcome]]:
    """(index of the journal, outcome) of every decision and refusal from `start` to before `end` (ms), ordered by time.
    Copies of one replica's journal count once. `wanted` filters entries before they are decoded."""
    streams = [_stream(journal, number, start, end, wanted) for number, journal in enumerate(journals)]
    merged = heapq.merge(*streams, key=lambda one: (one[1].at, one[0], one[1].seq))
    for _, found in groupby(merged, key=lambda one: one[1].at):
        seen: dict[Outcome, int] = {}
        for number, outcome in found:
            if seen.setdefault(msgspec.structs.replace(outcome, seq=0), number) == number:
                yield number, outcome


def history(journals: Sequence[Journal], kind: str, namespace: str, name: str) -> list[tuple[int, Outcome]]:
    """(index of the journal, outcome) of everything decided about a device, a VMI or a class, and of every refusal of
    it, ordered by time. `kind`: of `SUBJECT_KINDS`."""
    wanted = (namespace, name)
    return list(outcomes(journals, wanted=lambda entry: wanted in _subjects(entry, kind)))


def subjects(journals: Sequence[Journal], kind: str) -> set[str]:
    """Every subject of a kind that has a `history`, as NAMESPACE/NAME or NAME."""
    found = {one for journal in journals for entry in journal.read() for one in _subjects(entry, kind)}
    return {f"{namespace}/{name}" if namespace else name for namespace, name in found}


def _subjects(entry: Entry, kind: str) -> set[tuple[str, str]]:
    event = entry.event
    if isinstance(event, events.AdmissionRefused):
        return {(event.namespace, event.name)} if event.kind == kind else set()
    if not isinstance(event, events.Decided):
        return set()
    decision = decision_of(event)
    if kind == VMI.name:
        namespace, _, name = decision.subject.rpartition("/")
        return {(namespace, name)} if decision.action in (Action.BIND, Action.REFUSE_BIND) else set()
    return {(write.namespace, write.name) for write in decision.writes if write.kind == kind}


def _stream(
    journal: Journal, number: int, start: int | None, end: int | None, wanted: Wanted | None
) -> Iterator[tuple[int, Outcome]]:
    after = journal.first_seq - 1 if start is None else max(journal.first_seq - 1, journal.seq_at(start - 1))
    until = None if end is None else journal.seq_at(end - 1)
    for entry in journal.read(after=after, until=until):
        if wanted is None or wanted(entry):
            outcome = outcome_of(entry)
            if outcome is not None:
                yield number, outcome
