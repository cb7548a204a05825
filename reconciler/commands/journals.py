"""Arguments shared by the commands that read journals: files, points in time, the output format, progress.

Owns how a file is opened, what is said of an incomplete one, and the syntax of times. Defines no command.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC

import click
import msgspec
from dateutil.parser import isoparse
from rich.progress import Progress, SpinnerColumn, TextColumn

from journal.sqlite import SqliteJournal
from journal.store import Journal, JournalError, complete_until
from reconciler.commands import console
from reconciler.commands.exit_codes import EXIT_DIFFERS, EXIT_JOURNAL, fail
from reconciler.core.model import text
from reconciler.core.snapshot import SnapshotError
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging import replicas
from reconciler.runtime import restore
from reconciler.runtime.wall_clock import now_ms

output = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(console.FORMATS),
    default="table",
    show_default=True,
    help="Output format.",
)
journal_file = click.argument("file", type=click.Path(dir_okay=False))
journal_files = click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False))

CLOSE = 0.75
"""Similarity from which a name is suggested, 0 to 1."""

_AGO = re.compile(r"-(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


@contextmanager
def opened(path: str) -> Iterator[SqliteJournal]:
    """Open a journal read-only, even while a controller writes it. Exits with code 3 if it cannot be read."""
    try:
        journal = SqliteJournal(path, readonly=True)
    except JournalError as error:
        fail(str(error), EXIT_JOURNAL)
    if journal.lacks_wal:
        until = f"ends at {text.moment(journal.last_at)} UTC" if journal.last_seq else "is empty"
        click.echo(
            f"gpu-binder: {path} was copied from a running controller without {path}-wal, which holds the newest "
            f"entries: this copy {until}; copy it with `gpu-binder journal export --copy`",
            err=True,
        )
    try:
        yield journal
    except (JournalError, SnapshotError, msgspec.DecodeError) as error:
        fail(str(error), EXIT_JOURNAL)
    finally:
        journal.close()


@contextmanager
def all_opened(paths: Sequence[str]) -> Iterator[list[SqliteJournal]]:
    """Open the journals of several replicas, as `opened` does."""
    with ExitStack() as stack:
        yield [stack.enter_context(opened(path)) for path in paths]


@contextmanager
def progress(what: str, journal: Journal) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on a terminal; yields a callback that takes the sequence number reached, or None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    columns = (SpinnerColumn(), TextColumn("{task.description}"), *Progress.get_default_columns()[1:])
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=journal.last_seq)
        yield lambda seq: bars.update(task, completed=seq)


def moment_of(written: str | None) -> tuple[int | None, int | None]:
    """Parse a point in time: (entry, None) for a number, (None, ms) for a time, (None, None) for None.

    A time is ISO 8601, in UTC unless it has a zone, `now`, or relative to it: `-90s`, `-15m`, `-1h`, `-2d`, `-1w`.
    """
    if written is None:
        return None, None
    if written.isdigit():
        return int(written), None
    if written == "now":
        return None, now_ms()
    if ago := _AGO.fullmatch(written):
        return None, now_ms() - int(ago[1]) * _SECONDS[ago[2]] * 1000
    try:
        found = isoparse(written.strip())
        return None, round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{written!r} is neither an entry number nor a time such as 2026-01-31T12:00:00Z, 2026-01-31 or -1h"
        ) from error


def time_of(written: str | None, option: str) -> int | None:
    """Parse a time (ms) where no entry number is possible."""
    seq, at = moment_of(written)
    if seq is not None:
        raise click.BadParameter(f"{written!r} is an entry number; {option} takes a time", param_hint=option)
    return at


def state_at(
    journals: Sequence[SqliteJournal], at: str | None, what: str = "folding"
) -> tuple[SqliteJournal, PlacementState]:
    """The state at an entry or a time, the latest by default, from the journal that knows most of it. Exits if no
    journal reaches it."""
    seq, time = moment_of(at)
    if seq is not None and len(journals) > 1:
        raise click.BadParameter(f"{at} is an entry number, which each journal has its own; give a time")
    journal = replicas.best_at(journals, time)
    if seq is not None and seq > journal.last_seq:
        fail(f"no entry {seq}: {journal.path} ends at entry {journal.last_seq}", EXIT_DIFFERS)
    with progress(what, journal) as reached:
        state = restore.state_at(journal, seq=seq, at=time, progress=reached)
    if state.seq == 0:
        first = next(iter(journal.read(until=1)), None)
        if first is None:
            fail(f"{journal.path} is empty", EXIT_DIFFERS)
        begin = f"{journal.path} starts at entry {first.seq}, {text.moment(first.at)} UTC"
        fail(f"nothing is recorded at {at}: {begin}", EXIT_DIFFERS)
    known = complete_until(journal)
    if time is not None and time > known:
        click.echo(f"gpu-binder: {journal.path} ends at {text.moment(known)} UTC; the answer is as of then", err=True)
    return journal, state


def suggestion(wanted: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the closest known names, "" if none is close. Of NAMESPACE/NAME both have to be close."""
    scores = sorted((-_closeness(wanted, name), name) for name in set(known))
    close = [name for score, name in scores[:3] if -score >= CLOSE]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _closeness(wanted: str, known: str) -> float:
    pairs = list(zip(wanted.split("/"), known.split("/"), strict=False))
    return min(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
