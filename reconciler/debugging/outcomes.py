"""Decisions and webhook refusals as one kind of record, for everything that lists or explains them (J7).

Owns the reading of the two journal events that carry an answer. Neighbours: `explain`, `report.incidents`.
"""

from __future__ import annotations

import msgspec

from journal import events
from journal.events import Entry
from reconciler.core.admission.checks import Start
from reconciler.core.model.objects import Model
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.start_request import StartRequest
from reconciler.core.state.decisions import Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging.replay import decision_of


class Outcome(Model, frozen=True, kw_only=True):
    """A decision or a refusal without its reasons. `by`: Binder or Webhook. `at`: ms since the epoch. `unrecorded`:
    more refusals before it that have no entry. `cut`: of a request too large to be recorded whole."""

    seq: int
    at: int
    by: str
    action: str
    subject: str
    reason: str = ""
    message: str = ""
    missing: int = 0
    node: str = ""
    request_id: str = ""
    unrecorded: int = 0
    cut: bool = False


def refusal_outcome(entry: Entry, event: events.AdmissionRefused) -> Outcome:
    """A webhook's refusal."""
    return Outcome(
        seq=entry.seq,
        at=entry.at,
        by="Webhook",
        action="Refuse",
        subject=f"{event.namespace}/{event.name}" if event.namespace else event.name,
        reason=event.reason,
        message=event.message,
        request_id=event.request,
        unrecorded=event.unrecorded,
        cut=event.cut,
    )


def decision_outcome(entry: Entry, decision: Decision) -> Outcome:
    """A decision of the leader."""
    return Outcome(
        seq=entry.seq,
        at=entry.at,
        by="Binder",
        action=decision.action.value,
        subject=decision.subject,
        reason=decision.reason,
        message=decision.message,
        missing=decision.missing,
        node=decision.node,
        request_id=decision.request_id,
    )


def outcome_of(entry: Entry) -> Outcome | None:
    """The outcome an entry records; None for any other event."""
    if isinstance(entry.event, events.AdmissionRefused):
        return refusal_outcome(entry, entry.event)
    if isinstance(entry.event, events.Decided):
        return decision_outcome(entry, decision_of(entry.event))
    return None


def refused_start(state: PlacementState, event: events.AdmissionRefused) -> Start:
    """The start a webhook refused, with those of its devices that `state` knows."""
    wanted = msgspec.json.decode(event.wanted, type=StartRequest)
    found = [state.device(event.namespace, name) for name in wanted.devices]
    return Start(
        namespace=event.namespace,
        vmi_name=event.name,
        devices=tuple(device for device in found if device is not None),
        templates=tuple(TemplateReference(name, count) for name, count in wanted.templates),
        constraints=wanted.constraints,
    )
