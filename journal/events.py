"""The journal's event types: every fact that can be recorded, in the past tense, with an explicit kind and version.

Owns the event schemas and their encoding. Knows nothing of placement: observed objects and decisions are stored as
the JSON their owner encoded. Times are integer milliseconds since the Unix epoch, UTC. A changed schema gets a new
version and a stepwise upcast (`UPCASTS`), never a silent change (J6). A field whose default means what was true before
it existed keeps the version, so that the build before can still read the journal after a rollback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base class of all events. `VERSION` is the version this build writes."""

    VERSION: ClassVar[int] = 1


class ControllerStarted(Event, frozen=True):
    """A process opened this journal. `build` is its version. Nothing was observed between the last entry and this one
    (U2)."""

    identity: str
    build: str


class SettingsLoaded(Event, frozen=True):
    """The settings the model depends on, as plain values; owned by the model's settings struct."""

    settings: msgspec.Raw


class ObjectObserved(Event, frozen=True):
    """An object as far as the model reads it. `source`: watch, list, read (a GET) or write (a response)."""

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    source: str
    object: msgspec.Raw


class ObjectUnreadable(Event, frozen=True):
    """An object that does not match its schema and is ignored until it does (R10). `error` names the field."""

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    error: str


class ObjectDeleted(Event, frozen=True):
    """An object is gone. `seen` False: its deletion was inferred from a list; `last_seen`: when the watch last
    delivered anything before that (U2)."""

    kind: str
    namespace: str
    name: str
    uid: str
    seen: bool = True
    last_seen: int = 0


class KindListed(Event, frozen=True):
    """A list of a kind is complete: the objects observed so far, minus those deleted, are all that exist. `missing`:
    the kind is not installed (N8)."""

    kind: str
    missing: bool = False


class ReportSilenced(Event, frozen=True):
    """A node agent's report has become stale (R5)."""

    node: str


class HistoryReplaced(Event, frozen=True):
    """The API server's data is another than before: its versions went back (etcd restored from a backup) or it is
    another cluster. Shown by a consistent read of `kind`: version `found` where `known` had been seen. Everything is
    observed anew, and nothing was observed between the last entry and this one (U2)."""

    kind: str
    known: str
    found: str


class TimeReached(Event, frozen=True):
    """A deadline the model asked for has passed; the entry's time is the new now."""


class LeadershipAcquired(Event, frozen=True):
    """This replica holds the lease; `epoch` counts the terms of leadership over all replicas (J5). `mark` is what its
    fences write; empty in journals of builds that wrote the epoch alone."""

    identity: str
    epoch: int
    mark: str = ""


class LeadershipLost(Event, frozen=True):
    """This replica no longer holds the lease and sends nothing more; `why`: expired, taken over or shut down (J5)."""

    identity: str
    why: str


class Decided(Event, frozen=True):
    """A decision, committed before any of its writes is sent (J1)."""

    decision: msgspec.Raw


class WriteSucceeded(Event, frozen=True):
    """`write` is "SEQ.INDEX": the decision's entry and the write's place in it."""

    write: str
    resource_version: str


class WriteConflicted(Event, frozen=True):
    """The object had changed since the decision; it is read again and decided again (B6)."""

    write: str
    message: str


class WriteFoundGone(Event, frozen=True):
    """The object of a write no longer exists."""

    write: str


class WriteRejected(Event, frozen=True):
    """The API server rejected the write permanently (invalid, forbidden); it is not retried unchanged."""

    write: str
    message: str


class AdmissionRefused(Event, frozen=True):
    """A webhook of this replica refused a request before anything was written. `wanted`: the request as model values,
    so that the refusal can be explained; `request`: the AdmissionReview's uid. `public`: what the caller read in place
    of the message, "" where that is the message (N9). `unrecorded`: equal refusals, or others of the namespace, since
    the last entry of it; `cut`: the request was too large to be kept whole."""

    kind: str
    namespace: str
    name: str
    request: str
    reason: str
    message: str
    wanted: msgspec.Raw
    public: str = ""
    unrecorded: int = 0
    cut: bool = False


class WriteDropped(Event, frozen=True):
    """Never sent, because leadership was lost first (J5)."""

    write: str


EVENTS: dict[str, type[Event]] = {
    event.__name__: event
    for event in (
        ControllerStarted,
        SettingsLoaded,
        ObjectObserved,
        ObjectUnreadable,
        ObjectDeleted,
        KindListed,
        ReportSilenced,
        HistoryReplaced,
        TimeReached,
        LeadershipAcquired,
        LeadershipLost,
        Decided,
        WriteSucceeded,
        WriteConflicted,
        WriteFoundGone,
        WriteRejected,
        WriteDropped,
        AdmissionRefused,
    )
}

UPCASTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""(kind, version) to a function that takes the payload one version up."""


class Entry(msgspec.Struct, frozen=True):
    """One line of the journal. `seq` grows by one; `batch` groups the events drained and decided together; `at` is ms
    since the epoch and never decreases."""

    seq: int
    batch: int
    at: int
    event: Event


class UnknownEventError(ValueError):
    """An event kind or version this build does not know."""


def encode(event: Event) -> tuple[str, int, bytes]:
    """(kind, version, JSON payload)."""
    return type(event).__name__, type(event).VERSION, msgspec.json.encode(event)


def decode(kind: str, version: int, payload: bytes) -> Event:
    """The event, upcast to the current version. Raises `UnknownEventError`, or `msgspec.ValidationError` for a
    malformed payload."""
    event = EVENTS.get(kind)
    if event is None or version > event.VERSION:
        raise UnknownEventError(f"event {kind} version {version} is not known to this build")
    if version == event.VERSION:
        return msgspec.json.decode(payload, type=event)
    values = msgspec.json.decode(payload)
    for step in range(version, event.VERSION):
        values = UPCASTS[(kind, step)](values)
    return msgspec.json.decode(msgspec.json.encode(values), type=event)
