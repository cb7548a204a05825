"""Pick the pending orders to reconsider when capacity or budget returns (P1b).

Owns the choice, so that one freed unit does not requeue every order: only the oldest of equal orders, and only those
the change may help. `checks` decides them; the rest are refreshed by `answers`. Before the first lists are complete
nothing is requeued, since everything is afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.core.model.device_state import refused_by_budget
from reconciler.core.model.objects import Device
from reconciler.core.state.pending_orders import Ticket
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.state.work_queue import ItemKind, WorkItem
from reconciler.core.tenancy import tenants

ANSWER_SHARES = 50
"""A class's pending orders are refreshed in this many parts, one a second: within the minute between rounds, and a
start never queues behind more than a fiftieth of them."""


def answers(state: PlacementState, item: WorkItem) -> None:
    """Requeue the next share of a class's pending orders, so that the numbers in their refusals are refreshed
    without a write to each at every change."""
    waiting = state.devices.waiting.of_class(item.name)
    first = waiting.bisect_right((item.when, item.namespace))
    share = -(-len(waiting) // ANSWER_SHARES)
    tickets = waiting[first : first + share]
    for ticket in tickets:
        state.enqueue_order(*ticket)
    if first + share < len(waiting):
        created, uid = tickets[-1]
        state.work_queue.add_at(state.now + 1000, WorkItem(ItemKind.ANSWERS, created, item.name, uid))


def units_returned(state: PlacementState, resource_name: str) -> None:
    """Units of a name are free again: requeue the orders they may satisfy, but none that a budget refused."""
    if not state.synced:
        return
    most = min(state.free_units(resource_name), state.free.largest(resource_name)[1])
    for class_name in state.classes_of(resource_name):
        for _, orders in state.devices.waiting.groups(class_name, most):
            first = _first_settled(state, orders)
            if first is not None and not refused_by_budget(first):
                state.enqueue_order(first.created, first.uid)


def charge_fell(state: PlacementState, namespace: str, resource_name: str) -> None:
    """A namespace is charged less of a name: requeue what a budget refused below the highest bounding tenant (R4)."""
    class_names = state.classes_of(resource_name)
    keys = [tenants.raw_key(resource_name), *(tenants.class_key(name) for name in class_names)]
    bounding = [
        tenant
        for tenant in state.charges.path(namespace)
        if any(key in state.charges.budgets(tenant).limits for key in keys)
    ]
    if bounding:
        _enqueue_below(state, class_names, "", bounding[-1])


def tenant_changed(state: PlacementState, tenant: str) -> None:
    """A tenant's release changed: it bounds everything below it and is charged to everything above."""
    _enqueue_below(state, state.devices.waiting.class_names(), tenant, state.charges.path(tenant)[-1])


def entitlement_changed(state: PlacementState, tenant: str) -> None:
    """A namespace's entitlement changed, which decides for all below it (K5)."""
    _enqueue_below(state, state.devices.waiting.class_names(), tenant, "")


def _enqueue_below(state: PlacementState, class_names: list[str], tenant: str, budgets_of: str) -> None:
    """Every order below `tenant`, and what a budget refused below `budgets_of`; "" is no tenant."""
    if not state.synced:
        return
    paths: dict[str, list[str]] = {}
    for class_name in class_names:
        for namespace, orders in state.devices.waiting.groups(class_name):
            if namespace not in paths:
                paths[namespace] = state.charges.path(namespace)
            below = tenant in paths[namespace]
            if not below and budgets_of not in paths[namespace]:
                continue
            first = _first_settled(state, orders)
            if first is not None and (below or refused_by_budget(first)):
                state.enqueue_order(first.created, first.uid)


def _first_settled(state: PlacementState, orders: Iterable[Ticket]) -> Device | None:
    """The oldest of the equal orders without a write in flight; the others get the same decision."""
    for _, uid in orders:
        device = state.device_by_uid(uid)
        if device is not None and state.settled(device):
            return device
    return None
