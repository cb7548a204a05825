"""Publish class status and the settings ConfigMap, and finish class deletion (O1, P6, K4).

Owns the published numbers. They come from the accounts that decide, and are restored when edited by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reconciler.core.admission.binds import with_condition
from reconciler.core.model import resource_names, status_patches
from reconciler.core.model.objects import CLASS, SETTINGS, ClassUnits, GpuClass, LargestFree, SettingsMap
from reconciler.core.model.text import counted
from reconciler.core.model.vocabulary import (
    CLASS_FINALIZER,
    CONDITION_PERMITTED,
    CONDITION_READY,
    SCHEDULABLE_LABEL,
    SETTINGS_CONFIGMAP,
    SETTINGS_MANAGER_USERS,
    SETTINGS_RAW_NAME_POLICY,
    SETTINGS_RESOURCE_NAMES,
    TenantDetail,
)
from reconciler.core.state.decisions import Action, Decision, Verb, Write, write
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.state.work_queue import WorkItem


def gpu_class(state: PlacementState, item: WorkItem) -> Decision | None:
    """Add a class's finalizer, remove it once no device uses the class, or publish its numbers."""
    found = state.gpu_class(item.name)
    if found is None or not state.writable(found.uid):
        return None
    if found.deleting is not None and not state.devices.by_class.get(found.name):
        return _finalize(found)
    if found.deleting is None and CLASS_FINALIZER not in found.finalizers:
        finalizers = (*found.finalizers, CLASS_FINALIZER)
        return _finalizers(found, finalizers, Action.GUARD, "the class stays while devices use it")
    after = class_status(state, found)
    if after == found:
        return None
    full = state.settings.tenant_detail is TenantDetail.FULL
    body = {
        "observedGeneration": after.observed_generation,
        "units": _all_fields(after.units, () if full else TENANTS_NUMBERS),
        "largestFree": _all_fields(after.largest_free, () if full else ("node",)),
        "conditions": [status_patches.condition_body(condition) for condition in after.conditions],
    }
    return Decision(
        action=Action.PUBLISH_CLASS,
        kind=CLASS.name,
        subject=found.name,
        message=_numbers(class_units(state, found)),
        writes=(write(CLASS, found, after, Verb.STATUS, {"status": body}),),
    )


TENANTS_NUMBERS = ("bound", "held", "raw")
"""Fields of a class's units that add up what tenants use; left out where tenants may read only their own (N9)."""


def _all_fields(value: ClassUnits | LargestFree | None, hidden: Sequence[str]) -> dict[str, object] | None:
    """Every field, zeros included: a number that dropped to 0 has to be written. Null for the `hidden`."""
    if value is None:
        return None
    return {name: None if name in hidden else getattr(value, name) for name in value.__struct_fields__}


def _numbers(units: ClassUnits) -> str:
    return f"served {units.served}, bound {units.bound}, held {units.held}, raw {units.raw}, free {units.free}"


def class_units(state: PlacementState, found: GpuClass) -> ClassUnits:
    """The numbers of a class over all nodes and tenants."""
    totals = state.totals_of(found.resource_name)
    return ClassUnits(
        served=totals.served,
        bound=state.devices.bound[found.name],
        held=state.devices.held(found.name),
        raw=totals.raw,
        free=max(0, state.free_units(found.resource_name)),
    )


def class_status(state: PlacementState, found: GpuClass) -> GpuClass:
    """The class with its current status; tenants read it (N9)."""
    name = found.resource_name
    full = state.settings.tenant_detail is TenantDetail.FULL
    units = class_units(state, found)
    node, largest = state.free.largest(name)
    permitted = name in state.permitted_names()
    conditions = with_condition(
        found.conditions,
        CONDITION_PERMITTED,
        permitted,
        "Listed" if permitted else "NotListed",
        f"{name} is {'' if permitted else 'not '}in KubeVirt's permittedHostDevices",
        found.generation,
        state.now,
    )
    ready, reason, message = _readiness(state, found, units, permitted)
    conditions = with_condition(conditions, CONDITION_READY, ready, reason, message, found.generation, state.now)
    return msgspec.structs.replace(
        found,
        observed_generation=found.generation,
        units=units if full else ClassUnits(served=units.served, free=units.free),
        largest_free=LargestFree(node=node if full else "", units=largest),
        conditions=conditions,
    )


def _readiness(state: PlacementState, found: GpuClass, units: ClassUnits, permitted: bool) -> tuple[bool, str, str]:
    totals = state.totals_of(found.resource_name)
    public = state.settings.public
    if found.deleting is not None:
        users = len(state.devices.by_class.get(found.name, ()))
        message = f"{counted(users, 'device')} still in use; the class goes with the last of them"
        return False, "Deleting", public("devices are still in use; the class goes with the last of them") or message
    missing = sorted(state.missing)
    if missing:
        return False, "KindMissing", f"not installed in this cluster: {', '.join(missing)}"
    if not permitted:
        return False, "NotPermitted", f"KubeVirt does not permit {found.resource_name}"
    if not units.served:
        return False, "NoNodeServes", f"no node serves {found.resource_name}"
    if totals.silent:
        message = f"{counted(len(totals.silent), 'node')} silent, among them {totals.silent[0]}"
        return True, "NodesSilent", public("some nodes are silent") or message
    if totals.unschedulable:
        message = (
            f"KubeVirt starts nothing on {counted(len(totals.unschedulable), 'node')} not labelled "
            f"{SCHEDULABLE_LABEL}=true, among them {totals.unschedulable[0]}; their units are not free"
        )
        return True, "NodesUnschedulable", public("KubeVirt starts nothing on some nodes") or message
    if totals.disagreeing:
        node = totals.disagreeing[0]
        entry = state.units_on(node, found.resource_name)
        message = f"node {node} advertises {entry.allocatable} and its agent reports {entry.served}"
        return True, "NodesDisagree", public("a node and its agent report different numbers") or message
    return True, "Served", public("nodes serve the class") or f"served by {counted(len(totals.nodes), 'node')}"


def _finalize(found: GpuClass) -> Decision | None:
    if CLASS_FINALIZER not in found.finalizers:
        return None
    rest = tuple(name for name in found.finalizers if name != CLASS_FINALIZER)
    return _finalizers(found, rest, Action.FINALIZE, "no device uses the class")


def _finalizers(found: GpuClass, finalizers: tuple[str, ...], action: Action, why: str) -> Decision:
    after = msgspec.structs.replace(found, finalizers=finalizers)
    body = {"metadata": {"finalizers": list(finalizers)}}
    return Decision(
        action=action,
        kind=CLASS.name,
        subject=found.name,
        message=why,
        writes=(write(CLASS, found, after, Verb.PATCH, body),),
    )


# Settings


def settings_data(state: PlacementState) -> dict[str, str]:
    """The settings published for the raw-name policy (K4, R1)."""
    return {
        SETTINGS_RESOURCE_NAMES: resource_names.published(sorted(state.effective_names)),
        SETTINGS_RAW_NAME_POLICY: state.settings.raw_name_policy.value,
        SETTINGS_MANAGER_USERS: ",".join(sorted(state.settings.manager_users)),
    }


def settings(state: PlacementState, item: WorkItem) -> Decision | None:
    """Write the ConfigMap if it is missing or differs."""
    wanted = settings_data(state)
    found = state.settings_map(SETTINGS_CONFIGMAP)
    namespace = state.settings.namespace
    if found is None:
        after = SettingsMap(name=SETTINGS_CONFIGMAP, namespace=namespace, uid="", data=wanted)
        planned = Write(
            kind=SETTINGS.name,
            namespace=namespace,
            name=SETTINGS_CONFIGMAP,
            uid="",
            resource_version="",
            verb=Verb.CREATE,
            body={"data": wanted},
            after=msgspec.Raw(msgspec.json.encode(after)),
        )
        set_aside = (SETTINGS.name, namespace, SETTINGS_CONFIGMAP) in state.unreadable
        if set_aside or not state.writable(planned.key):
            return None
    else:
        if not state.writable(found.uid) or found.data == wanted:
            return None
        surplus = dict.fromkeys(sorted(set(found.data) - set(wanted)))
        planned = write(
            SETTINGS,
            found,
            msgspec.structs.replace(found, data=wanted),
            Verb.PATCH,
            {"data": {**wanted, **surplus}},
        )
    return Decision(
        action=Action.PUBLISH_SETTINGS,
        kind=SETTINGS.name,
        subject=f"{namespace}/{SETTINGS_CONFIGMAP}",
        message=f"{len(state.effective_names)} GPU resource names, policy {wanted[SETTINGS_RAW_NAME_POLICY]}",
        writes=(planned,),
    )
