"""Bounds what refusals write into the journal, whoever sends how many of what size (W5, J6).

Owns the limits: bytes of one entry, one entry for equal refusals within a window, entries per namespace and window.
What is not recorded is counted and told with the next entry. Neighbour: `recording` makes the events.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import msgspec

from journal.events import AdmissionRefused
from reconciler.core.model.objects import Constraints
from reconciler.core.model.start_request import StartRequest

WINDOW_MILLISECONDS = 60_000
NAMESPACE_ENTRIES = 30
"""Entries of one namespace in a window; its further refusals only count."""
WANTED_BYTES = 4_096
MESSAGE_CHARACTERS = 2_048
NAME_CHARACTERS = 253
"""The longest name the API server takes; a forged review may have any."""
KEPT_REFERENCES = 8
REMEMBERED = 10_000
"""Refusals and namespaces remembered; the oldest are forgotten first."""

Key = tuple[str, str, str, str, str]
K = TypeVar("K")


class _Seen(msgspec.Struct):
    since: int
    entries: int = 0
    unrecorded: int = 0


class RefusalLog:
    """Passes refusals on to `record` within the limits. `clock`: ms since the epoch."""

    def __init__(self, record: Callable[[AdmissionRefused], None], clock: Callable[[], int]) -> None:
        self._record = record
        self._clock = clock
        self._subjects: OrderedDict[Key, _Seen] = OrderedDict()
        self._namespaces: OrderedDict[str, _Seen] = OrderedDict()

    def __call__(self, event: AdmissionRefused) -> None:
        event = bounded(event)
        subject = _seen(
            self._subjects, (event.kind, event.namespace, event.name, event.reason, event.message), self._clock()
        )
        if subject.entries:
            subject.unrecorded += 1
            return
        namespace = _seen(self._namespaces, event.namespace, self._clock())
        if namespace.entries >= NAMESPACE_ENTRIES:
            namespace.unrecorded += 1
            return
        repeated = subject.unrecorded + namespace.unrecorded
        subject.entries, subject.unrecorded = 1, 0
        namespace.entries, namespace.unrecorded = namespace.entries + 1, 0
        self._record(msgspec.structs.replace(event, unrecorded=repeated) if repeated else event)


def _seen(known: OrderedDict[K, _Seen], key: K, now: int) -> _Seen:
    """What is known of a key in the present window; a count that was not told yet is carried over."""
    found = known.get(key)
    if found is None or now - found.since >= WINDOW_MILLISECONDS:
        found = known[key] = _Seen(now, unrecorded=found.unrecorded if found is not None else 0)
    known.move_to_end(key)
    while len(known) > REMEMBERED:
        known.popitem(last=False)
    return found


def bounded(event: AdmissionRefused) -> AdmissionRefused:
    """The event with everything that a caller chose cut to its limit; `cut` if the request is no longer whole."""
    changes: dict[str, object] = {}
    for name, most in (("message", MESSAGE_CHARACTERS), ("public", MESSAGE_CHARACTERS)):
        text = getattr(event, name)
        if len(text) > most:
            changes[name] = f"{text[: most - 1]}…"
    for name in ("namespace", "name", "request"):
        if len(getattr(event, name)) > NAME_CHARACTERS:
            changes[name] = getattr(event, name)[:NAME_CHARACTERS]
    if len(event.wanted) > WANTED_BYTES:
        changes |= {"wanted": _smaller(event.wanted), "cut": True}
    return msgspec.structs.replace(event, **changes) if changes else event


def _smaller(wanted: msgspec.Raw) -> msgspec.Raw:
    """Without the node constraints, and if that does not suffice with the first references only."""
    whole = msgspec.json.decode(wanted, type=StartRequest)
    less = msgspec.structs.replace(whole, constraints=Constraints(memory=whole.constraints.memory))
    if len(msgspec.json.encode(less)) > WANTED_BYTES:
        less = msgspec.structs.replace(
            less,
            devices=tuple(name[:NAME_CHARACTERS] for name in less.devices[:KEPT_REFERENCES]),
            templates=tuple((name[:NAME_CHARACTERS], count) for name, count in less.templates[:KEPT_REFERENCES]),
        )
    return msgspec.Raw(msgspec.json.encode(less))
