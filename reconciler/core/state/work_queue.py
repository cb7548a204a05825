"""Pending work items in the order they are decided, and the deadlines that enqueue more.

Owns the order: what returns units comes before what takes them; requests and orders are first in, first out by age
(P1b, B2). The fold adds an item when a fact it depends on changes. Knows nothing of decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from sortedcontainers import SortedSet


class ItemKind(IntEnum):
    """Subject of a work item; lower values are decided first."""

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
    class, and `when` and `namespace` are the creation and uid of the last order that was refreshed."""

    kind: ItemKind
    when: int
    name: str
    namespace: str = ""


Plain = tuple[int, int, str, str]
"""A work item as plain values, for a snapshot."""


class WorkQueue:
    """Pending work items and the deadlines that enqueue more.

    Closed until this replica leads: a follower would accumulate an item for every object that ever existed. Whoever
    opens it enqueues everything.
    """

    def __init__(self) -> None:
        self.closed = True
        self._open: SortedSet[WorkItem] = SortedSet()
        self._deadlines: SortedSet[tuple[int, WorkItem]] = SortedSet()

    def open(self) -> None:
        self.closed = False

    def close(self) -> None:
        """Drop every item; deadlines are dropped as they pass."""
        self.closed = True
        self._open.clear()

    def add(self, item: WorkItem) -> None:
        if not self.closed:
            self._open.add(item)

    def pop(self) -> WorkItem | None:
        """Remove and return the first item."""
        return self._open.pop(0) if self._open else None

    def __len__(self) -> int:
        return len(self._open)

    def add_at(self, at: int, item: WorkItem) -> None:
        """Add the item once `at` (ms) is reached."""
        self._deadlines.add((at, item))

    def add_due(self, now: int) -> None:
        """Add every item whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            self.add(self._deadlines.pop(0)[1])

    @property
    def next_deadline(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def export(self) -> tuple[list[WorkItem], list[tuple[int, WorkItem]]]:
        """(pending items, deadlines) for a snapshot."""
        return list(self._open), list(self._deadlines)

    def restore(self, questions: Iterable[Plain], deadlines: Iterable[tuple[int, Plain]]) -> None:
        """Load an exported queue from plain values."""
        self._open = SortedSet(_item(plain) for plain in questions)
        self._deadlines = SortedSet((at, _item(plain)) for at, plain in deadlines)


def _item(plain: Plain) -> WorkItem:
    kind, when, name, namespace = plain
    return WorkItem(ItemKind(kind), when, name, namespace)
