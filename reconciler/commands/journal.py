"""`journal info|tail|prune|export`: inspect and maintain a journal file (J1, J6).

Prints raw entries; `history` owns the commands that interpret them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from journal import events
from journal.events import Entry
from journal.sqlite import SqliteJournal
from journal.store import complete_until
from reconciler.commands import console
from reconciler.commands.exit_codes import EXIT_OUTPUT, fail
from reconciler.commands.journals import journal_file, moment_of, opened, output, progress
from reconciler.core.model import text, wire
from reconciler.debugging.outcomes import outcome_of
from reconciler.runtime.wall_clock import now_ms

DAY_MILLISECONDS = 86_400_000


@click.group("journal")
def journal_group() -> None:
    """Inspect, prune or export a journal FILE."""


@journal_group.command("info")
@journal_file
@output
def info_command(file: str, form: str) -> None:
    """Show size, time range and number of entries by kind."""
    with opened(file) as journal, progress("reading", journal) as reached:
        kinds: Counter[str] = Counter()
        first: Entry | None = None
        for entry in journal.read():
            first = first or entry
            kinds[type(entry.event).__name__] += 1
            if reached is not None:
                reached(entry.seq)
        snapshot = journal.nearest_snapshot()
        found = {
            "entries": sum(kinds.values()),
            "firstSeq": journal.first_seq,
            "lastSeq": journal.last_seq,
            "from": _shown(first.at if first else 0, form),
            "to": _shown(journal.last_at, form),
            "completeUntil": _shown(complete_until(journal), form),
            "bytes": journal.size_bytes,
            "newestSnapshot": snapshot.seq if snapshot else 0,
            "kinds": dict(sorted(kinds.items())),
        }
    if form != "table":
        console.emit(found, form)
        return
    rows = [(name, value) for name, value in found.items() if name != "kinds"]
    rows += [(f"  {name}", count) for name, count in sorted(kinds.items())]
    console.console().print(console.table(file, ("what", "value"), rows))


def _shown(at: int, form: str) -> str:
    return "" if not at else text.moment(at) if form == "table" else wire.from_ms(at)


@journal_group.command("tail")
@journal_file
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Number of entries to print."
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing entries as they are written.")
def tail_command(file: str, lines: int, follow: bool) -> None:
    """Print the newest entries, one per line."""
    with opened(file) as journal:
        after = max(journal.first_seq - 1, journal.last_seq - lines)
        while True:
            for entry in journal.read(after=after):
                click.echo(_line(entry))
                after = entry.seq
            if not follow:
                return
            time.sleep(0.5)


def _line(entry: Entry) -> str:
    event = entry.event
    if isinstance(event, events.Decided) and (outcome := outcome_of(entry)) is not None:
        return console.outcome_line(outcome)
    shown = [
        str(getattr(event, name))
        for name in event.__struct_fields__
        if not isinstance(getattr(event, name), msgspec.Raw | bytes) and getattr(event, name) != ""
    ]
    return f"{entry.seq:>7}  {text.moment(entry.at)}  {type(event).__name__:<18} {' '.join(shown)}"


@journal_group.command("prune")
@journal_file
@click.option("--older-than-days", type=click.FloatRange(min=0), help="Drop entries older than this.")
@click.option(
    "--to-megabytes", type=click.IntRange(min=1), help="Drop the oldest entries until the file fits this size."
)
def prune_command(file: str, older_than_days: float | None, to_megabytes: int | None) -> None:
    """Drop old entries and keep the snapshot that replay starts from. Refused while a controller
    has the file open, which prunes it automatically."""
    if older_than_days is None and to_megabytes is None:
        raise click.UsageError("give --older-than-days, --to-megabytes or both")
    before = None if older_than_days is None else now_ms() - round(older_than_days * DAY_MILLISECONDS)
    with opened(file):
        pass
    journal = SqliteJournal(file)
    try:
        pruned = journal.prune(before_at=before, max_bytes=None if to_megabytes is None else to_megabytes * 2**20)
    finally:
        journal.close()
    click.echo(f"{pruned} entries dropped")


@journal_group.command("export")
@journal_file
@click.option("--from", "start", metavar="SEQ|TIME", help="First entry; defaults to the oldest.")
@click.option("--to", "end", metavar="SEQ|TIME", help="Last entry; defaults to the newest.")
@click.option(
    "--copy",
    type=click.Path(path_type=Path),
    help="Write a consistent copy of the whole file here instead; `-`: to standard output.",
)
def export_command(file: str, start: str | None, end: str | None, copy: Path | None) -> None:
    """Stream the entries to standard output as JSON Lines. Safe while a controller writes the file."""
    with opened(file) as journal:
        if copy is not None:
            _copy(journal, copy)
            return
        after, until = _seq(journal, start, before=True), _seq(journal, end, before=False)
        for entry in journal.read(after=after or 0, until=until):
            kind, version, payload = events.encode(entry.event)
            line: dict[str, Any] = {
                "seq": entry.seq,
                "batch": entry.batch,
                "at": wire.from_ms(entry.at),
                "kind": kind,
                "version": version,
                "event": msgspec.Raw(payload),
            }
            click.echo(msgspec.json.encode(line))


class ExportedEntry(msgspec.Struct):
    """One line of `journal export`. `at`: RFC 3339; `event`: the payload of its `kind` and `version`."""

    seq: int
    batch: int
    at: str
    kind: str
    version: int
    event: msgspec.Raw


@journal_group.command("import")
@click.argument("source", type=click.File("rb"))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def import_command(source: IO[bytes], file: Path) -> None:
    """Make the journal FILE from SOURCE, the output of `journal export` (-: standard input).

    The export has to begin with the first entry: a pruned journal starts from a snapshot, which only `journal export
    --copy` keeps.
    """
    if file.exists():
        raise click.UsageError(f"{file} exists; name a new file")
    journal = SqliteJournal(file)
    try:
        for (batch, at), lines in groupby(_entries(source), key=lambda one: (one.batch, one.at)):
            made = [events.decode(one.kind, one.version, bytes(one.event)) for one in lines]
            journal.append(made, at=wire.to_ms(at), batch=batch)
    except (events.UnknownEventError, msgspec.ValidationError, ValueError) as error:
        raise click.UsageError(f"the export cannot be imported: {error}") from error
    finally:
        count = journal.last_seq
        journal.close()
        if sys.exc_info()[0] is not None:
            for left in (file, *(file.with_name(file.name + suffix) for suffix in ("-wal", "-shm", ".lock"))):
                left.unlink(missing_ok=True)
    click.echo(f"{count} entries imported into {file}")


def _entries(source: IO[bytes]) -> Iterator[ExportedEntry]:
    """The lines of an export, which holds every entry from the first on."""
    for number, line in enumerate(source, 1):
        try:
            found = msgspec.json.decode(line, type=ExportedEntry)
        except msgspec.DecodeError as error:
            raise click.UsageError(f"line {number} is no entry of a `journal export`: {error}") from error
        if found.seq != number:
            raise click.UsageError(
                f"line {number} is entry {found.seq}, but an import needs every entry from the first on; copy a pruned "
                "journal with `journal export --copy`"
            )
        yield found


def _copy(journal: SqliteJournal, target: Path) -> None:
    """A consistent copy at `target`; `-` streams it to standard output."""
    if str(target) != "-":
        journal.copy_to(str(target))
        return
    with tempfile.TemporaryDirectory() as directory:
        free = shutil.disk_usage(directory).free
        if free < journal.size_bytes:
            fail(
                f"a copy of {journal.size_bytes} bytes does not fit into {directory}, which has {free} free; set "
                "TMPDIR to a directory with more, or name a file instead of -",
                EXIT_OUTPUT,
            )
        whole = Path(directory) / "journal.db"
        journal.copy_to(whole)
        with whole.open("rb") as source:
            shutil.copyfileobj(source, sys.stdout.buffer)


def _seq(journal: SqliteJournal, text: str | None, *, before: bool) -> int | None:
    seq, at = moment_of(text)
    if at is not None:
        return journal.seq_at(at - 1 if before else at)
    return seq - 1 if seq is not None and before else seq


COMMANDS = (journal_group,)
