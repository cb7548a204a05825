"""Summary of a billing statement: hours by state and cost per tenant and class (U3).

Adds up the rows of the FOCUS export, so that both show the same numbers to the last digit. Neighbours: `focus` (rows,
prices), `statement` (charges).
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal

import msgspec

from reconciler.billing import focus
from reconciler.billing.prices import PriceBook
from reconciler.billing.statement import Charge
from reconciler.core.metering.usage_records import UsageState

ISSUER = focus.Issuer(name="", account="")
EXACT = Context(prec=60)
"""Far more digits than a sum of quantities or costs has."""


class Line(msgspec.Struct, kw_only=True):
    """Usage of one tenant and SKU. `hours`: GPU-hours by state; `cost`: in the currency of the price book, 0 without
    one. `correction`: of earlier periods."""

    tenant: str
    sku: str
    correction: bool = False
    hours: dict[UsageState, Decimal] = msgspec.field(default_factory=lambda: dict.fromkeys(UsageState, Decimal(0)))
    cost: Decimal = Decimal(0)

    def add(self, state: UsageState, hours: Decimal, cost: Decimal) -> None:
        """Add GPU-hours and their cost."""
        self.hours[state] = EXACT.add(self.hours[state], hours)
        self.cost = EXACT.add(self.cost, cost)


def summarize(charges: Iterable[Charge], *, start: int, prices: PriceBook | None = None) -> list[Line]:
    """Lines by tenant and SKU, corrections of earlier periods last; memory grows with the lines only. `start`: start
    of the billing period (ms). Raises `PriceBookError` if a charge has no price."""
    lines: dict[tuple[bool, str, str], Line] = {}
    for charge in charges:
        record = charge.record
        key = (charge.correction, record.tenant, focus.sku(record))
        line = lines.setdefault(key, Line(tenant=record.tenant, sku=key[2], correction=charge.correction))
        for row in focus.rows(charge, issuer=ISSUER, start=start, prices=prices):
            line.add(record.state, Decimal(row["PricingQuantity"] or 0), Decimal(row["BilledCost"] or 0))
    return [lines[key] for key in sorted(lines)]


def total(lines: Iterable[Line]) -> Line:
    """The sum of all lines."""
    found = Line(tenant="", sku="")
    for line in lines:
        for state, hours in line.hours.items():
            found.add(state, hours, Decimal(0))
        found.add(UsageState.HELD, Decimal(0), line.cost)
    return found
