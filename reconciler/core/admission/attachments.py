"""Tracks which VMI each attachment was made for and when it was first seen.

No object carries either fact: VMI names can be reused and other machines' clocks cannot be trusted. `repairs` decides
when an attachment ends.
"""

from __future__ import annotations

from reconciler.core.model.objects import Device, Vmi
from reconciler.core.state.placement_state import PlacementState

OLD_VMI_MILLISECONDS = 10_000
"""A VMI created this long before a start requested its devices is an earlier one of that name whose end has not been
observed yet. Above clock skew, below the time a VM takes to stop."""


def note_vmi(state: PlacementState, device: Device, vmi: Vmi) -> None:
    """Record which VMI the attachment's request was made for: the first of that name to appear. A later one
    under the same name inherits nothing (P5, R10)."""
    if device.attachment is None or vmi.final:
        return
    if vmi.created < device.attachment.since - OLD_VMI_MILLISECONDS:
        return
    request, _, _ = state.seen_vmis.get(device.uid, "").partition("/")
    if request != device.attachment.request_id or not state.seen_vmis.get(device.uid):
        state.seen_vmis[device.uid] = f"{device.attachment.request_id}/{vmi.uid}"


def note_attachment(state: PlacementState, device: Device) -> None:
    """When an attachment was first seen: its grace period runs on our clock, not on the webhook's (P5)."""
    if device.attachment is None and not device.template:
        state.attached_since.pop(device.uid, None)
        return
    request = device.attachment.request_id if device.attachment is not None else ""
    if state.attached_since.get(device.uid, (None, 0))[0] != request:
        state.attached_since[device.uid] = (request, state.now)
