"""Time series in bounded memory: change-tracking dicts, down-sampled change points, lanes for bars.

Owns the down-sampling of the report. Knows nothing of GPUs: values are tuples of whole numbers, times are ms since the
epoch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import Any, Generic, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)
Content = TypeVar("Content")
Value = tuple[int, ...]
Point = tuple[int, Value]

FIRST_STEP = 1000
"""Once there are too many points, no series keeps more than one a second; then half as many, and so on."""


class Series(Generic[Key]):
    """Change points per key, at most `most` over all keys, but at least one point a key. While they fit they are
    exact; then points of one key that lie within `step` ms become one, the last of them."""

    def __init__(self, most: int) -> None:
        self.points: dict[Key, list[Point]] = {}
        self.step = 1
        self._most = most
        self._count = 0

    def put(self, key: Key, at: int, value: Value) -> None:
        """The key has this value from `at` on; times never go back."""
        points = self.points.setdefault(key, [])
        before = len(points)
        self._add(points, at, value)
        self._count += len(points) - before
        if self._count > self._most:
            self._coarsen()

    def _add(self, points: list[Point], at: int, value: Value) -> None:
        if points and points[-1][0] // self.step == at // self.step:
            points.pop()
        if not points or points[-1][1] != value:
            points.append((at, value))

    def _coarsen(self) -> None:
        floor = len(self.points)
        while self._count > max(self._most // 2, floor) and self.step < 1 << 40:
            self.step = max(FIRST_STEP, self.step * 2)
            for key, points in self.points.items():
                kept: list[Point] = []
                for at, value in points:
                    self._add(kept, at, value)
                self.points[key] = kept
            self._count = sum(len(points) for points in self.points.values())


class Noted(dict[Key, Content]):
    """A dict that tracks the keys set or removed since the last `take`; initially all."""

    def __init__(self, items: dict[Key, Content]) -> None:
        super().__init__(items)
        self._touched: set[Key] = set(items)

    def __setitem__(self, key: Key, value: Content) -> None:
        self._touched.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Key) -> None:
        self._touched.add(key)
        super().__delitem__(key)

    def pop(self, key: Key, *default: Any) -> Any:
        self._touched.add(key)
        return super().pop(key, *default)

    def take(self) -> list[Key]:
        """The touched keys in order."""
        if not self._touched:
            return []
        found = sorted(self._touched)  # type: ignore[type-var]
        self._touched.clear()
        return found


class Span(msgspec.Struct):
    """One bar on one node: from `start` to `end` (ms), `units` high. `lane`: the lowest unit it covers, from 0."""

    start: int
    end: int
    units: int
    lane: int = 0

    @property
    def owner(self) -> object:
        """Whose bar it is: the next one of the same owner stays in its lane where it can."""
        return None


def assign_lanes(spans: Iterable[Span]) -> int:
    """Give every span lanes that no other span has at the same time; the number of lanes. A span of several units gets
    neighbouring lanes: those its owner had before, else the lowest free ones."""
    running: list[Span] = []
    before: dict[object, int] = {}
    height = 0
    for start, group in groupby(sorted(spans, key=lambda span: (span.start, -span.units)), lambda span: span.start):
        running = [other for other in running if other.end > start]
        for span in sorted(group, key=lambda span: span.owner not in before):
            kept = before.get(span.owner, 0)
            span.lane = kept if _lowest(running, span.units, kept) == kept else _lowest(running, span.units, 0)
            running.append(span)
            if span.owner is not None:
                before[span.owner] = span.lane
            height = max(height, span.lane + span.units)
    return height


def _lowest(running: list[Span], units: int, lane: int) -> int:
    """The first lane from `lane` on above which so many are free."""
    for other in sorted(running, key=lambda other: other.lane):
        if other.lane < lane + units and lane < other.lane + other.units:
            lane = other.lane + other.units
    return lane
