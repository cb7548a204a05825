"""Plan a request: the node a start would get, whether an order would be held, or every reason why not.

Owns the completeness of the answer. The binder stops at the first refusal; a plan runs all checks and the placement, so
that nobody removes one obstacle only to meet the next. The first blocker is the refusal the binder would give; there is
none exactly when it would accept. Neighbours: `drain` (a whole node), `what_if` (states that have not happened),
`explain` (what did happen).

A plan cannot know the devices and pods created between it and the real request, nor the memory overhead KubeVirt adds
for the launcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from reconciler.core.admission import checks, placement
from reconciler.core.admission.checks import ABOUT_A_START, ABOUT_AN_ORDER, ABOUT_THE_CLASS, Order, Refusal, Start
from reconciler.core.admission.placement import SetRequest, Verdict
from reconciler.core.model.objects import Device, Model
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.text import are, counted
from reconciler.core.model.vocabulary import Reason
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging import explain


class Outcome(StrEnum):
    """The predicted outcome."""

    BOUND = "Bound"
    HELD = "Held"
    BLOCKED = "Blocked"


class Blocker(Model, frozen=True, kw_only=True):
    """One reason why not. `missing`: units short, 0 where more units would not help."""

    reason: str
    message: str
    missing: int = 0


class Plan(Model, frozen=True, kw_only=True):
    """The answer for one manifest. `subject`: NAMESPACE/NAME. `node`: of a start that would be bound. `needs`: units
    per resource name. `nodes`: every node against the set, the best first. `budgets`: every tenant up the tree for
    each key that something new is charged to. `notes`: the assumptions made."""

    kind: str
    subject: str
    outcome: Outcome
    node: str = ""
    needs: dict[str, int] = {}
    blockers: tuple[Blocker, ...] = ()
    nodes: tuple[Verdict, ...] = ()
    budgets: tuple[explain.BudgetLine, ...] = ()
    notes: tuple[str, ...] = ()


def plan_start(
    state: PlacementState,
    kind: str,
    start: Start,
    *,
    refused: Sequence[Refusal] = (),
    notes: Sequence[str] = (),
) -> Plan:
    """The binder's answer to a start on this state. `refused`: the webhook's own refusals before that;
    `kind`: of the manifest."""
    found = [*refused, *start_refusals(state, start), *_releasing(start.devices)]
    wanted = _known(checks.set_request(state, start))
    chosen = placement.choose(state, wanted) if not found else None
    return Plan(
        kind=kind,
        subject=f"{start.namespace}/{start.vmi_name}",
        outcome=Outcome.BLOCKED if chosen is None else Outcome.BOUND,
        node="" if chosen is None else chosen.node,
        needs=wanted.needs,
        blockers=blockers(found),
        nodes=tuple(placement.verdicts(state, wanted)) if wanted.needs else (),
        budgets=tuple(explain.budget_lines(state, start.namespace, [t.class_name for t in start.templates])),
        notes=tuple(notes),
    )


def plan_order(
    state: PlacementState,
    kind: str,
    name: str,
    order: Order,
    *,
    refused: Sequence[Refusal] = (),
    notes: Sequence[str] = (),
) -> Plan:
    """Whether the binder would hold an order on this state (P1b). `refused`: as in `plan_start`."""
    known = state.device(order.namespace, name)
    found = [*refused, *_releasing([known] if known is not None else []), *order_refusals(state, order)]
    template = TemplateReference(order.class_name, order.count)
    asked = Start(namespace=order.namespace, vmi_name="", templates=(template,))
    wanted = _known(checks.set_request(state, asked))
    return Plan(
        kind=kind,
        subject=f"{order.namespace}/{name}",
        outcome=Outcome.BLOCKED if found else Outcome.HELD,
        needs=wanted.needs,
        blockers=blockers(found),
        nodes=tuple(placement.verdicts(state, wanted)) if wanted.needs else (),
        budgets=tuple(explain.budget_lines(state, order.namespace, [order.class_name])),
        notes=tuple(notes),
    )


def _releasing(devices: Iterable[Device]) -> Iterator[Refusal]:
    """What a deleted device that holds or held units still waits for (O2)."""
    for device in devices:
        if device.deleting is None:
            continue
        message = f"GPUDevice {device.namespace}/{device.name} is Releasing: "
        if device.placement is None or device.attachment is None:
            message += "it goes when its VM stops"
        else:
            units, node = counted(device.placement.units, "unit"), device.placement.node
            message += (
                f"its {units} on node {node} {are(device.placement.units)} taken until VMI "
                f"{device.attachment.vmi_name} has ended"
            )
        yield Refusal(reason=Reason.DEVICE_DELETED, message=message)


def _known(wanted: SetRequest) -> SetRequest:
    """The set without units of unknown resource names, which no node can be checked for."""
    return msgspec.structs.replace(wanted, needs={name: n for name, n in wanted.needs.items() if name})


def blockers(found: Iterable[Refusal]) -> tuple[Blocker, ...]:
    """Each refusal once, in order."""
    return tuple(
        Blocker(reason=refusal.reason.value, message=refusal.message, missing=refusal.missing)
        for refusal in dict.fromkeys(found)
    )


# Every refusal


def order_refusals(state: PlacementState, order: Order) -> list[Refusal]:
    """Every failing check of an order, in the order they run (P1); an unknown class ends the list."""
    found: list[Refusal] = []
    for check in ABOUT_AN_ORDER:
        refusal = check(state, order)
        if refusal is not None:
            found.append(refusal)
            if check is checks.unknown_class:
                break
            if check is checks.over_budget:
                found += _budget_refusals(state, order.namespace, [(order.class_name, order.count)])
    return _once(found)


def start_refusals(state: PlacementState, start: Start) -> list[Refusal]:
    """Every failing check of a start, in the order they run, and the lack of a node at the end. Empty where
    `checks.judge_start` gives a node; else its refusal is the first."""
    found: list[Refusal] = []
    whole = _of_known_classes(state, start)
    for check in ABOUT_A_START:
        if check is checks.class_unusable:
            found += _class_refusals(state, start)
        elif check is checks.templates_over_budget:
            first = check(state, whole)
            if first is not None:
                wanted = [(template.class_name, template.count) for template in whole.templates]
                found += [first, *_budget_refusals(state, start.namespace, wanted)]
        else:
            parts = (whole, *_parts(whole))
            found += [refusal for part in parts if (refusal := check(state, part)) is not None]
    set_request = _known(checks.set_request(state, start))
    if set_request.needs and placement.choose(state, set_request) is None:
        found.append(checks.no_node(state, set_request))
    return _once(found)


def _of_known_classes(state: PlacementState, start: Start) -> Start:
    known = tuple(t for t in start.templates if state.gpu_class(t.class_name) is not None)
    return msgspec.structs.replace(start, templates=known)


def _parts(start: Start) -> Iterator[Start]:
    """The start's devices one by one, and its templates class by class."""
    for device in start.devices:
        yield msgspec.structs.replace(start, devices=(device,), templates=())
    for class_name in sorted({template.class_name for template in start.templates}):
        templates = tuple(t for t in start.templates if t.class_name == class_name)
        yield msgspec.structs.replace(start, devices=(), templates=templates)


def _class_refusals(state: PlacementState, start: Start) -> list[Refusal]:
    """Every refusal of `checks.class_unusable`, not just the first."""
    first = checks.class_unusable(state, start)
    found = [] if first is None else [first]
    for template in start.templates:
        order = Order(namespace=start.namespace, class_name=template.class_name, count=template.count)
        for check in ABOUT_THE_CLASS:
            refusal = check(state, order)
            if refusal is not None:
                found.append(refusal)
                if check is checks.unknown_class:
                    break
    for device in start.devices:
        refusal = checks.class_unusable(state, msgspec.structs.replace(start, devices=(device,), templates=()))
        if refusal is not None:
            found.append(refusal)
    return found


def _budget_refusals(state: PlacementState, namespace: str, wanted: list[tuple[str, int]]) -> list[Refusal]:
    units = checks.budget_units(state, wanted)
    return [checks.budget_refusal(found, namespace) for found in state.charges.refusals(namespace, units)]


def _once(refusals: list[Refusal]) -> list[Refusal]:
    return list(dict.fromkeys(refusals))
