"""decide(state): the next decision, or None when nothing is left to decide (J2, B2).

Owns the dispatch from work item to decision. Pops items from the work queue; has no other side effects: folding the
decision and the outcomes of its writes adds new items. `binds` decides requests and orders, `repairs` reacts to nodes
and VMIs, `publish` writes what others read, `requeue` picks the orders to reconsider.
"""

from __future__ import annotations

from collections.abc import Callable

from reconciler.core.admission import binds
from reconciler.core.state import requeue
from reconciler.core.state.decisions import Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.state.work_queue import ItemKind, WorkItem
from reconciler.core.upkeep import publish, repairs

ANSWERS: dict[ItemKind, Callable[[PlacementState, WorkItem], Decision | None]] = {
    ItemKind.FENCE: repairs.fence,
    ItemKind.NODE: repairs.node,
    ItemKind.DEVICE: repairs.device,
    ItemKind.REQUEST: binds.request,
    ItemKind.ORDER: binds.order,
    ItemKind.CLASS: publish.gpu_class,
    ItemKind.SETTINGS: publish.settings,
    ItemKind.ANSWERS: requeue.answers,
}


def decide(state: PlacementState) -> Decision | None:
    """The next decision of the leader. None: nothing to decide, not leading, or a kind was never listed (R9)."""
    if not state.leading or not state.synced:
        return None
    while (item := state.work_queue.pop()) is not None:
        if state.unfenced and item.kind is not ItemKind.FENCE:
            state.work_queue.add(item)
            return None
        decision = ANSWERS[item.kind](state, item)
        if decision is not None:
            return decision
    return None
