"""Brute-force packing: every item into every bin."""

from collections.abc import Mapping


def fits(items: Mapping[int, int], bins: Mapping[int, int]) -> bool:
    """Whether every item fits whole into some bin; for a handful of items and bins only."""
    sizes = [size for size, count in sorted(items.items(), reverse=True) for _ in range(count)]
    frees = [free for free, count in bins.items() for _ in range(count)]

    def place(at: int) -> bool:
        if at == len(sizes):
            return True
        for bin_ in range(len(frees)):
            if frees[bin_] >= sizes[at]:
                frees[bin_] -= sizes[at]
                found = place(at + 1)
                frees[bin_] += sizes[at]
                if found:
                    return True
        return False

    return place(0)
