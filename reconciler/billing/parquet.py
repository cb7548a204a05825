"""Usage records as Parquet, partitioned by day, for analytics across clusters (U3).

Intervals are split at midnight UTC, so that a day's partition holds exactly that day's unit-seconds and exporting a
day again gives the same file. Needs the extra `parquet` (pyarrow). Columns as in `export`, times as timestamps, unit
seconds as a decimal, and the cluster's name in every record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from reconciler.billing.export import COLUMNS, row
from reconciler.billing.external_sort import ExternalSort
from reconciler.core.metering.usage_records import Record

DAY_MILLISECONDS = 86_400_000
BATCH_RECORDS = 10_000


class ParquetMissing(RuntimeError):
    """pyarrow is not installed; the message says how to get it."""


def write_parquet(records: Iterable[Record], directory: Path, *, cluster: str) -> int:
    """Write one file per day, `DIRECTORY/day=YYYY-MM-DD/CLUSTER.parquet`; returns the number of rows. A day's file is
    replaced as a whole; other clusters' files are left alone. Raises ValueError for a `cluster` that cannot be a file
    name."""
    if not cluster or "/" in cluster or cluster.startswith("."):
        raise ValueError(f"the cluster's name {cluster!r} cannot name a file; give one without a slash")
    arrow, parquet = _arrow()
    schema = _schema(arrow)
    count = 0
    with ExternalSort(Record, lambda one: (one.start // DAY_MILLISECONDS, one.start, one.id)) as sorter:
        for record in records:
            for piece in _days(record):
                sorter.add(piece)
        with ExitStack() as stack:
            writer, open_day = None, None
            for day, batch in _batches(sorter):
                if day != open_day:
                    stack.close()
                    writer = stack.enter_context(_file(parquet, directory, day, cluster, schema))
                    open_day = day
                assert writer is not None
                writer.write_table(arrow.Table.from_pylist([_values(one) for one in batch], schema=schema))
                count += len(batch)
    return count


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ParquetMissing("Parquet needs pyarrow: pip install 'gpu-binder[parquet]'") from error
    return pyarrow, pyarrow.parquet


def _schema(arrow: Any) -> Any:
    text = arrow.string()
    time = arrow.timestamp("ms", tz="UTC")
    kinds = {
        "units": arrow.int64(),
        "from": time,
        "to": time,
        "unitSeconds": arrow.decimal128(38, 3),
        "open": arrow.bool_(),
        "exact": arrow.bool_(),
        "fromNotBefore": time,
        "fromNotAfter": time,
        "toNotBefore": time,
        "toNotAfter": time,
    }
    return arrow.schema([arrow.field(name, kinds.get(name, text)) for name in COLUMNS])


def _days(record: Record) -> Iterator[Record]:
    begin = record.start
    while begin < record.end:
        midnight = (begin // DAY_MILLISECONDS + 1) * DAY_MILLISECONDS
        yield record.cut(begin, min(midnight, record.end))
        begin = midnight


def _batches(records: Iterable[Record]) -> Iterator[tuple[str, list[Record]]]:
    batch: list[Record] = []
    for record in records:
        if batch and (len(batch) == BATCH_RECORDS or _day(batch[0]) != _day(record)):
            yield _day(batch[0]), batch
            batch = []
        batch.append(record)
    if batch:
        yield _day(batch[0]), batch


def _day(record: Record) -> str:
    return f"{datetime.fromtimestamp(record.start // 1000, UTC):%Y-%m-%d}"


@contextmanager
def _file(parquet: Any, directory: Path, day: str, cluster: str, schema: Any) -> Iterator[Any]:
    """A writer whose file appears only once complete."""
    folder = directory / f"day={day}"
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{cluster}.parquet"
    with parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer:
        yield writer
    unfinished.replace(folder / f"{cluster}.parquet")


def _values(record: Record) -> dict[str, Any]:
    values: dict[str, Any] = dict(row(record))
    values["unitSeconds"] = Decimal(record.unit_milliseconds).scaleb(-3)
    values["from"], values["to"] = record.start, record.end
    values["fromNotBefore"], values["fromNotAfter"] = record.start_earliest, record.start_latest
    values["toNotBefore"], values["toNotAfter"] = record.end_earliest, record.end_latest
    return values
