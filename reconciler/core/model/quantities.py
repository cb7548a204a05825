"""Kubernetes quantities as exact numbers, and a pod's effective request of each resource.

Owns the number formats and how containers' requests add up. Knows no nodes and no devices. Stricter than the official
client's `utils.quantity`, which accepts spaces, underscores and other scripts' digits, all refused by the API server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

MAX_QUANTITY = 2**63 - 1
"""Kubernetes caps larger quantities at this value."""
_MAX_LENGTH = 256
"""Characters of a quantity; the API server's own values stay below 30. Bounds the cost of one conversion."""
_MAX_EXPONENT = 400
"""With a larger exponent, any number of `_MAX_LENGTH` digits is above the cap or below one nano."""

_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>[0-9]+\.?[0-9]*|\.[0-9]+)"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[KMGTPE]i|[numkMGTPE]))?"
)
_SCALE = {"": Fraction(1)} | {
    suffix: Fraction(10) ** power
    for suffix, power in (
        *zip("num", (-9, -6, -3), strict=True),
        *zip("kMGTPE", range(3, 21, 3), strict=True),
    )
}
_SCALE |= {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


class QuantityError(ValueError):
    """The value is not a Kubernetes quantity or not a count of units; the message names the value."""


def quantity(value: str | int | float | bool) -> Fraction:
    """The exact value of a Kubernetes quantity, in every form the API documents: plain, decimal
    (n u m k M G T P E) and binary (Ki to Ei) suffixes, exponents, signs. Numbers are read as YAML would
    write them. Capped at ±(2^63 - 1), as Kubernetes does. Raises `QuantityError`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(f"{_shown(value)} is not a Kubernetes quantity; write a number such as 2 or 500m")
    if isinstance(value, int):
        return _capped(Fraction(value))
    text = value if isinstance(value, str) else repr(value)
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise QuantityError(f"{_shown(value)} is not a Kubernetes quantity; write a number such as 2 or 500m")
    whole, _, decimals = match["digits"].partition(".")
    number = Fraction(int(f"{whole}{decimals}"), 10 ** len(decimals))
    if match["exponent"]:
        exponent = max(-_MAX_EXPONENT, min(_MAX_EXPONENT, int(match["exponent"])))
        number *= Fraction(10) ** exponent
    else:
        number *= _SCALE[match["suffix"] or ""]
    return _capped(-number if match["sign"] == "-" else number)


def whole_units(value: str | int | float | bool) -> int:
    """A quantity as whole units: a fraction rounds down, a negative value is an error (K3)."""
    number = quantity(value)
    if number < 0:
        raise QuantityError(f"{_shown(value)} is negative; write 0 to allow nothing")
    return number.__floor__()


def whole_bytes(value: str | int | float | bool) -> int:
    """A memory quantity in bytes, rounded up as Kubernetes does."""
    return quantity(value).__ceil__()


def _capped(number: Fraction) -> Fraction:
    return max(Fraction(-MAX_QUANTITY), min(Fraction(MAX_QUANTITY), number))


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > MAX_QUANTITY:
        return "a number beyond 2^63"
    text = repr(value)
    return text if len(text) <= 64 else f"{text[:60]}…"


class InitRequest(NamedTuple):
    """An init container's requests; `sidecar`: its restartPolicy is Always, so it stays."""

    requests: Mapping[str, int]
    sidecar: bool = False


def effective_request(
    containers: Iterable[Mapping[str, int]],
    init_containers: Iterable[InitRequest] = (),
    overhead: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """What a pod reserves of each resource for its whole life, as kube-scheduler counts it (R6).

    Per resource, the larger of two sums: all containers and sidecars, or the most demanding init container with
    the sidecars started before it. Overhead is added to that. `init_containers` are in the pod's order.
    """
    total: dict[str, int] = {}
    for requests in containers:
        _add(total, requests)
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for requests, sidecar in init_containers:
        running = dict(sidecars)
        _add(running, requests)
        if sidecar:
            sidecars = running
            _add(total, requests)
        for name, amount in running.items():
            peak[name] = max(peak.get(name, 0), amount)
    for name, amount in peak.items():
        total[name] = max(total.get(name, 0), amount)
    _add(total, overhead or {})
    return total


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount
