"""The parts of a GPUDevice's status as the product writes them, shared by the binder and the webhooks.

Bodies are parts of JSON merge patches: an absent optional field becomes an explicit null, so that no field of an
older value remains in a new one. Does not know who writes which part. `decode_gpu` decodes what this encodes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reconciler.core.model import objects
from reconciler.core.model.wire_base import from_ms


def _time(time: int) -> str | None:
    return from_ms(time) if time else None


def attachment_body(attachment: objects.Attachment | None) -> dict[str, Any] | None:
    """`status.attachment` as a merge patch; None removes it."""
    if attachment is None:
        return None
    return {
        "vmiName": attachment.vmi_name,
        "requestID": attachment.request_id or None,
        "since": _time(attachment.since),
    }


def constraints_body(constraints: objects.Constraints, replaced: objects.Constraints | None = None) -> dict[str, Any]:
    """`bindRequest.constraints` as a merge patch. `replaced`: the constraints stored now; their
    selector's other labels are removed, since a merge patch adds to a map."""
    gone = dict.fromkeys(replaced.node_selector if replaced is not None else ())
    terms = constraints.terms
    return {
        "nodeSelector": gone | constraints.node_selector or None,
        "nodeAffinity": None if terms is None else {"nodeSelectorTerms": msgspec.to_builtins(terms)},
        "tolerations": msgspec.to_builtins(constraints.tolerations) or None,
        "memoryBytes": constraints.memory,
    }


def request_body(
    request: objects.BindRequest | None, replaced: objects.BindRequest | None = None
) -> dict[str, Any] | None:
    """`status.bindRequest` as a merge patch that replaces `replaced`; None removes it."""
    if request is None:
        return None
    return {
        "id": request.id,
        "vmiName": request.vmi_name,
        "setSize": request.set_size,
        "constraints": constraints_body(request.constraints, None if replaced is None else replaced.constraints),
        "requestedAt": _time(request.requested_at),
    }


def answer_body(answer: objects.BindAnswer | None) -> dict[str, Any] | None:
    """`status.bindAnswer` as a merge patch; None removes it."""
    if answer is None:
        return None
    return {
        "requestID": answer.request_id,
        "outcome": answer.outcome,
        "reason": answer.reason or None,
        "message": answer.message or None,
        "node": answer.node or None,
        "answeredAt": _time(answer.answered_at),
    }


def placement_body(placement: objects.Placement | None) -> dict[str, Any] | None:
    """`status.placement` as a merge patch; None removes it."""
    if placement is None:
        return None
    return {
        "node": placement.node,
        "units": placement.units,
        "since": _time(placement.since),
    }


def condition_body(condition: objects.Condition) -> dict[str, Any]:
    """One entry of `status.conditions`; a merge patch replaces the whole list."""
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "observedGeneration": condition.observed_generation,
        "lastTransitionTime": from_ms(condition.last_transition_time),
    }
