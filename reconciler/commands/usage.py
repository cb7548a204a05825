"""`usage`: export usage records from the journals of one or more replicas (U1, U2, U3).

Owns arguments, the progress bar and exit codes; `billing` owns records, formats and statements.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TypeVar, cast

import click
from rich.console import Console
from rich.progress import Progress

from journal.store import Journal
from reconciler.billing import export, focus
from reconciler.billing.parquet import ParquetMissing, write_parquet
from reconciler.billing.prices import PriceBook, PriceBookError, load
from reconciler.billing.statement import closes_at, statement
from reconciler.commands.exit_codes import EXIT_OUTPUT, fail, reason
from reconciler.commands.history import moment_of, opened
from reconciler.runtime.wall_clock import now_ms

T = TypeVar("T")
SPOOLED_BYTES = 16 * 2**20
"""A statement larger than this waits in a temporary file."""
FORMATS = ("jsonl", "csv", "focus", "parquet")


@click.command("usage")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--from", "start", metavar="TIME", help="Start of the window (RFC 3339), inclusive; defaults to the oldest record."
)
@click.option("--to", "end", metavar="TIME", help="End of the window, exclusive; unlimited by default.")
@click.option("--tenant", default="", help="Only this tenant's namespace and its descendants.")
@click.option(
    "--open/--no-open", "include_open", default=False, help="Include ongoing usage up to the last known time."
)
@click.option("--cluster", default="default", show_default=True, help="Cluster name, set in every record.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="Output format.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output file, or directory for Parquet; defaults to standard output."
)
@click.option("--prices", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Price book for FOCUS.")
@click.option("--issuer", default="hoster", show_default=True, help="Invoice issuer for FOCUS.")
@click.option("--account", default="gpu", show_default=True, help="Billing account for FOCUS.")
@click.option("--region", default="", help="Region for FOCUS; defaults to the cluster name.")
@click.option(
    "--live", is_flag=True, help="The journals are being written: treat one without new entries as up to date."
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
    live: bool,
    currency: str,
) -> None:
    """Export deduplicated usage records of one cluster from its replicas' journal FILES."""
    window = (_time(start, "--from"), _time(end, "--to"))
    if form == "focus" and None in window:
        raise click.UsageError("--format focus covers a billing period: give --from and --to")
    if form == "parquet" and out is None:
        raise click.UsageError("--format parquet writes a directory: give --out")
    if prices is not None and form != "focus":
        raise click.UsageError(f"--prices is for --format focus; {form} records carry no prices")
    billed = focus.Issuer(name=issuer, account=account, currency=currency, region=region)
    now = now_ms() if live else None
    try:
        book = load(prices) if prices is not None else None
        with ExitStack() as stack:
            journals: list[Journal] = [stack.enter_context(opened(file)) for file in files]
            reached = stack.enter_context(_bar())
            if form == "focus":
                _write_focus(journals, window, tenant, cluster, billed, book, out, now, reached)
                return
            found = export.usage(
                journals,
                cluster=cluster,
                start=window[0],
                end=window[1],
                tenant=tenant,
                include_open=include_open,
                now=now,
                progress=reached,
            )
            records = _warn_if_empty(found, tenant)
            if form == "parquet":
                assert out is not None
                write_parquet(records, out, cluster=cluster)
                return
            with _output(out) as file_out:
                (export.write_jsonl if form == "jsonl" else export.write_csv)(records, file_out)
    except (PriceBookError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    except ParquetMissing as error:
        fail(str(error), EXIT_OUTPUT)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"{out or 'standard output'} cannot be written: {reason(error)}", EXIT_OUTPUT)


def _warn_if_empty(records: Iterator[T], tenant: str) -> Iterator[T]:
    """Pass the records through; warn on standard error if there are none, for example because of a mistyped tenant."""
    found = False
    for record in records:
        found = True
        yield record
    if not found:
        whose = f" of {tenant} and its descendants" if tenant else ""
        click.echo(f"gpu-binder: no usage{whose} in this window", err=True)


def _write_focus(
    journals: list[Journal],
    window: tuple[int | None, int | None],
    tenant: str,
    cluster: str,
    issuer: focus.Issuer,
    book: PriceBook | None,
    out: Path | None,
    now: int | None,
    reached: Callable[[int, int], None] | None,
) -> None:
    start, end = window
    assert start is not None and end is not None
    if now_ms() < closes_at(end):
        closes = export.rfc3339(closes_at(end))
        click.echo(
            f"gpu-binder: the statement is provisional until {closes}: late entries may still change it", err=True
        )
    charges = statement(journals, cluster=cluster, start=start, end=end, tenant=tenant, now=now, progress=reached)
    with _whole(out) as file_out:
        focus.write_focus(_warn_if_empty(charges, tenant), file_out, issuer=issuer, start=start, prices=book)


def _time(text: str | None, option: str) -> int | None:
    seq, at = moment_of(text)
    if seq is not None:
        raise click.BadParameter(f"{text!r} is an entry number; a window takes times", param_hint=option)
    return at


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
