"""Every refusal, one function each, in one ordered list for webhook, binder, catalog and plan (P1, B2).

A check reads the state and returns a refusal with a stable reason, the missing number and a sentence a tenant can act
on, or None. Knows no caller. Neighbours: `placement` for the node, `charges`
for the budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from reconciler.core.admission import placement
from reconciler.core.admission.placement import SetRequest, Verdict
from reconciler.core.model.device_state import accepted
from reconciler.core.model.objects import Constraints, Device, GpuClass, Model
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.text import counted
from reconciler.core.model.vocabulary import TRUE, Mode, Phase, Reason, TenantDetail
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.tenancy import tenants
from reconciler.core.tenancy.charges import BudgetRefusal, BudgetUnreadable

WAIT = "ask for fewer units, or wait until some come free"
"""What to do about a shortage: a pending order is accepted automatically, a start has to be retried."""


class Refusal(Model, frozen=True, kw_only=True):
    """A refusal. `missing`: units short, 0 where more units would not help. `public`: the message without names and
    numbers of other tenants and nodes, "" where it has none (N9)."""

    reason: Reason
    message: str
    missing: int = 0
    public: str = ""

    def text_for(self, detail: TenantDetail) -> str:
        """The message as a tenant may read it."""
        return self.message if detail is TenantDetail.FULL else self.public or self.message

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.message}"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One order to check: `count` units of a class for a namespace."""

    namespace: str
    class_name: str
    count: int


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start to check: the held devices and the templates of a VMI, and its node constraints.

    `request_id`: of the bind request that is being decided, "" for a webhook's early answer. `made`: the template
    devices that exist already.
    """

    namespace: str
    vmi_name: str
    devices: tuple[Device, ...] = ()
    templates: tuple[TemplateReference, ...] = ()
    constraints: Constraints = Constraints()
    made: tuple[Device, ...] = ()


# One class and count


def unknown_class(state: PlacementState, order: Order) -> Refusal | None:
    if state.gpu_class(order.class_name) is not None:
        return None
    known = ", ".join(found.name for found in state.classes()) or "none"
    return Refusal(
        reason=Reason.UNKNOWN_CLASS,
        message=f"GPU class {order.class_name!r} does not exist; the classes here are: {known}",
    )


def class_deleted(state: PlacementState, order: Order) -> Refusal | None:
    if _class(state, order).deleting is None:
        return None
    return Refusal(
        reason=Reason.CLASS_DELETED,
        message=f"GPU class {order.class_name!r} is being deleted and takes no orders; choose another class",
    )


def count_above_maximum(state: PlacementState, order: Order) -> Refusal | None:
    maximum = _class(state, order).max_count
    if maximum is None or order.count <= maximum:
        return None
    return Refusal(
        reason=Reason.COUNT_ABOVE_MAXIMUM,
        message=f"spec.count is {order.count}, GPU class {order.class_name!r} allows {maximum} in one order",
        missing=order.count - maximum,
    )


def not_permitted(state: PlacementState, order: Order) -> Refusal | None:
    name = _class(state, order).resource_name
    if name in state.permitted_names():
        return None
    if state.permitted is None:
        why = "no KubeVirt object has been read yet"
    else:
        why = "it is not in KubeVirt's permittedHostDevices"
    return Refusal(
        reason=Reason.NOT_PERMITTED,
        message=f"{name} of GPU class {order.class_name!r} is not permitted by KubeVirt ({why}); "
        "ask the hoster to permit it",
    )


def not_entitled(state: PlacementState, order: Order) -> Refusal | None:
    if _class(state, order).mode is not Mode.VGPU:
        return None
    decided_by, entitled = entitlement(state, order.namespace)
    if entitled:
        return None
    where = f"tenant {decided_by} says no" if decided_by else "no tenant upward carries the entitlement"
    return Refusal(
        reason=Reason.NOT_ENTITLED,
        message=f"GPU class {order.class_name!r} is a vGPU class and {order.namespace} is not entitled to vGPUs "
        f"({where}); ask the hoster for the entitlement",
        public=f"GPU class {order.class_name!r} is a vGPU class and {order.namespace} is not entitled to vGPUs; "
        "ask the hoster for the entitlement",
    )


def entitlement(state: PlacementState, namespace: str) -> tuple[str, bool]:
    """(the nearest tenant upward that carries the label, "" for none; whether it allows) (K5)."""
    for tenant in state.charges.path(namespace):
        found = state.namespace(tenant)
        if found is not None and found.entitlement is not None:
            return tenant, found.entitlement == TRUE
    return "", False


def no_free_units(state: PlacementState, order: Order) -> Refusal | None:
    name = _class(state, order).resource_name
    free = state.free_units(name)
    if order.count <= free:
        return None
    detail = "; ".join(state.units_on(node, name).why(node, name) for node in state.totals_of(name).nodes[:3])
    held = state.held(name)
    return Refusal(
        reason=Reason.NO_FREE_UNITS,
        message=f"{units_of(order)} asked for, {max(0, free)} free "
        f"({held} held by orders that run nowhere yet; {detail or f'no node serves {name}'}); {WAIT}",
        missing=order.count - max(0, free),
        public=f"{units_of(order)} asked for, {max(0, free)} free; {WAIT}",
    )


def no_node_fits(state: PlacementState, order: Order) -> Refusal | None:
    name = _class(state, order).resource_name
    node, units = state.free.largest(name)
    if order.count <= units:
        return None
    return Refusal(
        reason=Reason.NO_NODE_FITS,
        message=f"{units_of(order)} asked for at once; no single node has as many free, the most are {units} on "
        f"{node or 'no node'}: split the order",
        missing=order.count - units,
        public=f"{units_of(order)} asked for at once; no single node has as many free, the most are {units}: split the "
        "order",
    )


def holds_would_not_fit(state: PlacementState, order: Order) -> Refusal | None:
    name = _class(state, order).resource_name
    if placement.holds_fit_with(state, name, order.count):
        return None
    return Refusal(
        reason=Reason.HOLDS_WOULD_NOT_FIT,
        message=f"with {units_of(order)} more the orders held already could "
        "not all start any more, since the free units are spread over too many nodes; order fewer units",
    )


def over_budget(state: PlacementState, order: Order) -> Refusal | None:
    return _budget(state, order.namespace, [(order.class_name, order.count)])


def budget_units(state: PlacementState, wanted: Sequence[tuple[str, int]]) -> dict[tenants.BudgetKey, int]:
    """Units per budget key that new (class, count) devices are charged to (K3)."""
    units: dict[tenants.BudgetKey, int] = {}
    for class_name, count in wanted:
        for key in (tenants.class_key(class_name), tenants.raw_key(state.class_resources[class_name])):
            units[key] = units.get(key, 0) + count
    return units


def _budget(state: PlacementState, namespace: str, wanted: Sequence[tuple[str, int]]) -> Refusal | None:
    found = state.charges.check(namespace, budget_units(state, wanted))
    return None if found is None else budget_refusal(found, namespace)


def budget_refusal(found: BudgetRefusal | BudgetUnreadable, own: str) -> Refusal:
    """The charge tree's result as a refusal (R3, R4). `own`: the namespace whose tenant reads it."""
    public = "" if found.tenant == own else found.public(own)
    if isinstance(found, BudgetRefusal):
        return Refusal(reason=Reason.BUDGET_EXCEEDED, message=found.message, missing=found.missing, public=public)
    return Refusal(reason=Reason.BUDGET_UNREADABLE, message=found.message, public=public)


def units_of(order: Order) -> str:
    """The order as text."""
    return f"{counted(order.count, 'unit')} of GPU class {order.class_name!r}"


def _class(state: PlacementState, order: Order) -> GpuClass:
    found = state.gpu_class(order.class_name)
    assert found is not None
    return found


ABOUT_THE_CLASS: tuple[Callable[[PlacementState, Order], Refusal | None], ...] = (
    unknown_class,
    class_deleted,
    count_above_maximum,
    not_permitted,
    not_entitled,
)
"""Checks of a class shared by orders and templates, in order."""

ABOUT_AN_ORDER = (*ABOUT_THE_CLASS, over_budget, no_free_units, no_node_fits, holds_would_not_fit)
"""Every check of an order, in the order they run (P1)."""


def check_order(state: PlacementState, namespace: str, class_name: str, count: int) -> Refusal | None:
    """The first refusal of an order, None for a yes (P1)."""
    order = Order(namespace=namespace, class_name=class_name, count=count)
    for check in ABOUT_AN_ORDER:
        refusal = check(state, order)
        if refusal is not None:
            return refusal
    return None


# One start


def device_unusable(state: PlacementState, start: Start) -> Refusal | None:
    for device in start.devices:
        name = f"GPUDevice {device.namespace}/{device.name}"
        if device.deleting is not None:
            return Refusal(reason=Reason.DEVICE_DELETED, message=f"{name} is being deleted; refer to another device")
        owner = device.attachment.vmi_name if device.attachment is not None else start.vmi_name
        if owner != start.vmi_name:
            return Refusal(
                reason=Reason.DEVICE_ATTACHED,
                message=f"{name} is attached to VMI {owner!r}; stop that VM or refer to another device",
            )
        if device.phase == Phase.LOST:
            return Refusal(
                reason=Reason.DEVICE_LOST,
                message=f"{name} is Lost: its node no longer serves its units; it returns by itself when the node "
                "does, or delete it and order anew",
            )
        if not accepted(device):
            return Refusal(
                reason=Reason.DEVICE_NOT_HELD,
                message=f"{name} is still Pending{_pending_reason(device)}; start the VM once it is Held",
            )
    return None


def _pending_reason(device: Device) -> str:
    for condition in device.conditions:
        if condition.message and condition.status != "True":
            return f" ({condition.reason}: {condition.message})"
    return ""


def class_unusable(state: PlacementState, start: Start) -> Refusal | None:
    for template in start.templates:
        order = Order(namespace=start.namespace, class_name=template.class_name, count=template.count)
        for check in ABOUT_THE_CLASS:
            refusal = check(state, order)
            if refusal is not None:
                return refusal
    for device in start.devices:
        order = Order(namespace=start.namespace, class_name=device.class_name, count=device.count)
        refusal = unknown_class(state, order) or not_permitted(state, order)
        if refusal is not None:
            return refusal
    return None


def templates_over_budget(state: PlacementState, start: Start) -> Refusal | None:
    if not start.templates:
        return None
    return _budget(state, start.namespace, [(found.class_name, found.count) for found in start.templates])


def templates_without_units(state: PlacementState, start: Start) -> Refusal | None:
    wanted: dict[str, list[TemplateReference]] = {}
    for template in start.templates:
        wanted.setdefault(state.class_resources[template.class_name], []).append(template)
    for _, templates in sorted(wanted.items()):
        count = sum(template.count for template in templates)
        order = Order(namespace=start.namespace, class_name=templates[0].class_name, count=count)
        refusal = no_free_units(state, order)
        if refusal is not None:
            return refusal
    return None


ABOUT_A_START: tuple[Callable[[PlacementState, Start], Refusal | None], ...] = (
    device_unusable,
    class_unusable,
    templates_over_budget,
    templates_without_units,
)
"""Every check of a start before a node is looked for, in order."""


def set_request(state: PlacementState, start: Start) -> SetRequest:
    """Units per resource name of a start, with what it asks of its node."""
    needs: dict[str, int] = {}
    counts = [(device.class_name, device.count) for device in start.devices]
    counts += [(template.class_name, template.count) for template in start.templates]
    for class_name, count in counts:
        name = state.class_resources.get(class_name, "")
        needs[name] = needs.get(name, 0) + count
    return SetRequest(needs=needs, constraints=start.constraints, devices=(*start.devices, *start.made))


def judge_start(state: PlacementState, start: Start) -> Verdict | Refusal:
    """The node of a start, or the first refusal; the webhook's early answer and the binder's decision (B2)."""
    for check in ABOUT_A_START:
        refusal = check(state, start)
        if refusal is not None:
            return refusal
    wanted = set_request(state, start)
    chosen = placement.choose(state, wanted)
    return chosen if chosen is not None else no_node(state, wanted)


_SHORTLY = {
    Reason.NO_FREE_UNITS: "none has enough free units",
    Reason.NO_NODE_FITS: "none with enough free units has what the VM asks of its node",
    Reason.HOLDS_WOULD_NOT_FIT: "held orders could not all start any more",
}
"""Why the closest node was rejected, without its name and numbers (N9)."""


def no_node(state: PlacementState, wanted: SetRequest) -> Refusal:
    """Why no node takes the set, as the reason of the closest one."""
    needs = ", ".join(f"{count} {name}" for name, count in sorted(wanted.needs.items()))
    closest = placement.best_loser(state, wanted)
    if closest is None:
        return Refusal(
            reason=Reason.NO_NODE_FITS,
            message=f"no node serves {needs}; choose another class, or ask the hoster",
            missing=sum(wanted.needs.values()),
        )
    way_out = WAIT if closest.missing else "change what the VM asks of its node, or wait until one suits it"
    return Refusal(
        reason=Reason(closest.reason or Reason.NO_NODE_FITS),
        message=f"no single node can take {needs}; the closest: {closest.why}; {way_out}",
        missing=closest.missing,
        public=f"no single node can take {needs}: {_SHORTLY[Reason(closest.reason or Reason.NO_NODE_FITS)]}; {way_out}",
    )


def check_start(
    state: PlacementState,
    namespace: str,
    vmi_name: str,
    devices: Sequence[Device],
    templates: Sequence[TemplateReference],
    constraints: Constraints,
) -> Refusal | None:
    """The webhook's early answer to a start, None if accepted; never authoritative (B2)."""
    verdict = judge_start(
        state,
        Start(
            namespace=namespace,
            vmi_name=vmi_name,
            devices=tuple(devices),
            templates=tuple(templates),
            constraints=constraints,
        ),
    )
    return verdict if isinstance(verdict, Refusal) else None
