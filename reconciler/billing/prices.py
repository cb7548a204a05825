"""The price book: price per unit and hour, with effective dates (U3).

A YAML file maintained by the hoster; `PriceBook` documents the format. Prices are parsed as decimals, never floats.
Owns reading and lookup; `focus` computes costs.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml

from reconciler.core.metering.usage_records import UsageState


class PriceBookError(ValueError):
    """The file is not a valid price book, or lacks a price that is needed; the message names the file, the place and
    the remedy."""


T = TypeVar("T")


class Price(msgspec.Struct, frozen=True):
    """`key`: class name, or resource name for raw use. `per_unit_hour`: in the book's currency, effective from
    `since` (ms). `ident`: permanent identifier (FOCUS SkuPriceId)."""

    key: str
    state: UsageState
    since: int
    per_unit_hour: Decimal

    @property
    def ident(self) -> str:
        return f"{self.key}/{self.state.value}/{day_of(self.since)}"


class _Loader(yaml.SafeLoader):
    """Keeps numbers as text, so that no price passes through a float; rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(found):
            if key in found[:number]:
                line = node.value[number][0].start_mark.line + 1
                raise _TwiceError(f"{key!r} stands twice in one map, the second time in line {line}; keep one of them")
        return super().construct_mapping(node, deep)


class _TwiceError(ValueError):
    """A duplicate key."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":float", ":int", ":timestamp"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class PriceBook:
    """Prices of classes and resource names by state and date.

    ```yaml
    currency: EUR
    prices:
      a100:                      # a class name, or a resource name for raw use
        - from: 2026-01-01       # UTC, from that midnight on
          bound: "2.40"          # per unit and hour
          held: "0.60"
          lost: "0"
      nvidia.com/GA102GL_A10:
        - {from: 2026-01-01, raw: "3.10"}
    ```
    """

    def __init__(self, currency: str, prices: list[Price], source: str = "the price book") -> None:
        self.currency = currency
        self._source = source
        self.prices = sorted(prices, key=lambda one: (one.key, one.state.value, one.since))
        for one, other in pairwise(self.prices):
            if one.ident == other.ident:
                raise PriceBookError(
                    f"{source} has two prices for {one.key!r} {one.state.value} from {day_of(one.since)}: "
                    f"{one.per_unit_hour} and {other.per_unit_hour}; keep one of them"
                )
        self._prices: dict[tuple[str, UsageState], list[Price]] = {}
        for price in self.prices:
            self._prices.setdefault((price.key, price.state), []).append(price)

    def priced_from(self, key: str, state: UsageState) -> int | None:
        """Earliest effective date (ms) of a price; None if there is none."""
        found = self._prices.get((key, state))
        return found[0].since if found else None

    def spans(self, key: str, state: UsageState, start: int, end: int) -> list[tuple[int, int, Price]]:
        """(start, end, price) pieces that cover a time span (ms). Raises `PriceBookError` where no price applies."""
        found = self._prices.get((key, state), [])
        pieces = []
        for price, until in zip(found, [*(after.since for after in found[1:]), end], strict=False):
            if max(start, price.since) < min(end, until):
                pieces.append((max(start, price.since), min(end, until), price))
        if not pieces or pieces[0][0] > start:
            raise PriceBookError(f"{self._source} has {lacking(key, state, start)}")
        return pieces


def lacking(key: str, state: UsageState, start: int) -> str:
    """A sentence on the prices a book lacks and what to add."""
    return (
        f"no price for {key!r} {state.value} on {day_of(start)}; "
        f"add `{state.value}` under prices.{key} with a `from` no later than that"
    )


def day_of(time: int) -> str:
    """The day (UTC) of a time in ms."""
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d}"


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One dated entry of a class or resource name, as written."""

    since: str = msgspec.field(name="from")
    held: Decimal | None = None
    bound: Decimal | None = None
    lost: Decimal | None = None
    raw: Decimal | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    currency: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]
    prices: dict[str, Any]


def load(path: Path) -> PriceBook:
    """Read a price book. Raises `PriceBookError`."""
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise PriceBookError(f"the price book {path} cannot be read: {error.strerror}") from error
    except _TwiceError as error:
        raise PriceBookError(f"{path}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PriceBookError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    book = _convert(found, _File, path, "")
    prices = []
    for key, written in book.prices.items():
        for number, entry in enumerate(_convert(written, list[_Entry], path, f"prices.{key}")):
            prices += _entry(str(key), entry, f"{path}: prices.{key}[{number}]")
    return PriceBook(book.currency, prices, str(path))


def _convert(value: Any, wanted: type[T], path: Path, where: str) -> T:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        place = where + place.strip("`").removeprefix("$").removeprefix("." if not where else "")
        raise PriceBookError(f"{path}: {place + ': ' if place else ''}{what}; {_hint(place)}") from None


def _hint(place: str) -> str:
    """What belongs at a place of the file, such as `prices.a100[0].from`."""
    if place == "currency":
        return "write a three-letter code such as EUR"
    if place.endswith(".from"):
        return "write a date such as 2026-01-01"
    if place.endswith("]"):
        return f"an entry has `from` and prices for {', '.join(UsageState)}"
    if place.startswith("prices."):
        return 'write a price such as "2.40"' if "[" in place else "write a list of dated entries"
    return "a price book has `currency` and `prices`"


def _entry(key: str, entry: _Entry, where: str) -> list[Price]:
    try:
        midnight = datetime.combine(date.fromisoformat(entry.since), time(tzinfo=UTC))
    except ValueError:
        raise PriceBookError(f"{where}.from: {entry.since!r} is no date; {_hint('.from')}") from None
    prices = []
    for state in UsageState:
        amount: Decimal | None = getattr(entry, state.value)
        if amount is None:
            continue
        if not amount.is_finite() or amount < 0:
            raise PriceBookError(f"{where}.{state.value}: {amount} is no price; {_hint('prices.x[0].x')}")
        prices.append(Price(key, state, int(midnight.timestamp()) * 1000, amount))
    if not prices:
        raise PriceBookError(f"{where} states no price; it takes {', '.join(UsageState)}")
    return prices
