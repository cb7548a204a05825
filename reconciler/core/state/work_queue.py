"""What is left to decide, in the order in which it is decided, and when time alone makes something due.

Owns the order of questions: what gives units back comes before what takes them, requests and orders are taken
oldest first (P1b, B2). A question is put by the fold when a fact it depends on changes, and is dropped when it
has been answered; nothing here knows the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from sortedcontainers import SortedSet


class ItemKind(IntEnum):
    """What a question is about; the lower is decided first."""

    FENCE = 0
    NODE = 1
    DEVICE = 2
    REQUEST = 3
    ORDER = 4
    CLASS = 5
    SETTINGS = 6
    ANSWERS = 7


class WorkItem(NamedTuple):
    """`when` is ms (creation of an order, time of a request), 0 where age does not matter. `name` and
    `namespace` address a device, else `name` is a node, class, request id or device uid. Of `ANSWERS` it is a
    class, and `when` and `namespace` are the creation and uid of the last order that was looked at."""

    kind: ItemKind
    when: int
    name: str
    namespace: str = ""


Plain = tuple[int, int, str, str]
"""A question as plain values, for a snapshot."""


class WorkQueue:
    """Open questions and the deadlines that will open more.

    Closed until this replica leads: one that never does would collect a question about every object there ever
    was. Whoever opens it asks everything anew.
    """

    def __init__(self) -> None:
        self.closed = True
        self._open: SortedSet[WorkItem] = SortedSet()
        self._deadlines: SortedSet[tuple[int, WorkItem]] = SortedSet()

    def open(self) -> None:
        self.closed = False

    def close(self) -> None:
        """Drop every question; deadlines go as they pass."""
        self.closed = True
        self._open.clear()

    def put(self, item: WorkItem) -> None:
        if not self.closed:
            self._open.add(item)

    def take(self) -> WorkItem | None:
        """Remove and return the first question."""
        return self._open.pop(0) if self._open else None

    def __len__(self) -> int:
        return len(self._open)

    def put_at(self, at: int, item: WorkItem) -> None:
        """Put the question once `at` (ms) is reached."""
        self._deadlines.add((at, item))

    def reach(self, now: int) -> None:
        """Open every question whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            self.put(self._deadlines.pop(0)[1])

    @property
    def next_deadline(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def export(self) -> tuple[list[WorkItem], list[tuple[int, WorkItem]]]:
        """(open questions, deadlines) for a snapshot."""
        return list(self._open), list(self._deadlines)

    def restore(self, questions: Iterable[Plain], deadlines: Iterable[tuple[int, Plain]]) -> None:
        """The agenda as exported, from plain values."""
        self._open = SortedSet(_item(plain) for plain in questions)
        self._deadlines = SortedSet((at, _item(plain)) for at, plain in deadlines)


def _item(plain: Plain) -> WorkItem:
    kind, when, name, namespace = plain
    return WorkItem(ItemKind(kind), when, name, namespace)
