"""fold(state, entry): one branch per event kind; the only way a fact gets into the state (J2).

Owns how an observation combines with our own write in flight: an assumed object stays assumed until the outcome is
known, an older observation never overwrites a newer write of ours (C41), and a conflict sets the object aside until it
has been reread (B6). Pure: the time is the entry's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from journal import events
from journal.events import Entry
from reconciler.core import index_updates
from reconciler.core.admission import binds
from reconciler.core.model.device_state import holds_units, pending_order
from reconciler.core.model.objects import DEVICE, GPU_NODE, KINDS, KUBEVIRT, RELEASE, Device, Object, Release, Settings
from reconciler.core.model.vocabulary import Phase
from reconciler.core.state import node_accounts
from reconciler.core.state.decisions import Decision, Verb
from reconciler.core.state.placement_state import ABSENT, PendingWrite, PlacementState, Unreadable
from reconciler.core.state.work_queue import ItemKind, WorkItem

RETRY_REJECTED_MILLISECONDS = 30_000
"""Delay before a write that the API server rejected is decided again, in case its rules have changed."""

RETRY_DROPPED_MILLISECONDS = 1_000
"""Delay before a write that was never sent, or an object created by someone else and not yet observed, is decided
again; without it an unchanged state would cause a storm of decisions."""


def fold(state: PlacementState, entry: Entry) -> None:
    """Advance the state past `entry`."""
    state.seq = entry.seq
    state.now = max(state.now, entry.at)
    state.work_queue.add_due(state.now)
    _BRANCHES[type(entry.event)](state, entry.event)
    state.meter.step(state, entry)


def decode_object(kind: str, raw: bytes | msgspec.Raw) -> Object:
    """The model's object from its journaled JSON."""
    found: Object = _DECODERS[kind].decode(raw)
    return found


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind.name: msgspec.json.Decoder(kind.model) for kind in KINDS.values()
}


def adds_nothing(state: PlacementState, event: events.ObjectObserved) -> bool:
    """Whether the observation is redundant and needs no entry (J3).

    That is an object equal to the known one, an echo of a write in flight (except for a deletion, whose answer carries
    no version), or a version older than our own last write.
    """
    if event.uid in state.stale or (event.kind, event.namespace, event.name) in state.unreadable:
        return False
    if event.kind == GPU_NODE.name and (event.name in state.silent or event.name in state.unheard):
        return False
    known = state.get(event.kind, event.namespace, event.name)
    if known is None or known.uid != event.uid:
        return False
    if event.source != "read" and _older(event.resource_version, state.own_versions.get(event.uid, "")):
        return True
    seen = decode_object(event.kind, event.object)
    if event.uid in state.pending and seen.deleting is not None:
        return False
    if event.uid in state.pending or not KINDS[event.kind].written:
        seen = msgspec.structs.replace(seen, resource_version=known.resource_version)
    if event.kind == GPU_NODE.name:
        seen = msgspec.structs.replace(seen, reported_at=known.reported_at)  # type: ignore[attr-defined]
    return seen == known


def _older(version: str, own: str) -> bool:
    """Numeric versions are compared as numbers; others only for equality (C41)."""
    return version.isdigit() and own.isdigit() and int(version) < int(own)


def _started(state: PlacementState, event: events.ControllerStarted) -> None:
    state.identity = event.identity
    _observe_anew(state)


def _replaced(state: PlacementState, event: events.HistoryReplaced) -> None:
    """No version of ours counts any more, and nothing is decided before every kind has been listed again."""
    _observe_anew(state)
    state.own_versions.clear()


def _observe_anew(state: PlacementState) -> None:
    _stand_down(state)
    for key in sorted(state.pending):
        _revert(state, key, stale=True)
    state.pending_keys.clear()
    state.listed.clear()
    state.missing.clear()
    state.unheard = {name for _, name in state.objects[GPU_NODE.name]}


def _stand_down(state: PlacementState) -> None:
    state.epoch = None
    state.unfenced.clear()
    state.unfenceable.clear()
    state.work_queue.close()


def _settings(state: PlacementState, event: events.SettingsLoaded) -> None:
    state.settings = msgspec.json.decode(event.settings, type=Settings)
    index_updates.refresh_all(state)


def _observed(state: PlacementState, event: events.ObjectObserved) -> None:
    seen = decode_object(event.kind, event.object)
    if event.source != "read" and _older(event.resource_version, state.own_versions.get(event.uid, "")):
        return
    state.unreadable.pop((event.kind, event.namespace, event.name), None)
    state.stale.discard(event.uid)
    known = state.get(event.kind, event.namespace, event.name)
    if known is not None and known.uid != event.uid:
        _forget(state, event.kind, known)
        known = None
    if event.kind == GPU_NODE.name:
        _heard(state, event, known)
    state.pending.pop(f"{event.kind}/{event.namespace}/{event.name}", None)
    if known is not None and known.resource_version != event.resource_version:
        _fenced(state, event.uid)
        _stand_down_if_fenced(state, known, seen)
    if event.uid in state.pending:
        pending = state.pending[event.uid]
        state.pending[event.uid] = msgspec.structs.replace(pending, base=event.object)
        return
    index_updates.replace(state, event.kind, known, seen)


def _heard(state: PlacementState, event: events.ObjectObserved, known: Object | None) -> None:
    """A report that a list shows for the first time may be of any age; one that changes is new (R5)."""
    found = event.source == "list" and (known is None or GPU_NODE.name not in state.listed)
    (state.unheard.add if found else state.unheard.discard)(event.name)


def _fenced(state: PlacementState, uid: str) -> None:
    state.unfenced.discard(uid)
    state.unfenceable.discard(uid)


def _stand_down_if_fenced(state: PlacementState, known: Object, seen: Object) -> None:
    """Stand down when another leader fences devices during our term: our process, and with it our lease timer, was
    suspended (J5)."""
    if state.epoch is None or not isinstance(known, Device) or not isinstance(seen, Device):
        return
    if seen.epoch not in (known.epoch, state.mark):
        _stand_down(state)


def _unreadable(state: PlacementState, event: events.ObjectUnreadable) -> None:
    known = state.get(event.kind, event.namespace, event.name)
    state.unreadable[(event.kind, event.namespace, event.name)] = Unreadable(
        kind=event.kind, namespace=event.namespace, name=event.name, uid=event.uid, error=event.error
    )
    if event.kind == RELEASE.name:
        broken = Release(
            name=event.name,
            namespace=event.namespace,
            uid=event.uid,
            resource_version=event.resource_version,
            created=known.created if known is not None and known.uid == event.uid else state.now,
            error=event.error,
        )
        index_updates.replace(state, event.kind, known, broken)
    elif known is not None and known.uid != event.uid and event.kind != KUBEVIRT.name:
        _forget(state, event.kind, known)
    if event.kind == GPU_NODE.name:
        state.silent.add(event.name)
        node_accounts.refresh(state, event.name)
    if event.uid in state.unfenced:
        state.unfenced.discard(event.uid)
        state.unfenceable.add(event.uid)


def _deleted(state: PlacementState, event: events.ObjectDeleted) -> None:
    found = state.unreadable.get((event.kind, event.namespace, event.name))
    if found is not None and found.uid == event.uid:
        del state.unreadable[(event.kind, event.namespace, event.name)]
        if event.kind == GPU_NODE.name:
            state.silent.discard(event.name)
            node_accounts.refresh(state, event.name)
    known = state.get(event.kind, event.namespace, event.name)
    if known is not None and known.uid == event.uid:
        _forget(state, event.kind, known)


def _forget(state: PlacementState, kind: str, known: Object) -> None:
    state.pending.pop(known.uid, None)
    state.stale.discard(known.uid)
    state.own_versions.pop(known.uid, None)
    state.rejections.pop(known.uid, None)
    if kind == GPU_NODE.name:
        state.unheard.discard(known.name)
    index_updates.replace(state, kind, known, None)


def _listed(state: PlacementState, event: events.KindListed) -> None:
    was_synced, first = state.synced, event.kind not in state.listed
    (state.missing.add if event.missing else state.missing.discard)(event.kind)
    (state.listed.discard if event.missing else state.listed.add)(event.kind)
    if first and not event.missing:
        current = {item.uid for item in state.objects[event.kind].values()}
        state.stale -= current
        for uid in sorted(current & set(state.devices.by_uid)) if event.kind == DEVICE.name else ():
            device = state.device_by_uid(uid)
            if device is not None:
                state.enqueue_for(device)
    if state.synced and not was_synced:
        index_updates.refresh_all(state)


def _silenced(state: PlacementState, event: events.ReportSilenced) -> None:
    state.silent.add(event.node)
    node_accounts.refresh(state, event.node)


def _acquired(state: PlacementState, event: events.LeadershipAcquired) -> None:
    _stand_down(state)
    state.rejections.clear()
    state.epoch = event.epoch
    state.mark = event.mark or str(event.epoch)
    if event.mark:
        state.last_epoch = max(state.last_epoch, event.epoch)
    state.work_queue.open()
    for device in state.all_devices():
        _note_unfenced(state, device)
    index_updates.refresh_all(state)


def _note_unfenced(state: PlacementState, device: Device) -> None:
    """Mark a device for fencing: an older leader may still have a grant for it in flight (J5)."""
    grantable = pending_order(device) or device.phase == Phase.LOST
    if device.bind_request is not None and not grantable:
        whole = state.devices_of_request(device.bind_request.id)
        grantable = not holds_units(device) or not binds.settled_set(whole)
    if grantable and device.epoch != state.mark:
        (state.unfenced if state.readable(device) else state.unfenceable).add(device.uid)


def _lost_lead(state: PlacementState, event: events.LeadershipLost) -> None:
    _stand_down(state)


def _time(state: PlacementState, event: events.TimeReached) -> None:
    """Time alone has passed."""
    for key in [key for key, until in state.rejections.items() if until <= state.now]:
        del state.rejections[key]


def _refused(state: PlacementState, event: events.AdmissionRefused) -> None:
    """A webhook's refusal is recorded for `explain`; it changes no state."""


def _decided(state: PlacementState, event: events.Decided) -> None:
    decision = msgspec.json.decode(event.decision, type=Decision)
    for index, write in enumerate(decision.writes):
        known = state.get(write.kind, write.namespace, write.name)
        base = ABSENT if known is None else msgspec.Raw(msgspec.json.encode(known))
        identity = f"{state.seq}.{index}"
        state.pending[write.key] = PendingWrite(write=identity, base=base)
        state.pending_keys[identity] = (write.kind, write.namespace, write.name, write.key)
        if write.verb is not Verb.CREATE:
            index_updates.replace(state, write.kind, known, decode_object(write.kind, write.after))


def _succeeded(state: PlacementState, event: events.WriteSucceeded) -> None:
    address = state.pending_keys.pop(event.write, None)
    if address is None:
        return
    kind, namespace, name, key = address
    pending = state.pending.pop(key, None)
    known = state.get(kind, namespace, name)
    if pending is None or known is None or known.uid != key:
        return
    base = None if pending.base == ABSENT else decode_object(kind, pending.base)
    if base is not None and _older(event.resource_version, base.resource_version):
        _fenced(state, key)
        if isinstance(known, Device):
            state.landed.append(known)
        index_updates.replace(state, kind, known, base)
        return
    landed = known
    if event.resource_version:
        state.own_versions[key] = event.resource_version
        landed = msgspec.structs.replace(known, resource_version=event.resource_version)
    elif base is not None and base.deleting is not None:
        landed = base
    else:
        state.stale.add(key)
    _fenced(state, key)
    index_updates.replace(state, kind, known, landed)


def _revert(state: PlacementState, key: str, *, stale: bool) -> None:
    """Discard an assumed write: the object reverts to its last observation."""
    pending = state.pending.pop(key)
    address = state.pending_keys.pop(pending.write, None)
    if address is None:
        return
    kind, namespace, name, _ = address
    known = state.get(kind, namespace, name)
    if known is not None and known.uid == key and pending.base != ABSENT:
        if stale:
            state.stale.add(key)
        index_updates.replace(state, kind, known, decode_object(kind, pending.base))
    else:
        state.work_queue.add(WorkItem(ItemKind.SETTINGS, 0, ""))


def _pending_key(state: PlacementState, write: str) -> str | None:
    address = state.pending_keys.get(write)
    if address is None or address[3] not in state.pending:
        state.pending_keys.pop(write, None)
        return None
    return address[3]


def _conflicted(state: PlacementState, event: events.WriteConflicted | events.WriteFoundGone) -> None:
    key = _pending_key(state, event.write)
    if key is None:
        return
    if state.pending[key].base == ABSENT:
        _try_later(state, key, event.write, RETRY_DROPPED_MILLISECONDS)
    else:
        _revert(state, key, stale=True)


def _rejected(state: PlacementState, event: events.WriteRejected) -> None:
    key = _pending_key(state, event.write)
    if key is None:
        return
    if key in state.unfenced:
        state.unfenced.discard(key)
        state.unfenceable.add(key)
    _try_later(state, key, event.write, RETRY_REJECTED_MILLISECONDS)


def _dropped(state: PlacementState, event: events.WriteDropped) -> None:
    key = _pending_key(state, event.write)
    if key is not None:
        _try_later(state, key, event.write, RETRY_DROPPED_MILLISECONDS)


def _try_later(state: PlacementState, key: str, write: str, milliseconds: int) -> None:
    """The object is unchanged; decide again after the delay."""
    kind, namespace, name, _ = state.pending_keys[write]
    state.rejections[key] = state.now + milliseconds
    _revert(state, key, stale=False)
    state.enqueue_at(state.rejections[key], kind, namespace, name)


_BRANCHES: dict[type[events.Event], Callable[[PlacementState, Any], None]] = {
    events.ControllerStarted: _started,
    events.SettingsLoaded: _settings,
    events.ObjectObserved: _observed,
    events.ObjectUnreadable: _unreadable,
    events.ObjectDeleted: _deleted,
    events.KindListed: _listed,
    events.ReportSilenced: _silenced,
    events.HistoryReplaced: _replaced,
    events.TimeReached: _time,
    events.LeadershipAcquired: _acquired,
    events.LeadershipLost: _lost_lead,
    events.Decided: _decided,
    events.WriteSucceeded: _succeeded,
    events.WriteConflicted: _conflicted,
    events.WriteFoundGone: _conflicted,
    events.WriteRejected: _rejected,
    events.WriteDropped: _dropped,
    events.AdmissionRefused: _refused,
}
