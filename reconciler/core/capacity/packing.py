"""Whether all unplaced holds of a resource name still fit onto the nodes' free units (P3).

Owns the proof on plain histograms: items are holds (units of one device to their number), bins are nodes (free
units to their number). Knows neither names nor nodes: `capacity` and `state` build the histograms. The work grows
with the number of different sizes, not with the number of nodes or holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

Histogram = tuple[tuple[int, int], ...]
"""(size, count) pairs with both above 0, by size."""

SEARCH_BUDGET = 4_000
"""States one search may visit. Clusters filled to the last unit with mixed sizes were decided within 200;
the rest of the budget keeps one decision below a fifth of a second, since the queue waits for it."""


class Proof(Enum):
    """`UNPROVED` counts as no: a hold that might never be able to start is not granted (P3)."""

    YES = "yes"
    NO = "no"
    UNPROVED = "unproved"


def packable(items: Mapping[int, int], bins: Mapping[int, int], *, budget: int = SEARCH_BUDGET) -> Proof:
    """Whether all items can be packed into the bins, each item whole in one bin (P3). Sizes in units; entries with a
    size or count of 0 or less are ignored. Deterministic: `budget` counts states, not time."""
    start = _reduced(_histogram(items), _histogram(bins))
    seen = {start}
    stack = [start]
    visited = 0
    while stack:
        state = stack.pop()
        if not _enough_slots(*state):
            continue
        if _fits_greedily(*state):
            return Proof.YES
        visited += 1
        if visited > budget:
            return Proof.UNPROVED
        for child in _placements(*state):
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return Proof.NO


def still_packable(
    before_items: Mapping[int, int],
    before_bins: Mapping[int, int],
    after_items: Mapping[int, int],
    after_bins: Mapping[int, int],
) -> bool:
    """Whether a change leaves the holds startable, if they were startable before (P3).

    Holds that could not be proved startable before the change do not prevent it: it makes nothing worse.
    """
    if packable(after_items, after_bins) is Proof.YES:
        return True
    return packable(before_items, before_bins) is not Proof.YES


def _histogram(counts: Mapping[int, int]) -> Histogram:
    return tuple(sorted((size, count) for size, count in counts.items() if size > 0 and count > 0))


def _reduced(items: Histogram, bins: Histogram) -> tuple[Histogram, Histogram]:
    """An equivalent, smaller problem: an item that fills a bin exactly goes there, since whatever another packing
    puts into that bin can change places with the item; bins smaller than the smallest item are dropped."""
    levels = dict(bins)
    left = []
    for size, count in items:
        exact = min(count, levels.get(size, 0))
        if exact:
            levels[size] -= exact
        if count > exact:
            left.append((size, count - exact))
    smallest = left[0][0] if left else 0
    return tuple(left), tuple(sorted((free, count) for free, count in levels.items() if count and free >= smallest))


def _enough_slots(items: Histogram, bins: Histogram) -> bool:
    """A necessary condition: a bin of `free` units takes at most `free // size` items of `size` or more,
    an item counting for as many as it contains; and the units suffice in total. Where every size divides the
    next, as 1, 2, 4, 8 do, a large item costs every bin the same number of smaller slots, so the bound is exact
    and a negative answer needs no search."""
    if sum(size * count for size, count in items) > sum(free * count for free, count in bins):
        return False
    for least, _ in items:
        need = sum(size // least * count for size, count in items if size >= least)
        if need > sum(free // least * count for free, count in bins):
            return False
    return True


def _fits_greedily(items: Histogram, bins: Histogram) -> bool:
    """First-fit-decreasing, the bin with the least room first, whole groups of equal bins at a time."""
    levels = dict(bins)
    for size, left in reversed(items):
        for free in sorted(free for free in levels if free >= size):
            count, per_bin = levels[free], free // size
            filled = min(count, left // per_bin)
            left -= filled * per_bin
            _move(levels, free, free - per_bin * size, filled)
            if left and filled < count:
                _move(levels, free, free - left * size, 1)
                left = 0
            if not left:
                break
        if left:
            return False
    return True


def _move(levels: dict[int, int], source: int, target: int, count: int) -> None:
    if count:
        levels[source] -= count
        levels[target] = levels.get(target, 0) + count
        if not levels[source]:
            del levels[source]


def _placements(items: Histogram, bins: Histogram) -> list[tuple[Histogram, Histogram]]:
    """Every state after placing one largest item, the tightest bin last (it is searched first)."""
    size, count = items[-1]
    left = items[:-1] if count == 1 else (*items[:-1], (size, count - 1))
    states = []
    for free, _ in reversed(bins):
        if free >= size:
            levels = dict(bins)
            _move(levels, free, free - size, 1)
            states.append(_reduced(left, _histogram(levels)))
    return states
