"""`usage`: export usage records from the journals of one or more replicas (U1, U2, U3).

Owns arguments, the progress bar and exit codes; `billing` owns records, formats and statements.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar, cast

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from journal.store import Journal
from reconciler.billing import export, focus, summary
from reconciler.billing.parquet import ParquetMissing, write_parquet
from reconciler.billing.prices import PriceBook, PriceBookError, load
from reconciler.billing.statement import Charge, NotCoveredError, closes_at, statement
from reconciler.commands import console
from reconciler.commands.exit_codes import EXIT_DIFFERS, EXIT_OUTPUT, fail, reason
from reconciler.commands.journals import all_opened, journal_files, suggestion, time_of
from reconciler.core.metering.usage_records import Record, UsageState
from reconciler.runtime.wall_clock import now_ms

T = TypeVar("T")
SPOOLED_BYTES = 16 * 2**20
"""A statement larger than this waits in a temporary file."""
FORMATS = ("jsonl", "csv", "focus", "table", "parquet")
STATEMENTS = ("focus", "table")
"""Formats of a billing statement."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """What a statement covers: a half-open period in ms, and the options of `statement`."""

    start: int
    end: int
    tenant: str
    cluster: str
    provisional: bool
    billed_until: int | None


@click.command("usage")
@journal_files
@click.option(
    "--from", "start", metavar="TIME", help="Start of the window (RFC 3339), inclusive; defaults to the oldest record."
)
@click.option("--to", "end", metavar="TIME", help="End of the window, exclusive; unlimited by default.")
@click.option("--tenant", default="", help="Only this tenant's namespace and its descendants.")
@click.option(
    "--open/--no-open", "include_open", default=False, help="Include ongoing usage up to the last known time."
)
@click.option("--cluster", default="default", show_default=True, help="Cluster name, set in every record.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="jsonl",
    show_default=True,
    help="Output format; `focus` and `table` make the statement of a billing period.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output file, or directory for Parquet; defaults to standard output."
)
@click.option(
    "--prices", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Price book for a statement."
)
@click.option("--issuer", default="hoster", show_default=True, help="Invoice issuer for FOCUS.")
@click.option("--account", default="gpu", show_default=True, help="Billing account for FOCUS.")
@click.option("--region", default="", help="Region for FOCUS; defaults to the cluster name.")
@click.option(
    "--provisional", is_flag=True, help="Make a statement even if the journals do not cover the whole period yet."
)
@click.option(
    "--billed-until",
    metavar="TIME",
    help="The previous invoice was a provisional statement, complete up to TIME; add what it lacked as corrections.",
)
@click.option("--currency", default="USD", show_default=True, help="Currency of a FOCUS export without a price book.")
def usage_command(
    files: tuple[str, ...],
    start: str | None,
    end: str | None,
    tenant: str,
    include_open: bool,
    cluster: str,
    form: str,
    out: Path | None,
    prices: Path | None,
    issuer: str,
    account: str,
    region: str,
    provisional: bool,
    billed_until: str | None,
    currency: str,
) -> None:
    """Export deduplicated usage records of one cluster from its replicas' journal FILES."""
    window = (time_of(start, "--from"), time_of(end, "--to"))
    if form in STATEMENTS and None in window:
        raise click.UsageError(f"--format {form} covers a billing period: give --from and --to")
    if form == "parquet" and out is None:
        raise click.UsageError("--format parquet writes a directory: give --out")
    for option, value in (("--prices", prices), ("--provisional", provisional), ("--billed-until", billed_until)):
        if value and form not in STATEMENTS:
            raise click.UsageError(f"{option} is for the statement of a period: --format {' or '.join(STATEMENTS)}")
    billed = focus.Issuer(name=issuer, account=account, currency=currency, region=region)
    try:
        book = load(prices) if prices is not None else None
        with all_opened(files) as journals, _bar() as reached:
            if form not in STATEMENTS:
                _write_records(journals, window, tenant, cluster, include_open, form, out, reached)
                return
            assert window[0] is not None and window[1] is not None
            period = Period(
                start=window[0],
                end=window[1],
                tenant=tenant,
                cluster=cluster,
                provisional=provisional,
                billed_until=time_of(billed_until, "--billed-until"),
            )
            charges = _charges(journals, period, reached)
            with _whole(out) as file_out:
                if form == "focus":
                    focus.write_focus(charges, file_out, issuer=billed, start=period.start, prices=book)
                else:
                    _write_table(charges, file_out, period, book)
    except NotCoveredError as error:
        fail(str(error), EXIT_DIFFERS)
    except (PriceBookError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    except ParquetMissing as error:
        fail(str(error), EXIT_OUTPUT)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"{out or 'standard output'} cannot be written: {reason(error)}", EXIT_OUTPUT)


def _write_records(
    journals: Sequence[Journal],
    window: tuple[int | None, int | None],
    tenant: str,
    cluster: str,
    include_open: bool,
    form: str,
    out: Path | None,
    reached: Callable[[int, int], None] | None,
) -> None:
    since = export.complete_since(journals)
    if since > (window[0] or 0):
        _warn(f"the journals were pruned: usage that ended before {export.rfc3339(since)} is missing")
    coverage = export.Coverage()
    found = export.usage(
        journals, cluster=cluster, start=window[0], end=window[1], tenant=tenant, coverage=coverage, progress=reached
    )
    kept = found if include_open else _closed(found, coverage)
    records = _warn_if_empty(kept, tenant, coverage)
    if form == "parquet":
        assert out is not None
        write_parquet(records, out, cluster=cluster)
        return
    with _output(out) as file_out:
        (export.write_jsonl if form == "jsonl" else export.write_csv)(records, file_out)


def _closed(records: Iterable[Record], coverage: export.Coverage) -> Iterator[Record]:
    """Without the records that are still in use; says how many those are."""
    yield from (record for record in records if not record.open)
    if coverage.in_use:
        intervals = "1 interval" if coverage.in_use == 1 else f"{coverage.in_use} intervals"
        known = export.rfc3339(coverage.until)
        _warn(f"{intervals} still in use at {known} left out; --open includes them up to then")


def _charges(
    journals: Sequence[Journal], period: Period, reached: Callable[[int, int], None] | None
) -> Iterator[Charge]:
    """The charges of a statement, and what the biller has to know of it on standard error."""
    closes, until = closes_at(period.end), export.complete_until(journals)
    if not period.provisional and now_ms() < closes:
        raise NotCoveredError(
            f"the period closes at {export.rfc3339(closes)}, when late facts are in; make the statement then, or a "
            "provisional one with --provisional"
        )
    if period.provisional and until < closes:
        _warn(
            f"provisional, complete only until {export.rfc3339(until)}; if it is invoiced, make the next statement "
            f"with --billed-until {export.rfc3339(until)}"
        )
    coverage = export.Coverage()
    yield from _warn_if_empty(
        statement(
            journals,
            cluster=period.cluster,
            start=period.start,
            end=period.end,
            tenant=period.tenant,
            provisional=period.provisional,
            billed_until=period.billed_until,
            coverage=coverage,
            progress=reached,
        ),
        period.tenant,
        coverage,
    )
    if not period.provisional and coverage.until < period.end:
        known = export.rfc3339(coverage.until)
        _warn(f"the journals end at {known}, when nothing was in use; later usage is not in them")


def _write_table(charges: Iterator[Charge], out: IO[str], period: Period, book: PriceBook | None) -> None:
    lines = summary.summarize(charges, start=period.start, prices=book)
    columns = ["tenant", "class", *(f"{state.value} h" for state in UsageState), *([] if book is None else ["cost"])]
    rows: list[tuple[object, ...]] = []
    for line in [*lines, summary.total(lines)]:
        whose = line.tenant or ("outside every tenant" if line.sku else "total")
        what = f"{line.sku} (corrections)" if line.correction else line.sku
        cost = [] if book is None else [export.plain(line.cost)]
        rows.append((whose, what, *(export.plain(hours) for hours in line.hours.values()), *cost))
    money = "" if book is None else f", cost in {book.currency}"
    title = f"GPU-hours of {period.cluster}, {export.rfc3339(period.start)} to {export.rfc3339(period.end)}{money}"
    Console(file=out, width=console.console().width).print(console.table(title, columns, rows, numbers=columns[2:]))


def _warn(message: str) -> None:
    click.echo(f"gpu-binder: {message}", err=True)


def _warn_if_empty(records: Iterator[T], tenant: str, coverage: export.Coverage) -> Iterator[T]:
    """Pass the records through; warn on standard error if there are none, for example because of a mistyped tenant."""
    found = False
    for record in records:
        found = True
        yield record
    if not found:
        whose = f" of {tenant} and its descendants" if tenant else ""
        _warn(f"no usage{whose} in this window{suggestion(tenant, coverage.tenants)}")


@contextmanager
def _output(out: Path | None) -> Iterator[IO[str]]:
    """The output file, written atomically, or standard output."""
    if out is None:
        yield sys.stdout
        return
    partial = out.with_name(f"{out.name}.partial")
    try:
        with partial.open("w", newline="", encoding="utf-8") as file_out:
            yield file_out
        partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _whole(out: Path | None) -> Iterator[IO[str]]:
    """As `_output`, standard output too: a bill that breaks off at a missing price must not pass for one."""
    with tempfile.SpooledTemporaryFile(SPOOLED_BYTES, "w+", newline="", encoding="utf-8") as kept:
        yield cast(IO[str], kept)
        kept.seek(0)
        with _output(out) as file_out:
            shutil.copyfileobj(cast(IO[str], kept), file_out)


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal; yields a callback (done, total), or None."""
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("reading", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


COMMANDS = (usage_command,)
