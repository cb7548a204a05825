"""FOCUS: usage as cost and usage data that billing tools read (U3).

Owns the columns of FOCUS 1.2 and those later versions renamed, the splitting of a record into rows (at month
boundaries and price changes) and exact decimals. Neighbours: `statement` (which records), `prices` (what they cost).
"""

from __future__ import annotations

import csv as csv_module
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import IO

import msgspec

from reconciler.billing.export import plain
from reconciler.billing.prices import Price, PriceBook
from reconciler.billing.statement import Charge
from reconciler.core.metering.usage_records import Record, UsageState

VERSION = "1.2"

_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_HOURS = Decimal("0.000000000001")
"""Unit-hours are rounded here: 3.6 ns of one unit, far below the journal's milliseconds."""
_HOUR_MILLISECONDS = Decimal(3_600_000)

COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "EffectiveCost",
    "HostProviderName",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceProviderName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
    "x_Exact",
    "x_IntervalId",
    "x_UsageId",
    "x_UsageState",
)
"""Of every export, priced or not."""

PRICED_COLUMNS = (
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "SkuPriceDetails",
    "SkuPriceId",
)
"""Only with a price book: FOCUS takes a usage row without a unit price only from who publishes none at all."""


class Issuer(msgspec.Struct, frozen=True, kw_only=True):
    """The invoice issuer. `account`: the billing account whose sub accounts are the cluster's tenants. `currency`:
    ISO 4217, used for exports without prices. `region`: "" means the cluster's name."""

    name: str
    account: str
    account_name: str = ""
    currency: str = "USD"
    region: str = ""


def write_focus(
    charges: Iterable[Charge], out: IO[str], *, issuer: Issuer, start: int, prices: PriceBook | None = None
) -> int:
    """Write one billing statement as FOCUS 1.2 CSV; returns the number of rows. `start`: start of the billing period
    (ms); a correction is charged in its month. Raises `PriceBookError` if a charge has no price."""
    columns = sorted((*COLUMNS, *PRICED_COLUMNS)) if prices is not None else list(COLUMNS)
    writer = csv_module.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    count = 0
    for charge in charges:
        for values in rows(charge, issuer=issuer, start=start, prices=prices):
            writer.writerow([values.get(name) or "" for name in columns])
            count += 1
    return count


def rows(
    charge: Charge, *, issuer: Issuer, start: int, prices: PriceBook | None = None
) -> Iterator[dict[str, str | None]]:
    """One charge as rows, split at month boundaries (UTC) and price changes."""
    for piece in _months(charge.record):
        if prices is None:
            yield _row(msgspec.structs.replace(charge, record=piece), issuer, start, None, issuer.currency)
            continue
        for begin, end, price in prices.spans(sku(piece), piece.state, piece.start, piece.end):
            part = msgspec.structs.replace(charge, record=piece.cut(begin, end))
            yield _row(part, issuer, start, price, prices.currency)


def sku(record: Record) -> str:
    """The SKU: the class, or the resource name for raw use."""
    return record.class_name or record.resource_name


def _months(record: Record) -> Iterator[Record]:
    begin = record.start
    while begin < record.end:
        _, after = month_of(begin)
        yield record.cut(begin, min(after, record.end))
        begin = after


def month_of(time: int) -> tuple[int, int]:
    """The calendar month (UTC, half open) of a time, in ms."""
    moment = datetime.fromtimestamp(time // 1000, UTC)
    first = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    after = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
    return int(first.timestamp()) * 1000, int(after.timestamp()) * 1000


def _row(charge: Charge, issuer: Issuer, start: int, price: Price | None, currency: str) -> dict[str, str | None]:
    record = charge.record
    hours = (Decimal(record.unit_milliseconds) / _HOUR_MILLISECONDS).quantize(_HOURS, context=_EXACT)
    hours *= charge.sign
    cost = Decimal(0) if price is None else _EXACT.multiply(hours, price.per_unit_hour)
    billed = month_of(start if charge.correction else record.start)
    placed = record.state is not UsageState.RAW
    begin = record.start // 1000
    unit_price = None if price is None else _decimal(price.per_unit_hour)
    return {
        "BilledCost": _decimal(cost),
        "BillingAccountId": issuer.account,
        "BillingAccountName": issuer.account_name or issuer.account,
        "BillingAccountType": "Cluster",
        "BillingCurrency": currency,
        "BillingPeriodStart": _second(billed[0] // 1000),
        "BillingPeriodEnd": _second(billed[1] // 1000),
        "CapacityReservationId": f"{record.cluster}/{record.uid}" if placed else None,
        "CapacityReservationStatus": _reservation(record),
        "ChargeCategory": "Usage",
        "ChargeClass": "Correction" if charge.correction else None,
        "ChargeDescription": _description(record),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _second(begin),
        "ChargePeriodEnd": _second(max(record.end // 1000, begin + 1)),
        "ConsumedQuantity": _decimal(Decimal(charge.sign * record.unit_milliseconds).scaleb(-3)),
        "ConsumedUnit": "GPU-Seconds",
        "ContractedCost": _decimal(cost),
        "ContractedUnitPrice": unit_price,
        "EffectiveCost": _decimal(cost),
        "HostProviderName": issuer.name,
        "InvoiceId": None,
        "InvoiceIssuerName": issuer.name,
        "ListCost": _decimal(cost),
        "ListUnitPrice": unit_price,
        "PricingCategory": "Standard",
        "PricingCurrency": currency,
        "PricingCurrencyContractedUnitPrice": unit_price,
        "PricingCurrencyEffectiveCost": _decimal(cost),
        "PricingCurrencyListUnitPrice": unit_price,
        "PricingQuantity": _decimal(hours),
        "PricingUnit": "GPU-Hours",
        "ProviderName": issuer.name,
        "PublisherName": issuer.name,
        "RegionId": issuer.region or record.cluster,
        "RegionName": issuer.region or record.cluster,
        "ResourceId": f"{record.cluster}/{record.uid}",
        "ResourceName": f"{record.namespace}/{record.name}",
        "ResourceType": record.kind,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU" if placed else "GPU of pods",
        "ServiceProviderName": issuer.name,
        "ServiceSubcategory": "Virtual Machines" if placed else "Containers",
        "SkuId": f"{sku(record)}/{record.state.value}",
        "SkuMeter": f"GPU time {record.state.value}",
        "SkuPriceDetails": None,
        "SkuPriceId": None if price is None else price.ident,
        "SubAccountId": record.tenant or None,
        "SubAccountName": record.tenant or None,
        "SubAccountType": "Tenant" if record.tenant else None,
        "Tags": _tags(record),
        "x_Exact": "true" if record.exact else "false",
        "x_IntervalId": record.interval,
        "x_UsageId": record.id,
        "x_UsageState": record.state.value,
    }


def _decimal(number: Decimal) -> str:
    """A decimal with a fraction, so that readers that infer column types do not read an integer."""
    text = plain(number)
    return text if "." in text else f"{text}.0"


def _second(time: int) -> str:
    """FOCUS times have whole seconds; quantities stay exact to the millisecond."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _reservation(record: Record) -> str | None:
    """Whether a commitment (a held device) was used: running is, idle or lost is not."""
    if record.state is UsageState.RAW:
        return None
    return "Used" if record.state is UsageState.BOUND else "Unused"


def _description(record: Record) -> str:
    where = f" on node {record.node}" if record.node else ""
    whose = f" for VM {record.vmi}" if record.vmi else ""
    return f"{record.units} x {sku(record)} {record.state.value}{where}{whose}"


def _tags(record: Record) -> str:
    tags = {
        "gpu-binder/cluster": record.cluster,
        "gpu-binder/namespace": record.namespace,
        "gpu-binder/node": record.node,
        "gpu-binder/resource-name": record.resource_name,
        "gpu-binder/vmi": record.vmi,
    }
    return msgspec.json.encode({key: value for key, value in tags.items() if value}).decode()
