"""Events for the journal's tests: one of each kind as the loop writes them, and Hypothesis strategies."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from journal.events import (
    EVENTS,
    ControllerStarted,
    Decided,
    Event,
    KindListed,
    LeadershipAcquired,
    LeadershipLost,
    ObjectDeleted,
    ObjectObserved,
    ObjectUnreadable,
    ReportSilenced,
    SettingsLoaded,
    TimeReached,
    WriteConflicted,
    WriteDropped,
    WriteFoundGone,
    WriteRejected,
    WriteSucceeded,
)


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def node(number: int) -> ObjectObserved:
    """A node's observation with `number` in its name, uid, version and body."""
    body = raw(f'{{"name":"gpu-{number}","uid":"n-{number}","ready":true,"allocatable":{{"nvidia.com/GA102":4}}}}')
    return ObjectObserved("Node", "", f"gpu-{number}", f"n-{number}", str(number), "watch", body)


MORNING: tuple[tuple[Event, ...], ...] = (
    (
        ControllerStarted("gpu-binder-0", "0.1.0"),
        SettingsLoaded(raw('{"resourceNames":["nvidia.com/GA102"]}')),
    ),
    (node(1), node(2), KindListed("Node"), KindListed("VirtualMachineInstance", missing=True)),
    (
        ObjectUnreadable("GPUDevice", "tenant-a", "tömbé", "d-1", "17", "spec.count: expected int, got str"),
        ObjectDeleted("Pod", "tenant-a", "virt-launcher-a", "p-1", seen=False, last_seen=1_760_000_000_000),
        ReportSilenced("gpu-2"),
    ),
    (LeadershipAcquired("gpu-binder-0", 3), TimeReached()),
    (Decided(raw('{"kind":"Bound","vmi":"tenant-a/train","node":"gpu-1","why":"least left: 0 of 4"}')),),
    (
        WriteSucceeded("12.0", "901"),
        WriteConflicted("12.1", "the object has been modified"),
        WriteFoundGone("12.2"),
        WriteRejected("12.3", "spec.count: Invalid value"),
        WriteDropped("12.4"),
        LeadershipLost("gpu-binder-0", "lease not renewed for 10 s"),
    ),
)
"""Batches of a first minute, with every kind of event in it."""

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('aé"\\\0', max_size=3), inner, max_size=3),
    max_leaves=5,
)
_RAW = _JSON.map(lambda value: msgspec.Raw(msgspec.json.encode(value)))
_FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(codec="utf-8"), max_size=12),
    int: st.integers(0, 2**53),
    bool: st.booleans(),
    msgspec.Raw: _RAW,
}


def _any_of_kind(kind: type[Event]) -> st.SearchStrategy[Event]:
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{f.name: _FIELDS[f.type] for f in fields})


any_event: st.SearchStrategy[Event] = st.one_of([_any_of_kind(kind) for kind in EVENTS.values()])
batches = st.lists(st.tuples(st.lists(any_event, max_size=4), st.integers(0, 50), st.integers(0, 2)), max_size=8)
"""(events, the clock's reading, how far the batch number moves on)."""
