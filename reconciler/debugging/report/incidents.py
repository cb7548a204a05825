"""Refusals, losses and returns along the fold, and the reasons of the newest of them.

Owns which decisions are incidents, when a repeated refusal counts as the same incident, and the bound on explanations.
A decision is explained on the state just before its entry, so nothing is folded twice. Neighbours:
`timeline`, `explain`.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from heapq import merge
from typing import Any

import msgspec

from journal import events
from journal.events import Entry
from reconciler.core.admission import checks
from reconciler.core.admission.placement import Verdict
from reconciler.core.model.objects import Device
from reconciler.core.state.decisions import Action, Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging import explain
from reconciler.debugging.outcomes import Outcome, decision_outcome, refusal_outcome, refused_start
from reconciler.debugging.report.page_data import INCIDENTS, Bar, Bounds, Explained, Group, Incident


class Incidents:
    """The incidents so far, the newest kept, and the explanations of the entries in `wanted`."""

    def __init__(self, bounds: Bounds, wanted: frozenset[int]) -> None:
        self.counts: Counter[str] = Counter()
        self.explained: deque[Explained] = deque()
        self._bounds = bounds
        self._wanted = wanted
        self._bytes = 0
        self._refused: deque[Incident] = deque(maxlen=bounds.incidents)
        self._changed: deque[Incident] = deque(maxlen=bounds.incidents)
        self._waiting: dict[str, Incident] = {}

    def in_order(self) -> list[Incident]:
        """All incidents by time."""
        return list(merge(self._refused, self._changed, key=lambda incident: incident.at))

    def decided(self, state: PlacementState, entry: Entry, decision: Decision) -> None:
        """A decision, before it is folded."""
        if decision.action in (Action.HOLD, Action.FINALIZE, Action.DELETE):
            self._waiting.pop(decision.subject, None)
        if entry.seq in self._wanted:
            self._explain(explain.explain_on(state, entry))
        kind = INCIDENTS.get(decision.action)
        if kind is None:
            return
        known = self._waiting.get(decision.subject)
        if decision.action is Action.REFUSE_ORDER and known is not None and known.reason == decision.reason:
            known.seq, known.message, known.missing = entry.seq, decision.message, decision.missing
            known.again += 1
            return
        found = (state.device(write.namespace, write.name) for write in decision.writes)
        units = [(state.resource_of(device), device.count) for device in found if device is not None]
        incident = _incident(kind, decision_outcome(entry, decision), units)
        self._add(incident)
        if decision.action is Action.REFUSE_ORDER:
            self._waiting[decision.subject] = incident

    def refused(self, state: PlacementState, entry: Entry, event: events.AdmissionRefused) -> None:
        """A webhook's refusal."""
        outcome: Outcome = refusal_outcome(entry, event)
        if entry.seq in self._wanted:
            outcome = explain.explain_on(state, entry)
            self._explain(outcome)
        needs = checks.set_request(state, refused_start(state, event)).needs
        self._add(_incident("refused", outcome, needs.items()))

    def seen(self, entry: Entry, bar: Bar, device: Device) -> None:
        """A device became Lost, or ceased to be, by a decision this journal does not hold."""
        lost = bar.kind == "lost"
        self._add(
            Incident(
                at=entry.at,
                seq=entry.seq,
                observed=True,
                kind="lost" if lost else "returned",
                action=(Action.LOSE if lost else Action.RESTORE).value,
                subject=f"{device.namespace}/{device.name}",
                node=bar.node,
                message=next((condition.message for condition in device.conditions), ""),
                asked=_asked([(bar.resource, device.count)]),
                resources=(bar.resource,) if bar.resource else (),
            )
        )

    def _add(self, incident: Incident) -> None:
        (self._refused if incident.kind == "refused" else self._changed).append(incident)
        self.counts[incident.kind] += 1

    def _explain(self, found: explain.Explanation) -> None:
        short = msgspec.structs.replace(found, nodes=())
        self.explained.append(Explained(what=short, groups=groups(found.nodes)))
        self._bytes += self.explained[-1].bytes
        while self._bytes > self._bounds.explanation_bytes and len(self.explained) > 1:
            self._bytes -= self.explained.popleft().bytes


def _incident(kind: str, outcome: Outcome, units: Iterable[tuple[str, int]]) -> Incident:
    asked = _asked(units)
    return Incident(
        at=outcome.at,
        seq=outcome.seq,
        kind=kind,
        action=outcome.action,
        subject=outcome.subject,
        node=outcome.node,
        reason=outcome.reason,
        message=outcome.message,
        missing=outcome.missing,
        asked=asked,
        resources=tuple(asked),
    )


def _asked(units: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Units per known resource name, in the order of the names."""
    found: Counter[str] = Counter()
    for name, count in units:
        if name:
            found[name] += count
    return dict(sorted(found.items()))


def groups(verdicts: Iterable[Verdict]) -> tuple[Group, ...]:
    """Every node, those with the same verdict and numbers together, in the order of the verdicts."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for verdict in verdicts:
        own = re.compile(rf"\bnode {re.escape(verdict.node)}(?![-.\w])")
        why = own.sub("the node", verdict.why)
        key = (why, verdict.reason, verdict.missing, verdict.left, tuple(sorted(verdict.free.items())))
        found.setdefault(key, []).append(verdict.node)
    return tuple(
        Group(why=why, reason=reason, missing=missing, left=left, free=dict(free), nodes=tuple(nodes))
        for (why, reason, missing, left, free), nodes in found.items()
    )


def newest(entries: Iterable[Entry], most: int, known: dict[tuple[str, ...], int]) -> bool:
    """Go back through `entries` (the newest first) and collect in `known` which decisions to explain: `most` incidents
    and `most` binds; of a repeated refusal only the last. True once there are enough of both."""
    incidents = sum(key[0] == "incident" for key in known)
    binds = len(known) - incidents
    for entry in entries:
        key = _key(entry)
        if key is None or key in known:
            continue
        if key[0] == "incident" and incidents < most:
            known[key], incidents = entry.seq, incidents + 1
        elif key[0] == "bind" and binds < most:
            known[key], binds = entry.seq, binds + 1
    return incidents >= most and binds >= most


class _Head(msgspec.Struct):
    action: Action
    subject: str
    reason: str = ""


_HEADS = msgspec.json.Decoder(_Head)


def _key(entry: Entry) -> tuple[str, ...] | None:
    """Identity of an explanation; None for an entry without one."""
    if isinstance(entry.event, events.AdmissionRefused):
        return ("incident", str(entry.seq))
    if not isinstance(entry.event, events.Decided):
        return None
    head = _HEADS.decode(entry.event.decision)
    if head.action is Action.REFUSE_ORDER:
        return ("incident", head.subject, head.reason)
    if head.action in INCIDENTS:
        return ("incident", str(entry.seq))
    return ("bind", str(entry.seq)) if head.action is Action.BIND else None
