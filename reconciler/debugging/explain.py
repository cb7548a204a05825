"""Explain a decision: every node with its units and why it was not chosen, each budget up the tenant tree (J7).

Owns the recomputation of one decision's reasons from the state before it. No explanation is stored: the checks that
decided are run again. Neighbours: `outcomes` reads the entry, `replay` restores the state.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from journal import events
from journal.events import Entry
from journal.store import Journal
from reconciler.core.admission import binds, checks, placement
from reconciler.core.admission.checks import Start
from reconciler.core.admission.placement import SetRequest, Verdict
from reconciler.core.model.objects import DEVICE, Model
from reconciler.core.model.references import TemplateReference
from reconciler.core.state.decisions import Action, Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.tenancy import tenants
from reconciler.core.tenancy.charges import Level
from reconciler.debugging.outcomes import Outcome, decision_outcome, refusal_outcome, refused_start
from reconciler.debugging.replay import decision_of
from reconciler.runtime.restore import state_at


class BudgetLine(Model, frozen=True, kw_only=True):
    """One tenant's budget and charge for one key before the decision, in units; None: no budget of its own."""

    key: str
    tenant: str
    budget: int | None
    charge: int
    left: int | None
    error: str = ""


class Explanation(Outcome, frozen=True, kw_only=True):
    """One decision or refusal with its reasons. `needs`: units per resource name. `holds`: unplaced holds per name,
    as units of one device to their number."""

    needs: dict[str, int] = {}
    nodes: tuple[Verdict, ...] = ()
    budgets: tuple[BudgetLine, ...] = ()
    holds: dict[str, dict[int, int]] = {}


def explain(journal: Journal, seq: int) -> Explanation:
    """The decision or refusal at `seq`, from the state just before it. Raises `LookupError` for another entry."""
    entry = next(iter(journal.read(after=seq - 1, until=seq)), None)
    if entry is None or not isinstance(entry.event, events.Decided | events.AdmissionRefused):
        raise LookupError(f"entry {seq} is no decision")
    return explain_on(state_at(journal, seq=seq - 1), entry)


def explain_on(state: PlacementState, entry: Entry) -> Explanation:
    """As `explain`, on the state just before the entry. Raises `LookupError` for an entry that decides nothing."""
    event = entry.event
    if isinstance(event, events.AdmissionRefused):
        start = refused_start(state, event)
        base = msgspec.structs.replace(_base(refusal_outcome(entry, event)), missing=_missing(state, event, start))
        return _with_reasons(state, base, start)
    if isinstance(event, events.Decided):
        decision = decision_of(event)
        return _decision(state, decision, _base(decision_outcome(entry, decision)))
    raise LookupError(f"entry {entry.seq} is no decision")


def _missing(state: PlacementState, event: events.AdmissionRefused, start: Start) -> int:
    """Units a webhook's refusal was short of, judged again; 0 where this gives another reason."""
    if event.kind == DEVICE.name:
        orders = (checks.check_order(state, start.namespace, t.class_name, t.count) for t in start.templates)
        found = next((refusal for refusal in orders if refusal is not None), None)
    else:
        verdict = checks.judge_start(state, start)
        found = verdict if isinstance(verdict, checks.Refusal) else None
    return found.missing if found is not None and found.reason == event.reason else 0


def _base(outcome: Outcome) -> Explanation:
    return Explanation(**msgspec.structs.asdict(outcome))


def _decision(state: PlacementState, decision: Decision, base: Explanation) -> Explanation:
    if decision.action in (Action.BIND, Action.REFUSE_BIND):
        return _with_reasons(state, base, binds.start_of(state.devices_of_request(decision.request_id)))
    if decision.kind == DEVICE.name:
        namespace, _, name = decision.subject.partition("/")
        device = state.device(namespace, name)
        if device is not None and decision.action in (Action.HOLD, Action.REFUSE_ORDER):
            order = TemplateReference(device.class_name, device.count)
            return _with_reasons(state, base, Start(namespace=namespace, vmi_name="", templates=(order,)))
        if decision.node and device is not None:
            return _on_node(state, base, device.namespace, device.class_name, decision.node)
    return base


def _with_reasons(state: PlacementState, base: Explanation, start: Start) -> Explanation:
    wanted = checks.set_request(state, start)
    known = {name: count for name, count in wanted.needs.items() if name}
    nodes: list[Verdict] = []
    if known:
        nodes = placement.verdicts(
            state, SetRequest(needs=known, constraints=wanted.constraints, devices=wanted.devices)
        )
    new = [(template.class_name, template.count) for template in start.templates]
    return msgspec.structs.replace(
        base,
        needs=known,
        nodes=tuple(nodes),
        budgets=tuple(budget_lines(state, start.namespace, [name for name, _ in new])),
        holds={name: dict(sorted(state.hold_sizes(name).items())) for name in sorted(known)},
    )


def budget_lines(state: PlacementState, namespace: str, class_names: list[str]) -> Iterator[BudgetLine]:
    """Every tenant up the tree for each key that new devices of these classes are charged to."""
    keys = {tenants.class_key(name) for name in class_names}
    keys |= {tenants.raw_key(state.class_resources[name]) for name in class_names if name in state.class_resources}
    for key in sorted(keys):
        for level in state.charges.chain(namespace, key):
            yield _budget_line(str(key), level)


def _budget_line(key: str, level: Level) -> BudgetLine:
    return BudgetLine(
        key=key,
        tenant=level.tenant,
        budget=level.budget,
        charge=level.charge,
        left=level.left,
        error=level.error,
    )


def _on_node(state: PlacementState, base: Explanation, namespace: str, class_name: str, node: str) -> Explanation:
    name = state.class_resources.get(class_name, "")
    units = state.units_on(node, name)
    verdict = Verdict(node=node, free={name: units.free}, why=units.why(node, name))
    return msgspec.structs.replace(base, nodes=(verdict,))
