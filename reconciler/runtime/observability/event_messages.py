"""Kubernetes Events of a decision: on which objects, with which reason and note (N4).

Owns the choice as plain values. Knows nothing of how an Event is sent or counted: that is `event_recorder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from journal.events import AdmissionRefused, Entry
from reconciler.core.model.objects import (
    CLASS,
    DEVICE,
    KINDS,
    RELEASE,
    VM,
    VMI,
    Device,
    GpuClass,
    Kind,
    Object,
    Owner,
)
from reconciler.core.model.start_request import StartRequest
from reconciler.core.state.decisions import Action, Decision, Write
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.tenancy.tenants import Budgets

T = TypeVar("T", Device, GpuClass)

NORMAL = "Normal"
WARNING = "Warning"

UNMATCHED_BUDGET_KEY = "UnmatchedBudgetKey"
UNREADABLE_BUDGET = "UnreadableBudget"
UNREADABLE = "Unreadable"

_MACHINES = "GPUDevice, VirtualMachineInstance, VirtualMachine"

NOTICES: dict[str, tuple[str, str]] = {
    "Held": ("GPUDevice", "an order is accepted, its units are set aside"),
    "Bound": (_MACHINES, "the set of a VM has its node"),
    "Released": ("GPUDevice", "the VM has ended, its units are free again"),
    "Releasing": (_MACHINES, "a deleted device waits for its VM to end"),
    "Lost": (_MACHINES, "the node serves fewer units than are placed there"),
    "Restored": (_MACHINES, "a lost device has its units again"),
    "a reason of a refusal": (
        _MACHINES,
        "an order waits, or a start was refused",
    ),
    "Listed": ("GPUClass", "Permitted: KubeVirt's permittedHostDevices lists the resource name"),
    "NotListed": ("GPUClass", "Permitted: it does not"),
    "Served": ("GPUClass", "Ready: nodes serve the class"),
    "NodesSilent": ("GPUClass", "Ready: the agents or kubelets of some nodes do not report"),
    "NodesUnschedulable": (
        "GPUClass",
        "Ready: KubeVirt starts nothing on some nodes, whose virt-handler may be silent; their units are not free",
    ),
    "NodesDisagree": (
        "GPUClass",
        "Ready: a node's kubelet and agent report different numbers; see the message",
    ),
    "NoNodeServes": ("GPUClass", "not Ready: no node serves the resource name"),
    "NotPermitted": ("GPUClass", "not Ready: as NotListed"),
    "KindMissing": ("GPUClass", "not Ready: KubeVirt's or Flux's kinds are not installed; the message names them"),
    "Deleting": ("GPUClass", "not Ready: the class goes with the last of its devices"),
    "UnmatchedBudgetKey": ("HelmRelease", "a budget key looks like ours and bounds nothing"),
    "UnreadableBudget": ("HelmRelease", "a budget cannot be read; what it bounds is refused"),
    "Unreadable": ("any", "the object is set aside until it is corrected"),
}
"""Reason of a Kubernetes Event to the kinds it is about and what has happened, for the documentation."""


class Regarding(msgspec.Struct, frozen=True):
    """The object an Event is about. `uid` "": not known (a VMI that is about to appear)."""

    kind: Kind
    namespace: str
    name: str
    uid: str = ""


class Notice(msgspec.Struct, frozen=True):
    """One Event to send. `reason` and `action` are CamelCase words, `note` a sentence."""

    regarding: Regarding
    type: str
    action: str
    reason: str
    note: str


_WORDS: dict[Action, tuple[str, str]] = {
    Action.HOLD: (NORMAL, "Held"),
    Action.BIND: (NORMAL, "Bound"),
    Action.RELEASE: (NORMAL, "Released"),
    Action.AWAIT: (NORMAL, "Releasing"),
    Action.LOSE: (WARNING, "Lost"),
    Action.RESTORE: (NORMAL, "Restored"),
    Action.REFUSE_ORDER: (WARNING, ""),
    Action.REFUSE_BIND: (WARNING, ""),
}
"""Type and reason; a refusal carries its own reason. Fences, finalizers and deleted templates send no Event."""


def of_decision(entry: Entry, decision: Decision) -> Iterator[Notice]:
    """The Events of a decision, devices first."""
    if decision.action is Action.PUBLISH_CLASS:
        for write in decision.writes:
            yield from _of_class(entry, _after(write, GpuClass))
        return
    if decision.action not in _WORDS:
        return
    type_, reason = _WORDS[decision.action]
    machines: dict[str, Regarding] = {}
    for write in decision.writes:
        if write.kind != DEVICE.name:
            continue
        device = _after(write, Device)
        if not (device.template and decision.action is Action.REFUSE_BIND):
            about = _regarding(DEVICE, device)
            yield Notice(about, type_, decision.action, reason or decision.reason, decision.public or decision.message)
        if device.attachment is not None:
            name = device.attachment.vmi_name
            machines[name] = Regarding(VMI, device.namespace, name)
    for name in sorted(machines):
        note = decision.public or decision.message
        if decision.action in (Action.LOSE, Action.RESTORE):
            note = f"device {decision.subject.partition('/')[2]}: {note}"
        yield Notice(machines[name], type_, decision.action, reason or decision.reason, note)


def of_refusal(event: AdmissionRefused) -> Iterator[Notice]:
    """The Event of a start that a webhook refused, on its VirtualMachine: there is no VMI."""
    owner = msgspec.json.decode(event.wanted, type=StartRequest).owner
    if event.kind == VMI.name and owner is not None:
        about = Regarding(VM, event.namespace, owner.name, owner.uid)
        yield Notice(about, WARNING, "Refuse", event.reason, event.public or event.message)


def on_virtual_machine(notice: Notice, owner: Owner | None) -> Iterator[Notice]:
    """The same on the VirtualMachine that owns the VMI. A refused start is told there by the webhook that answered
    it (`of_refusal`)."""
    about = notice.regarding
    if about.kind is VMI and owner is not None and notice.action != Action.REFUSE_BIND:
        regarding = Regarding(VM, about.namespace, owner.name, owner.uid)
        yield msgspec.structs.replace(notice, regarding=regarding)


def _of_class(entry: Entry, found: GpuClass) -> Iterator[Notice]:
    """Conditions that changed with this very decision."""
    for condition in found.conditions:
        if condition.last_transition_time == entry.at:
            good = condition.status == "True"
            yield Notice(
                _regarding(CLASS, found),
                NORMAL if good else WARNING,
                f"Set{condition.type}",
                condition.reason,
                condition.message or f"{condition.type} is {condition.status}",
            )


def of_budgets(state: PlacementState, tenant: str) -> list[Notice]:
    """Keys of a tenant's budgets that bound nothing or cannot be read, on its release (C13)."""
    release = state.tenant_release(tenant)
    budgets = state.charges.budgets(tenant)
    if release is None:
        return []
    about = _regarding(RELEASE, release)
    found = [
        Notice(
            about,
            WARNING,
            "ReadBudgets",
            UNMATCHED_BUDGET_KEY,
            f"resourceQuotas[{key!r}] looks like a GPU budget and limits nothing: no GPU class and no GPU resource "
            "of this cluster has that name. Correct its spelling or remove it",
        )
        for key in budgets.unmatched
    ]
    return found + [
        Notice(
            about,
            WARNING,
            "ReadBudgets",
            UNREADABLE_BUDGET,
            f"{problem}. What this budget bounds is refused until it can be read",
        )
        for problem in _problems(budgets)
    ]


def of_unreadable(state: PlacementState) -> list[Notice]:
    """Unreadable objects, except releases, which `of_budgets` covers (R10)."""
    return [
        Notice(
            Regarding(KINDS[found.kind], found.namespace, found.name, found.uid),
            WARNING,
            "Read",
            UNREADABLE,
            f"this object is set aside and counts for nothing until it is corrected: {found.error}",
        )
        for found in state.unreadable.values()
        if found.kind != RELEASE.name
    ]


def _problems(budgets: Budgets) -> list[str]:
    if budgets.error:
        return [budgets.error]
    return [budgets.unreadable[key] for key in sorted(budgets.unreadable)]


def _after(write: Write, model: type[T]) -> T:
    return msgspec.json.decode(write.after, type=model)


def _regarding(kind: Kind, found: Object) -> Regarding:
    return Regarding(kind, found.namespace, found.name, found.uid)
