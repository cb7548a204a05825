"""Naive twins of `reconciler.core.units`: slow, obvious, written without looking at it."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, localcontext
from itertools import product

from reconciler.core.objects import Function

BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def quantity(number: str, suffix: str) -> Decimal:
    """The value of a number and its suffix or exponent ("e5"), capped as Kubernetes caps."""
    with localcontext() as context:
        context.prec = 400
        if suffix in BINARY:
            value = Decimal(number) * BINARY[suffix]
        elif suffix in DECIMAL:
            value = Decimal(number).scaleb(DECIMAL[suffix])
        else:
            value = Decimal(number).scaleb(int(suffix[1:]))
        return max(Decimal(-(2**63) + 1), min(Decimal(2**63 - 1), value))


def effective_request(containers: list[int], inits: list[tuple[int, bool]]) -> int:
    """The most one resource is ever taken: replay the pod's start step by step, keep the highest sum."""
    sidecars = 0
    highest = 0
    for amount, sidecar in inits:
        highest = max(highest, sidecars + amount)
        if sidecar:
            sidecars += amount
    return max(highest, sidecars + sum(containers))


def distributions(units: int, places: list[int]) -> Iterator[tuple[int, ...]]:
    """Every way to put at most `units` into places of the given sizes, as many as fit."""
    wanted = min(units, sum(places))
    for choice in product(*(range(size + 1) for size in places)):
        if sum(choice) == wanted:
            yield choice


def shared_remaining(parents: list[Function], pending: dict[str, int]) -> dict[str, int]:
    """The least that is left of each type over every distribution of the pending units over the parents."""
    names = sorted({profile.resource_name for parent in parents for profile in parent.profiles})
    remaining = [
        {profile.resource_name: profile.remaining for profile in parent.profiles} for parent in parents
    ]
    least: dict[str, int] = {}
    every = [
        list(distributions(pending.get(name, 0), [slots.get(name, 0) for slots in remaining]))
        for name in names
    ]
    for choice in product(*every):
        for name in names:
            left = 0
            for place, slots in enumerate(remaining):
                here = slots.get(name, 0)
                for taken, spread in zip(names, choice, strict=True):
                    share = 1 if taken == name else -(-slots.get(name, 0) // max(1, slots.get(taken, 0)))
                    here -= spread[place] * share
                left += max(0, here)
            least[name] = min(least.get(name, left), left)
    return least
