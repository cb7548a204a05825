"""decide(state): the next decision, or None when nothing is left to decide (J2, B2).

Owns which question has which answer; each answer is a ladder of early returns. Takes questions off the agenda
and changes nothing else: the fold of the decision itself, and of the outcomes of its writes, puts new ones.
`binds` answers requests and orders, `repairs` what nodes and VMIs force, `publish` what is shown to others,
`turns` which orders are looked at again.
"""

from __future__ import annotations

from collections.abc import Callable

from reconciler.core import binds, publish, repairs, turns
from reconciler.core.agenda import Question, Topic
from reconciler.core.decisions import Decision
from reconciler.core.state import PlacementState

ANSWERS: dict[Topic, Callable[[PlacementState, Question], Decision | None]] = {
    Topic.FENCE: repairs.fence,
    Topic.NODE: repairs.node,
    Topic.DEVICE: repairs.device,
    Topic.REQUEST: binds.request,
    Topic.ORDER: binds.order,
    Topic.CLASS: publish.gpu_class,
    Topic.SETTINGS: publish.settings,
    Topic.ANSWERS: turns.answers,
}


def decide(state: PlacementState) -> Decision | None:
    """The next decision of the leader. None: nothing to decide, not leading, or a kind was never listed (R9)."""
    if not state.leading or not state.synced:
        return None
    while (question := state.agenda.take()) is not None:
        if state.unfenced and question.topic is not Topic.FENCE:
            state.agenda.put(question)
            return None
        decision = ANSWERS[question.topic](state, question)
        if decision is not None:
            return decision
    return None
