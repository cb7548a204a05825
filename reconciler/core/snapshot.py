"""The folded state as bytes and back (J6).

Owns which facts are the state's own; everything else is an index and is counted anew. A restored state decides
as the exported one would: the agenda and the running grace times are among the facts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reconciler.core import effects
from reconciler.core.agenda import Question
from reconciler.core.fold import decode_object
from reconciler.core.objects import KINDS, Model, PermittedDevice, Settings
from reconciler.core.state import PendingWrite, PlacementState, Unreadable
from reconciler.core.usage_meter import Memory

SCHEMA = 1


class Snapshot(Model, frozen=True, kw_only=True):
    """The facts. `objects`: kind to objects as the model reads them, assumed writes among them."""

    schema: int = SCHEMA
    seq: int
    now: int
    settings: Settings
    objects: dict[str, list[msgspec.Raw]]
    listed: list[str]
    missing: list[str]
    unreadable: list[Unreadable]
    silent: list[str]
    permitted: tuple[PermittedDevice, ...] | None
    identity: str
    epoch: int | None
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
    ghosts: dict[str, dict[str, int]]
    spoken: dict[str, list[str]]
    class_resources: dict[str, str]
    questions: list[tuple[int, int, str, str]]
    deadlines: list[tuple[int, tuple[int, int, str, str]]]
    usage: Memory | None = None


class SnapshotError(ValueError):
    """The bytes are no snapshot of a schema this build reads."""


def export(state: PlacementState) -> bytes:
    """The state's facts as JSON."""
    questions, deadlines = state.agenda.export()
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
            permitted=state.permitted,
            identity=state.identity,
            epoch=state.epoch,
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
            ghosts={node: dict(sorted(found.items())) for node, found in sorted(state.ghosts.items())},
            spoken={node: sorted(found) for node, found in sorted(state.spoken.items())},
            class_resources=dict(sorted(state.class_resources.items())),
            questions=[_plain(question) for question in questions],
            deadlines=[(at, _plain(question)) for at, question in deadlines],
            usage=state.meter.export(),
        )
    )


def _plain(question: Question) -> tuple[int, int, str, str]:
    return int(question.topic), question.when, question.name, question.namespace


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
            effects.load(state, kind, decode_object(kind, raw))
    state.silent = set(found.silent)
    state.listed, state.missing = set(found.listed), set(found.missing)
    state.unreadable = {(item.kind, item.namespace, item.name): item for item in found.unreadable}
    _restore_marks(state, found)
    effects.refresh_all(state)
    state.short_since = {(node, name): at for node, name, at in found.short_since}
    state.agenda.restore(found.questions, found.deadlines)
    state.agenda.closed = state.epoch is None
    if found.usage is not None:
        state.meter.restore(state, found.usage)
    return state


def _restore_marks(state: PlacementState, found: Snapshot) -> None:
    marks: dict[str, Any] = {
        "epoch": found.epoch,
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
        "ghosts": {node: dict(items) for node, items in found.ghosts.items()},
    }
    for name, value in marks.items():
        setattr(state, name, value)
