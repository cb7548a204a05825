"""The price book: price per unit and hour, with effective dates (U3).

A YAML file maintained by the hoster; `PriceBook` documents the format. Prices are parsed as decimals, never floats.
Owns reading and lookup; `focus` computes costs.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import yaml

from reconciler.core.metering.usage_records import UsageState


class PriceBookError(ValueError):
    """The file is not a valid price book, or lacks a price that is needed; the message names the file, the place and
    the remedy."""


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
    book = _map(found, path, "the file")
    unknown = sorted(set(book) - {"currency", "prices"})
    if unknown:
        raise PriceBookError(f"{path}: {unknown[0]!r} is no key of a price book; it has `currency` and `prices`")
    currency = book.get("currency")
    if not isinstance(currency, str) or len(currency) != 3 or not currency.isalpha() or not currency.isupper():
        raise PriceBookError(f"{path}: currency must be a three-letter code such as EUR, not {currency!r}")
    prices = []
    for key, entries in _map(book.get("prices"), path, "prices").items():
        if not isinstance(entries, list):
            raise PriceBookError(f"{path}: prices.{key} must be a list of dated prices")
        for number, entry in enumerate(entries):
            prices += _entry(str(key), entry, path, f"prices.{key}[{number}]")
    return PriceBook(currency, prices, str(path))


def _map(value: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PriceBookError(f"{path}: {where} must be a map")
    return value


def _entry(key: str, entry: Any, path: Path, where: str) -> list[Price]:
    fields = dict(_map(entry, path, where))
    since = _day(fields.pop("from", None), path, where)
    if not fields:
        raise PriceBookError(f"{path}: {where} states no price; it takes {_states()}")
    prices = []
    for name, value in fields.items():
        if name not in UsageState._value2member_map_:
            raise PriceBookError(f"{path}: {where}.{name} is no state; it takes {_states()}")
        try:
            amount = Decimal(str(value))
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or amount < 0:
            raise PriceBookError(f'{path}: {where}.{name} must be a price such as "2.40", not {value!r}')
        prices.append(Price(key, UsageState(name), since, amount))
    return prices


def _states() -> str:
    return ", ".join(state.value for state in UsageState)


def _day(value: Any, path: Path, where: str) -> int:
    try:
        day = date.fromisoformat(str(value))
    except ValueError:
        raise PriceBookError(f"{path}: {where}.from must be a date such as 2026-01-01, not {value!r}") from None
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
