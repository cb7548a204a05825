"""Derives a device's usage from its status: what it uses, since when, and each transition (U1).

All times come from the device itself (`phaseSince`, `placement.since`), so that every replica's journal agrees. Owns
the transitions between two observed values; `meter` keeps the timeline.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from reconciler.core.metering.intervals import Moment, Span, UsageState, What, between
from reconciler.core.model.device_state import accepted
from reconciler.core.model.objects import DEVICE, Device
from reconciler.core.model.vocabulary import CONDITION_HELD, Phase


class Attributes(NamedTuple):
    """Attributes of a device's usage that its status does not carry."""

    resource_name: str
    tenants: tuple[str, ...]


class Start(NamedTuple):
    """What a device is attached for. `claimed`: the VMI has appeared, or there is no attachment. `template`: the device
    was made for this start."""

    claimed: bool
    template: bool


class Step(NamedTuple):
    """From `moment` on the device uses `what`; None: nothing."""

    moment: Moment
    what: What | None


def slim(device: Device) -> Device:
    """The fields of a device that its usage depends on."""
    return Device(
        name=device.name,
        namespace=device.namespace,
        uid=device.uid,
        created=device.created,
        deleting=device.deleting,
        class_name=device.class_name,
        count=device.count,
        phase=device.phase,
        phase_since=device.phase_since or _since_conditions(device),
        attachment=device.attachment,
        placement=device.placement,
    )


def _since_conditions(device: Device) -> int:
    """When a device without `phaseSince` was accepted, from its conditions."""
    held = next((found for found in device.conditions if found.type == CONDITION_HELD), None)
    return 0 if held is None or not accepted(device) else held.last_transition_time


def steps(
    before: Device | None, span: Span | None, now: Device, filed: Attributes, at: int, gap: int, start: Start
) -> list[Step]:
    """Usage changes from a device's new value. `before`, `span`: the last value and its open span. `at`: the time
    of the entry, `gap`: until when the journal was unbroken (ms)."""
    state = _state(now, start)
    if state is None:
        return [] if span is None else [Step(_moment_of(now, now.phase_since, at, span), None)]
    what = _what(now, state, span, filed)
    since = _since(now, state)
    made: list[Step] = []
    if span is not None and span.what.state is UsageState.HELD and state is UsageState.LOST and now.placement:
        placed = Moment(now.placement.since).not_before(span.start.at)
        made.append(Step(placed, _with_state(what, UsageState.BOUND)))
    if span is not None and span.what == what:
        if before is None or state is UsageState.HELD or not _anew(before, now):
            return []
        return [Step(between(since, max(span.start.at, gap), since), what)]
    if span is not None and not made and not _direct(span.what, what):
        return [Step(between(since, max(span.start.at, gap), since), what)]
    return [*made, Step(_moment_of(now, since, at, span), what)]


def _state(device: Device, start: Start) -> UsageState | None:
    """What a device's units are doing. A start whose VMI has not appeared uses nothing (W7): a held device stays held,
    a template of the start is nobody's. Once it appears, its use is dated back to the placement."""
    if not accepted(device):
        return None
    if device.placement is not None and not start.claimed:
        return None if start.template else UsageState.HELD
    if device.phase == Phase.LOST:
        return UsageState.LOST
    if device.phase == Phase.BOUND:
        return UsageState.BOUND
    if device.phase == Phase.RELEASING:
        return None if device.placement is None else UsageState.BOUND
    return UsageState.HELD


def _since(device: Device, state: UsageState) -> int:
    placed = device.placement.since if device.placement is not None else 0
    if state is UsageState.BOUND:
        return placed if device.phase == Phase.RELEASING else max(device.phase_since, placed)
    return device.phase_since


def _moment_of(device: Device, since: int, at: int, span: Span | None) -> Moment:
    """The time the device reports; else the time of the observation with its bounds."""
    if since:
        return Moment(since)
    return between(at, device.created if span is None else span.start.at, at)


def _what(device: Device, state: UsageState, span: Span | None, filed: Attributes) -> What:
    """A hold has no VMI and no node: an unanswered attachment uses nothing. A placed device keeps
    its VMI until the binder has released it."""
    placed = state is not UsageState.HELD
    vmi = device.attachment.vmi_name if device.attachment is not None else ""
    if placed and not vmi and span is not None:
        vmi = span.what.vmi
    placement = device.placement if placed else None
    return What(
        kind=DEVICE.name,
        namespace=device.namespace,
        name=device.name,
        uid=device.uid,
        state=state,
        resource_name=filed.resource_name,
        units=placement.units if placement is not None else device.count,
        class_name=device.class_name,
        vmi=vmi if placed else "",
        node=placement.node if placement is not None else "",
        tenants=filed.tenants,
    )


def _with_state(what: What, state: UsageState) -> What:
    return msgspec.structs.replace(what, state=state)


def _anew(before: Device, now: Device) -> bool:
    """The device returned to its previous node; what happened in between was not observed. A hold that begins anew may
    have been attached in between and never bound, which is one hold."""
    placed = now.phase in (Phase.BOUND, Phase.LOST)
    return placed and before.phase == now.phase and 0 < before.phase_since < now.phase_since


def _direct(before: What, after: What) -> bool:
    """Whether one step of the binder leads from one to the other; otherwise a step was not observed."""
    if UsageState.HELD in (before.state, after.state):
        return True
    if before.vmi != after.vmi or before.state is after.state is UsageState.LOST:
        return False
    return before.node == after.node or before.state is after.state


def covers_since(before: Device | None, now: Device, at: int) -> Moment | None:
    """Since when the device covers another VMI's launchers than before, those of another node first, or none any more;
    None: no change."""
    old, new = _covered(before), _covered(now)
    if old == new:
        return None
    if new is None:
        return Moment(now.phase_since or at)
    if old is not None and old[:2] == new[:2]:
        return Moment((now.placement.since if now.placement is not None else now.phase_since) or at)
    attached = now.attachment.since if now.attachment is not None else 0
    return Moment(max(attached, 0 if old is not None else now.phase_since) or at)


def _covered(device: Device | None) -> tuple[str, int, str] | None:
    if device is None or device.attachment is None or not accepted(device):
        return None
    return device.attachment.vmi_name, device.count, device.placement.node if device.placement is not None else ""
