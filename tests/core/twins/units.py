"""Reference model of `reconciler.core.capacity.supply`: slow, obvious, written independently."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, localcontext
from itertools import product

from reconciler.core.model.objects import Function

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
    """Peak use of one resource: replays the pod's start step by step and keeps the highest sum."""
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
    """The least that is left of each type over every distribution of the pending units over the parents, lowered
    until what is pending of every other type surely fits, should the new units start first."""
    names = sorted({profile.resource_name for parent in parents for profile in parent.profiles})
    remaining = [{profile.resource_name: profile.remaining for profile in parent.profiles} for parent in parents]
    least = {}
    for name in names:
        left = max(0, worst_left(remaining, pending, name))
        while left and not all(
            other == name
            or not harms(remaining, name, other)
            or worst_left(remaining, {**pending, name: pending.get(name, 0) + left}, other) >= 0
            for other, count in pending.items()
            if count
        ):
            left -= 1
        least[name] = left
    return least


def harms(remaining: list[dict[str, int]], taken: str, name: str) -> bool:
    return any(slots.get(taken, 0) and slots.get(name, 0) for slots in remaining)


def worst_left(remaining: list[dict[str, int]], pending: dict[str, int], name: str) -> int:
    """Slots of a type less its own pending units, where those of the others take the most; below 0 where they may
    not fit."""
    others = sorted(other for other, count in pending.items() if count and other != name)
    every = [list(distributions(pending[other], [slots.get(other, 0) for slots in remaining])) for other in others]
    least: list[int] = []
    for choice in product(*every):
        left = 0
        for place, slots in enumerate(remaining):
            taken = (loss(slots, other, spread[place], name) for other, spread in zip(others, choice, strict=True))
            left += max(0, slots.get(name, 0) - sum(taken))
        least.append(left - pending.get(name, 0))
    return min(least)


def loss(slots: dict[str, int], taken: str, count: int, name: str) -> int:
    """What units of one type on a card cost another: a smaller type costs nothing more until a whole unit is gone."""
    large, small = slots.get(taken, 0), slots.get(name, 0)
    if not count or not large or not small:
        return 0
    return count * -(-small // large) if small >= large else -(-count // (large // small))
