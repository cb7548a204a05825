"""What a GPUDevice's phase implies for holding, charging and packing.

Owns one predicate function for each question. Knows nothing of nodes, pods or budgets.
"""

from __future__ import annotations

from reconciler.core.model.objects import Device
from reconciler.core.model.vocabulary import CONDITION_HELD, Phase, Reason

Address = tuple[str, str]
"""(namespace, name)."""


def address(device: Device) -> Address:
    return device.namespace, device.name


def accepted(device: Device) -> bool:
    """The binder accepted the device: it counts against budgets from here on (P1b)."""
    return device.phase not in ("", Phase.PENDING)


def holds_units(device: Device) -> bool:
    """The device occupies units of its node; a Lost device occupies none (P4)."""
    return device.placement is not None and accepted(device) and device.phase != Phase.LOST


def unplaced_hold(device: Device) -> bool:
    """Accepted but not on a node yet: its units are held at class level (R9)."""
    return accepted(device) and device.placement is None and device.phase != Phase.RELEASING


def pending_order(device: Device) -> bool:
    """Waits to be accepted on its own. A template device never does: it is accepted together with its start (B2)."""
    return not accepted(device) and not device.template and device.deleting is None


def refused_by_budget(device: Device) -> bool:
    """The order waits for a budget (R4); free units alone do not unblock it."""
    return any(found.type == CONDITION_HELD and found.reason in _BUDGET_REASONS for found in device.conditions)


_BUDGET_REASONS = (Reason.BUDGET_EXCEEDED, Reason.BUDGET_UNREADABLE)


def answered(device: Device) -> bool:
    """The device's bind request has been answered."""
    return (
        device.bind_request is not None
        and device.bind_answer is not None
        and device.bind_answer.request_id == device.bind_request.id
    )


EPOCH_DIGITS = 9
"""A Lease counts its transitions in 32 bits; a longer number was not written by a leader."""


def epoch_mark(epoch: int, identity: str) -> str:
    """What a leader's fences write on devices: no two terms share it, although two replicas may count the same epoch
    after the Lease was deleted (J5)."""
    return f"{epoch}/{identity}"


def epoch_of(mark: str) -> int:
    """The epoch of a fence's mark, 0 for none."""
    number = mark.partition("/")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= EPOCH_DIGITS else 0
