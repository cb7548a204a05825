"""`report`: render a journal as one self-contained HTML page.

Owns arguments, the output file and exit codes; `debugging.report` builds the page.
"""

from __future__ import annotations

from pathlib import Path

import click

from journal.store import Journal
from reconciler.commands import console
from reconciler.commands.exit_codes import EXIT_DIFFERS, EXIT_OUTPUT, fail, reason
from reconciler.commands.journals import all_opened, journal_files, moment_of, progress, time_of
from reconciler.debugging.report.build import build_all
from reconciler.debugging.report.page import LibraryMissing, page
from reconciler.debugging.report.page_data import Bounds


@click.command("report")
@journal_files
@click.option(
    "--html", "out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="HTML file to write."
)
@click.option("--from", "start", metavar="SEQ|TIME", help="Start of the report; defaults to the first entry.")
@click.option("--to", "end", metavar="SEQ|TIME", help="End of the report; defaults to the last entry.")
@click.option(
    "--explained",
    type=click.IntRange(min=0),
    default=Bounds().explained,
    show_default=True,
    help="How many refusals and losses, and how many binds, to explain; newest first.",
)
def report_command(files: tuple[str, ...], out: Path, start: str | None, end: str | None, explained: int) -> None:
    """Render the journal FILES of a cluster's replicas as one HTML page: units per node over time, their holders,
    refusals and losses.

    The page needs no network. Click an incident or a bar for its decision: every node and why it was rejected, every
    budget. To stay readable with thousands of nodes, it keeps only the newest incidents and bars and merges adjacent
    points. Exit code 1: nothing was recorded in that period; 3: the journal cannot be read; 5: the page cannot be
    written.
    """
    with all_opened(files) as journals, progress("rendering", journals[0]) as reached:
        if len(files) > 1:
            begin, finish = time_of(start, "--from"), time_of(end, "--to")
        else:
            begin, finish = _time_of(journals[0], start), _time_of(journals[0], end)
        named = dict(zip(console.names_of(files), journals, strict=True))
        try:
            name, data = build_all(named, start=begin, end=finish, bounds=Bounds(explained=explained), progress=reached)
        except LookupError as error:
            fail(f"{', '.join(files)}: {error}; give another --from or --to", EXIT_DIFFERS)
    try:
        text = page(data, name)
        _write(out, text)
    except LibraryMissing as error:
        fail(str(error), EXIT_OUTPUT)
    except OSError as error:
        fail(f"{out} cannot be written: {reason(error)}", EXIT_OUTPUT)
    click.echo(
        f"{out}: {len(data.bars)} bars, {len(data.incidents)} incidents, {len(data.explained)} explained, "
        f"{len(text.encode()) / 1e6:.1f} MB"
    )


def _time_of(journal: Journal, text: str | None) -> int | None:
    """Milliseconds since the epoch for an entry number or a time."""
    seq, at = moment_of(text)
    if seq is None:
        return at
    entry = next(iter(journal.read(after=seq - 1, until=seq)), None) if seq > 0 else None
    if entry is None:
        raise click.BadParameter(f"no entry {seq}; the journal ends at entry {journal.last_seq}")
    return entry.at


def _write(out: Path, text: str) -> None:
    """Write the page atomically."""
    partial = out.with_name(out.name + ".part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


COMMANDS = (report_command,)
