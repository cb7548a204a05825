"""The placement state of a live cluster, read once: every kind listed, decoded and folded as a replica would.

Owns a one-off read of a cluster for tools without a journal; writes nothing and never leads. History is missing from
it: cards that left a report while their node still advertises them (C27), running grace periods, and how long an
agent's report has been silent by our own clock; the report's own time stands in for the last.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from journal import events
from journal.events import Entry, Event
from reconciler.cluster.port import Cluster, KindMissing
from reconciler.cluster.retry_policies import PLAN
from reconciler.core.fold import fold
from reconciler.core.model import wire
from reconciler.core.model.objects import (
    CLOCK_MARGIN,
    GPU_NODE,
    KINDS,
    RELEASE,
    SETTINGS,
    GpuNode,
    Kind,
    Object,
    Settings,
    SettingsMap,
)
from reconciler.core.model.vocabulary import (
    SETTINGS_CONFIGMAP,
    SETTINGS_MANAGER_USERS,
    SETTINGS_RAW_NAME_POLICY,
    SETTINGS_RESOURCE_NAMES,
    TENANT_KIND,
    TENANT_KIND_LABEL,
    RawNamePolicy,
)
from reconciler.core.state.placement_state import PlacementState


async def read_state(cluster: Cluster, settings: Settings, *, now: int) -> PlacementState:
    """The state at `now` (ms since the epoch). `settings`: the controller's; what the settings ConfigMap in its
    namespace publishes replaces the names, the policy and the manager users (K4). Raises the port's errors, among them
    `KindMissing` for a kind of our own, and `wire.WireError` for an answer that is no list."""
    kinds = list(KINDS.values())
    found = await asyncio.gather(*(_list(cluster, kind, settings.namespace) for kind in kinds))
    lists = dict(zip((kind.name for kind in kinds), found, strict=True))
    state = PlacementState()
    for event in _told(kinds, lists, _published(settings, lists[SETTINGS.name]), now):
        fold(state, Entry(state.seq + 1, 1, now, event))
    return state


async def _list(cluster: Cluster, kind: Kind, settings_namespace: str) -> wire.Listed | None:
    """The whole list; None where a kind that may be absent is (N8)."""
    selection: dict[str, str] = {}
    if kind is SETTINGS:
        selection = {"namespace": settings_namespace, "name": SETTINGS_CONFIGMAP}
    elif kind is RELEASE:
        selection = {"label_selector": f"{TENANT_KIND_LABEL}={TENANT_KIND}"}
    try:
        return wire.decode_list(kind, await PLAN.call(partial(cluster.list, kind, **selection), asyncio.sleep))
    except KindMissing:
        if not kind.foreign:
            raise
        return None


def _published(settings: Settings, found: wire.Listed | None) -> Settings:
    """The settings with what the binder publishes. A policy that means nothing leaves the given one."""
    published = next((one for one in (found.objects if found else ()) if isinstance(one, SettingsMap)), None)
    if published is None:
        return settings
    policy = published.data.get(SETTINGS_RAW_NAME_POLICY, "")
    return msgspec.structs.replace(
        settings,
        resource_names=_names(published.data.get(SETTINGS_RESOURCE_NAMES, "")),
        raw_name_policy=RawNamePolicy(policy) if policy in list(RawNamePolicy) else settings.raw_name_policy,
        manager_users=_names(published.data.get(SETTINGS_MANAGER_USERS, "")),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _told(kinds: list[Kind], lists: dict[str, wire.Listed | None], settings: Settings, now: int) -> list[Event]:
    told: list[Event] = [events.SettingsLoaded(msgspec.Raw(msgspec.json.encode(settings)))]
    for kind in kinds:
        listed = lists[kind.name]
        if listed is None:
            told.append(events.KindListed(kind.name, missing=True))
            continue
        told += [_observed(kind, item) for item in listed.objects]
        told += [_unreadable(kind, item) for item in listed.unreadable]
        told.append(events.KindListed(kind.name))
    reports, stale = lists[GPU_NODE.name], settings.report_stale + CLOCK_MARGIN
    for report in reports.objects if reports else ():
        if isinstance(report, GpuNode) and now - report.reported_at >= stale:
            told.append(events.ReportSilenced(report.name))
    return told


def _observed(kind: Kind, item: Object) -> events.ObjectObserved:
    return events.ObjectObserved(
        kind=kind.name,
        namespace=item.namespace,
        name=item.name,
        uid=item.uid,
        resource_version=item.resource_version,
        source="list",
        object=msgspec.Raw(msgspec.json.encode(item)),
    )


def _unreadable(kind: Kind, item: wire.Unreadable) -> events.ObjectUnreadable:
    return events.ObjectUnreadable(
        kind=kind.name,
        namespace=item.key.namespace,
        name=item.key.name,
        uid=item.uid,
        resource_version=item.resource_version,
        error=item.error,
    )
