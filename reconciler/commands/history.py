"""`replay`, `explain`, `verify` and `who`: commands that query a journal (J7).

Owns arguments and exit codes; the results come from `debugging.replay` and `debugging.explain`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec
from rich.progress import Progress, SpinnerColumn, TextColumn

from journal.sqlite import SqliteJournal
from journal.store import Journal, JournalError
from reconciler.commands import console
from reconciler.commands.exit_codes import EXIT_DIFFERS, EXIT_JOURNAL, fail
from reconciler.core.model import text, wire
from reconciler.core.model.objects import Model
from reconciler.core.model.wire_base import ShapeError
from reconciler.core.snapshot import SnapshotError
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging import explain, replay
from reconciler.runtime import restore

output = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(console.FORMATS),
    default="table",
    show_default=True,
    help="Output format.",
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_UNZONED = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d+)?)?")

journal_file = click.argument("file", type=click.Path(exists=True, dir_okay=False))


@contextmanager
def opened(path: str) -> Iterator[SqliteJournal]:
    """Open a journal read-only, even while a controller writes it. Exits with code 3 if it cannot be read."""
    try:
        journal = SqliteJournal(path, readonly=True)
    except JournalError as error:
        fail(str(error), EXIT_JOURNAL)
    try:
        yield journal
    except (JournalError, SnapshotError, msgspec.DecodeError) as error:
        fail(str(error), EXIT_JOURNAL)
    finally:
        journal.close()


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


def moment_of(text: str | None) -> tuple[int | None, int | None]:
    """Parse `--at`: (entry, None) for a number, (None, ms) for a time, (None, None) for None. A time is RFC 3339;
    without a zone, as in our own output, it is UTC, and a date means its midnight."""
    if text is None:
        return None, None
    if text.isdigit():
        return int(text), None
    written = text.strip().replace(" ", "T", 1)
    if _DATE.fullmatch(written):
        written += "T00:00:00Z"
    elif _UNZONED.fullmatch(written):
        written += "Z"
    try:
        return None, wire.to_ms(written)
    except (ShapeError, ValueError) as error:
        raise click.BadParameter(
            f"{text!r} is neither an entry number nor a time such as 2026-01-31T12:00:00Z or 2026-01-31"
        ) from error


def state_at(journal: SqliteJournal, at: str | None, reached: Callable[[int], None] | None) -> PlacementState:
    """The state at an entry or a time, the latest by default. Exits if the journal does not reach it."""
    seq, time = moment_of(at)
    if seq is not None and seq > journal.last_seq:
        fail(f"no entry {seq}: {journal.path} ends at entry {journal.last_seq}", EXIT_DIFFERS)
    state = restore.state_at(journal, seq=seq, at=time, progress=reached)
    if state.seq == 0:
        first = next(iter(journal.read(until=1)), None)
        if first is None:
            fail(f"{journal.path} is empty", EXIT_DIFFERS)
        begin = f"{journal.path} starts at entry {first.seq}, {text.moment(first.at)} UTC"
        fail(f"nothing is recorded at {at}: {begin}", EXIT_DIFFERS)
    return state


@click.command("replay")
@journal_file
@click.option("--at", metavar="SEQ|TIME", help="State after this entry or at this time; defaults to the latest.")
@click.option("--decisions/--no-decisions", default=False, help="Also list every decision up to that point.")
@output
def replay_command(file: str, at: str | None, decisions: bool, form: str) -> None:
    """Show the placement state at any point of a journal FILE."""
    with opened(file) as journal, progress("folding", journal) as reached:
        state = state_at(journal, at, reached)
        made = []
        if decisions:
            made = [(e, d) for e, d in replay.decisions(journal, journal.first_seq - 1) if e.seq <= state.seq]
    if form != "table":
        console.emit(_plain_state(state), form)
        return
    out = console.console()
    out.print(f"[bold]entry {state.seq}[/bold], {text.moment(state.now)} UTC")
    for entry, decision in made:
        out.print(console.decision_line(entry.seq, entry.at, decision), markup=False)
    out.print(console.device_table(state))
    out.print(console.node_table(state))
    out.print(console.tenant_table(state))


def _plain_state(state: PlacementState) -> dict[str, object]:
    return {
        "seq": state.seq,
        "at": wire.from_ms(state.now),
        "devices": list(state.all_devices()),
        "classes": state.classes(),
        "nodes": {
            node: {name: msgspec.structs.asdict(units) for name, units in sorted(found.items())}
            for node, found in sorted(state.accounts.items())
        },
        "unreadable": [state.unreadable[key] for key in sorted(state.unreadable)],
        "missingKinds": sorted(state.missing),
    }


@click.command("explain")
@journal_file
@click.argument("what", type=click.Choice(tuple(explain.SUBJECT_KINDS)))
@click.argument("subject", metavar="NAMESPACE/NAME")
@click.option("--seq", type=int, help="Explain the decision at this entry; defaults to the last one.")
@output
def explain_command(file: str, what: str, subject: str, seq: int | None, form: str) -> None:
    """Explain a decision: why a device, VMI or class got its result.

    Lists every node with its units and why it was rejected, and each budget up the tenant tree.
    """
    namespace, _, name = subject.rpartition("/")
    if not name or (what != "class" and not namespace):
        raise click.BadParameter(f"{subject!r} is not NAMESPACE/NAME", param_hint="'NAMESPACE/NAME'")
    label = "VMI" if what == "vmi" else what
    with opened(file) as journal:
        lines = explain.history(journal, explain.SUBJECT_KINDS[what], namespace, name)
        if not lines:
            fail(f"no decision about {label} {subject} in this journal", EXIT_DIFFERS)
        wanted = seq if seq is not None else _deciding_entry(lines)
        if wanted not in {line.seq for line in lines}:
            fail(f"entry {wanted} is not a decision about {label} {subject}", EXIT_DIFFERS)
        found = explain.explain(journal, wanted)
    if form != "table":
        console.emit({"explanation": found, "history": lines}, form)
        return
    out = console.console()
    console.print_explanation(found, out)
    out.print(console.history_table(f"{what} {subject}", lines))


def _deciding_entry(lines: list[explain.HistoryLine]) -> int:
    """The last entry that placed, held or refused something, or else the last entry."""
    choices = ("Bind", "RefuseBind", "Hold", "RefuseOrder", "Refuse", "Lose", "Restore")
    deciding = [line.seq for line in lines if line.action in choices]
    return deciding[-1] if deciding else lines[-1].seq


class VerifyAnswer(Model, frozen=True, kw_only=True):
    """Output of `verify -o json`."""

    entries: int
    decisions: int
    same: bool
    difference: replay.Difference | None = None


@click.command("verify")
@journal_file
@output
def verify_command(file: str, form: str) -> None:
    """Recompute every decision of a journal FILE with this build and report the first that differs.

    Exit code 0: no difference; 1: a decision differs or there are no entries; 3: the file cannot be read.
    """
    with opened(file) as journal, progress("verifying", journal) as reached:
        found = replay.verify(journal, reached)
    if not found.entries:
        fail(f"{file} holds no entry to verify", EXIT_DIFFERS)
    if form != "table":
        console.emit(
            VerifyAnswer(
                entries=found.entries,
                decisions=found.decisions,
                same=found.difference is None,
                difference=found.difference,
            ),
            form,
        )
    elif found.difference is None:
        click.echo(f"{found.entries} entries, {found.decisions} decisions: all the same")
    else:
        _print_difference(found.difference)
    if found.difference is not None:
        sys.exit(EXIT_DIFFERS)


def _print_difference(found: replay.Difference) -> None:
    out = console.console()
    out.print(f"[bold]entry {found.seq}[/bold], {text.moment(found.at)}: {found.what}", markup=True)
    sides = [{} if side is None else console.plain_of(side) for side in (found.recorded, found.recomputed)]
    names = sorted({*sides[0], *sides[1]})
    rows = [(name, *(_cell(side.get(name, "")) for side in sides)) for name in names]
    out.print(console.table("First difference", ("field", "recorded", "recomputed"), rows))


def _cell(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@click.command("who")
@journal_file
@click.argument("subject", metavar="NODE|NAMESPACE/DEVICE")
@click.option("--at", metavar="SEQ|TIME", help="Entry or time; defaults to the latest.")
@output
def who_command(file: str, subject: str, at: str | None, form: str) -> None:
    """Show who held a node's units, or where a device's units were, at any point of a journal FILE."""
    with opened(file) as journal, progress("folding", journal) as reached:
        state = state_at(journal, at, reached)
    namespace, slash, name = subject.partition("/")
    rows: list[tuple[object, ...]]
    if slash:
        device = state.device(namespace, name)
        if device is None:
            fail(f"no device {subject} at {text.moment(state.now)}", EXIT_DIFFERS)
        assert device is not None
        placed, attached = device.placement, device.attachment
        rows = [
            (
                placed.node if placed else "",
                namespace,
                name,
                attached.vmi_name if attached else "",
                device.count,
                device.phase,
            )
        ]
    else:
        if state.node(subject) is None and subject not in state.accounts:
            fail(f"no node {subject} at {text.moment(state.now)}", EXIT_DIFFERS)
        rows = [(subject, ns, dev, vmi, units, "Bound") for ns, dev, vmi, units in console.holders(state, subject)]
        rows += [
            (subject, pod.namespace, "", pod.vmi_name or pod.name, sum(state.raw_capacity[uid].values()), "Raw")
            for uid in sorted(state.gpu_pods_on.get(subject, ()))
            if state.raw_capacity.get(uid) and (pod := state.pod(uid)) is not None
        ]
    columns = ("node", "namespace", "device", "vmi", "units", "phase")
    if form != "table":
        console.emit(
            {"at": wire.from_ms(state.now), "holders": [dict(zip(columns, r, strict=True)) for r in rows]}, form
        )
        return
    console.console().print(console.table(f"At {text.moment(state.now)}", columns, rows, numbers=("units",)))


COMMANDS = (replay_command, explain_command, verify_command, who_command)
