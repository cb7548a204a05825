"""Serialize and restore the folded state (J6).

Owns the choice of stored facts; indexes are recomputed. A restored state decides as the exported one would have: the
work queue and running grace periods are stored too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reconciler.core import index_updates
from reconciler.core.fold import decode_object
from reconciler.core.metering.meter import Memory
from reconciler.core.model.objects import KINDS, Model, PermittedDevice, Settings
from reconciler.core.state.placement_state import PendingWrite, PlacementState, Unreadable
from reconciler.core.state.work_queue import WorkItem

SCHEMA = 1


class Snapshot(Model, frozen=True, kw_only=True):
    """The stored facts. `objects`: kind to model objects, assumed writes included."""

    schema: int = SCHEMA
    seq: int
    now: int
    settings: Settings
    objects: dict[str, list[msgspec.Raw]]
    listed: list[str]
    missing: list[str]
    unreadable: list[Unreadable]
    silent: list[str]
    unheard: list[str] = []
    permitted: tuple[PermittedDevice, ...] | None
    identity: str
    epoch: int | None
    mark: str = ""
    last_epoch: int = 0
    unfenced: list[str]
    pending: dict[str, PendingWrite]
    pending_keys: dict[str, tuple[str, str, str, str]]
    rejections: dict[str, int]
    stale: list[str]
    own_versions: dict[str, str]
    unfenceable: list[str] = []
    attached_since: dict[str, tuple[str, int]] = {}
    seen_vmis: dict[str, str]
    short_since: list[tuple[str, str, int]]
    vanished: dict[str, dict[str, int]] = msgspec.field(name="ghosts")
    spoken: dict[str, list[str]]
    class_resources: dict[str, str]
    work_items: list[tuple[int, int, str, str]] = msgspec.field(name="questions")
    deadlines: list[tuple[int, tuple[int, int, str, str]]]
    usage: Memory | None = None


class SnapshotError(ValueError):
    """The bytes are no snapshot of a schema this build reads."""


def export(state: PlacementState) -> bytes:
    """The state's facts as JSON."""
    work_items, deadlines = state.work_queue.export()
    return msgspec.json.encode(
        Snapshot(
            seq=state.seq,
            now=state.now,
            settings=state.settings,
            objects={
                kind: [msgspec.Raw(msgspec.json.encode(items[key])) for key in sorted(items)]
                for kind, items in state.objects.items()
            },
            listed=sorted(state.listed),
            missing=sorted(state.missing),
            unreadable=[state.unreadable[key] for key in sorted(state.unreadable)],
            silent=sorted(state.silent),
            unheard=sorted(state.unheard) if state.settings.report_margin else [],
            permitted=state.permitted,
            identity=state.identity,
            epoch=state.epoch,
            mark=state.mark if state.last_epoch else "",
            last_epoch=state.last_epoch,
            unfenced=sorted(state.unfenced),
            pending=dict(sorted(state.pending.items())),
            pending_keys=dict(sorted(state.pending_keys.items())),
            rejections=dict(sorted(state.rejections.items())),
            stale=sorted(state.stale),
            own_versions=dict(sorted(state.own_versions.items())),
            unfenceable=sorted(state.unfenceable),
            attached_since=dict(sorted(state.attached_since.items())),
            seen_vmis=dict(sorted(state.seen_vmis.items())),
            short_since=[(node, name, at) for (node, name), at in sorted(state.short_since.items())],
            vanished={node: dict(sorted(found.items())) for node, found in sorted(state.vanished.items())},
            spoken={node: sorted(found) for node, found in sorted(state.spoken.items())},
            class_resources=dict(sorted(state.class_resources.items())),
            work_items=[_plain(item) for item in work_items],
            deadlines=[(at, _plain(item)) for at, item in deadlines],
            usage=state.meter.export(),
        )
    )


def _plain(item: WorkItem) -> tuple[int, int, str, str]:
    return int(item.kind), item.when, item.name, item.namespace


def restore(payload: bytes) -> PlacementState:
    """The state a snapshot holds. Raises `SnapshotError`."""
    try:
        found = msgspec.json.decode(payload, type=Snapshot)
    except msgspec.DecodeError as error:
        raise SnapshotError(f"not a snapshot this build reads: {error}") from error
    if found.schema != SCHEMA:
        raise SnapshotError(f"snapshot schema {found.schema} is not {SCHEMA}")
    state = PlacementState()
    state.now, state.seq, state.settings = found.now, found.seq, found.settings
    state.permitted, state.identity = found.permitted, found.identity
    state.silent = set(found.silent)
    state.class_resources = dict(found.class_resources)
    for kind in KINDS:
        for raw in found.objects.get(kind, []):
            index_updates.load(state, kind, decode_object(kind, raw))
    state.silent = set(found.silent)
    state.listed, state.missing = set(found.listed), set(found.missing)
    state.unreadable = {(item.kind, item.namespace, item.name): item for item in found.unreadable}
    _restore_fields(state, found)
    index_updates.refresh_all(state)
    state.short_since = {(node, name): at for node, name, at in found.short_since}
    state.work_queue.restore(found.work_items, found.deadlines)
    state.work_queue.closed = state.epoch is None
    if found.usage is not None:
        state.meter.restore(state, found.usage)
    return state


def _restore_fields(state: PlacementState, found: Snapshot) -> None:
    fields: dict[str, Any] = {
        "epoch": found.epoch,
        "mark": found.mark or str(found.epoch or ""),
        "last_epoch": found.last_epoch,
        "unheard": set(found.unheard),
        "unfenced": set(found.unfenced),
        "pending": dict(found.pending),
        "pending_keys": dict(found.pending_keys),
        "rejections": dict(found.rejections),
        "stale": set(found.stale),
        "own_versions": dict(found.own_versions),
        "unfenceable": set(found.unfenceable),
        "attached_since": {**state.attached_since, **found.attached_since},
        "seen_vmis": dict(found.seen_vmis),
        "short_since": {(node, name): at for node, name, at in found.short_since},
        "spoken": {node: set(items) for node, items in found.spoken.items()},
        "vanished": {node: dict(items) for node, items in found.vanished.items()},
    }
    for name, value in fields.items():
        setattr(state, name, value)
