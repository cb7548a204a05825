"""`replay`, `decisions`, `explain`, `verify` and `who`: commands that query journals (J7).

Owns arguments and exit codes; the results come from `debugging.replay`, `debugging.replicas` and `debugging.explain`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence

import click
import msgspec

from journal.sqlite import SqliteJournal
from reconciler.commands import console
from reconciler.commands.exit_codes import EXIT_DIFFERS, fail
from reconciler.commands.journals import (
    all_opened,
    journal_file,
    journal_files,
    moment_of,
    opened,
    output,
    progress,
    state_at,
    suggestion,
    time_of,
)
from reconciler.core.model import text, wire
from reconciler.core.model.objects import Model
from reconciler.core.state.decisions import Action
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging import explain, replay, replicas
from reconciler.debugging.outcomes import Outcome
from reconciler.runtime import restore

HOUSEKEEPING = frozenset({Action.FENCE, Action.GUARD, Action.PUBLISH_CLASS, Action.PUBLISH_SETTINGS})
"""Decisions that nobody asks about: `decisions` leaves them out, `explain` prefers any other."""
REFUSALS = frozenset({Action.REFUSE_ORDER.value, Action.REFUSE_BIND.value, "Refuse"})


@click.command("replay")
@journal_files
@click.option("--at", metavar="SEQ|TIME", help="State after this entry or at this time; defaults to the latest.")
@click.option("--decisions/--no-decisions", default=False, help="Also list every decision up to that point.")
@output
def replay_command(files: tuple[str, ...], at: str | None, decisions: bool, form: str) -> None:
    """Show the placement state at any point of the journal FILES of a cluster's replicas."""
    with all_opened(files) as journals:
        journal, state = state_at(journals, at)
        made: list[tuple[int, Outcome]] = []
        if decisions:
            until = state.now + 1 if moment_of(at)[0] is None else None
            known = replicas.outcomes(journals if until is not None else [journal], end=until)
            made = [(number, one) for number, one in known if until is not None or one.seq <= state.seq]
    if form != "table":
        console.emit(_plain_state(state), form)
        return
    out = console.console()
    out.print(f"[bold]entry {state.seq}[/bold], {text.moment(state.now)} UTC")
    for _, one in made:
        out.print(console.outcome_line(one), markup=False)
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


@click.command("decisions")
@journal_files
@click.option("--from", "start", metavar="TIME", help="First time; defaults to the oldest entry.")
@click.option("--to", "end", metavar="TIME", help="End, exclusive; defaults to the newest entry.")
@click.option("--refused", is_flag=True, help="Only refused orders and starts.")
@click.option("--tenant", default="", help="Only this tenant's namespace and its descendants.")
@click.option("--node", default="", help="Only decisions that chose or concern this node.")
@click.option("--all", "everything", is_flag=True, help="Include fencing, finalizers and published status.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Number of newest decisions."
)
@output
def decisions_command(
    files: tuple[str, ...],
    start: str | None,
    end: str | None,
    refused: bool,
    tenant: str,
    node: str,
    everything: bool,
    lines: int,
    form: str,
) -> None:
    """List decisions and refusals from the journal FILES of a cluster's replicas, oldest first.

    A decision is in the journal of the replica that led, a webhook's refusal in that of the replica that served it.
    """
    window = time_of(start, "--from"), time_of(end, "--to")
    with all_opened(files) as journals:
        state = restore.state_at(replicas.best_at(journals, window[1])) if tenant else None
        newest: deque[tuple[int, Outcome]] = deque(maxlen=lines)
        count = 0
        for number, one in replicas.outcomes(journals, start=window[0], end=window[1]):
            if (not everything and one.action in HOUSEKEEPING) or (refused and one.action not in REFUSALS):
                continue
            if (node and one.node != node) or (state is not None and not _within(state, one, tenant)):
                continue
            count += 1
            newest.append((number, one))
    if not newest:
        close = "" if state is None else suggestion(tenant, state.charges.tenants())
        fail(f"no such decision{close}", EXIT_DIFFERS)
    if form != "table":
        console.emit([{"journal": files[number], **console.plain_of(one)} for number, one in newest], form)
        return
    shown = f"{len(newest)} newest of {count} decisions" if count > len(newest) else text.counted(count, "decision")
    console.console().print(console.outcome_table(shown, newest, files))


def _within(state: PlacementState, outcome: Outcome, tenant: str) -> bool:
    namespace = outcome.subject.rpartition("/")[0]
    return bool(namespace) and (namespace == tenant or tenant in state.charges.path(namespace))


@click.command("explain")
@journal_files
@click.argument("what", type=click.Choice(tuple(replicas.SUBJECT_KINDS)))
@click.argument("subject", metavar="NAMESPACE/NAME")
@click.option("--seq", type=int, help="Explain the decision at this entry; defaults to the last one.")
@output
def explain_command(files: tuple[str, ...], what: str, subject: str, seq: int | None, form: str) -> None:
    """Explain a decision: why a device, VMI or class got its result.

    Lists every node with its units and why it was rejected, and each budget up the tenant tree. FILES: the journals of
    all replicas; a refused start is in that of the replica that served it.
    """
    namespace, _, name = subject.rpartition("/")
    if not name or (what != "class" and not namespace):
        raise click.BadParameter(f"{subject!r} is not NAMESPACE/NAME", param_hint="'NAMESPACE/NAME'")
    label = "VMI" if what == "vmi" else what
    kind = replicas.SUBJECT_KINDS[what]
    with all_opened(files) as journals:
        found = replicas.history(journals, kind, namespace, name)
        if not found:
            _unknown_subject(journals, kind, f"{label} {subject}", subject)
        if seq is not None:
            chosen = next(((number, one) for number, one in found if one.seq == seq), None)
            if chosen is None:
                fail(f"entry {seq} is not a decision about {label} {subject}", EXIT_DIFFERS)
        else:
            chosen = next((one for one in reversed(found) if one[1].action not in HOUSEKEEPING), found[-1])
        number, outcome = chosen
        explained = explain.explain(journals[number], outcome.seq)
    if form != "table":
        history = [{"journal": files[number], **console.plain_of(one)} for number, one in found]
        console.emit({"journal": files[number], "explanation": explained, "history": history}, form)
        return
    out = console.console()
    console.print_explanation(explained, out)
    out.print(console.outcome_table(f"History of {what} {subject}", found, files, subject=False))


def _unknown_subject(journals: Sequence[SqliteJournal], kind: str, label: str, subject: str) -> None:
    where = "in this journal" if len(journals) == 1 else "in these journals"
    notes = []
    pruned = [journal for journal in journals if journal.first_seq > 1]
    if pruned:
        notes.append(f"{', '.join(one.path for one in pruned)} was pruned and lacks older decisions")
    if len(journals) == 1:
        notes.append("decisions of other replicas are in their journals: give those as well")
    close = suggestion(subject, replicas.subjects(journals, kind))
    fail(f"no decision about {label} {where}{''.join(f'; {note}' for note in notes)}{close}", EXIT_DIFFERS)


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
@journal_files
@click.argument("subject", metavar="NODE|NAMESPACE/DEVICE")
@click.option("--at", metavar="SEQ|TIME", help="Entry or time; defaults to the latest.")
@output
def who_command(files: tuple[str, ...], subject: str, at: str | None, form: str) -> None:
    """Show who held a node's units, or where a device's units were, at any point of the journal FILES of a cluster's
    replicas."""
    with all_opened(files) as journals:
        _, state = state_at(journals, at)
    asked = moment_of(at)[1] or state.now
    namespace, slash, name = subject.partition("/")
    rows: list[tuple[object, ...]]
    if slash:
        device = state.device(namespace, name)
        if device is None:
            close = suggestion(subject, (f"{d.namespace}/{d.name}" for d in state.all_devices()))
            fail(f"no device {subject} at {text.moment(asked)}{close}", EXIT_DIFFERS)
        placed, attached = device.placement, device.attachment
        node, vmi = (placed.node if placed else ""), (attached.vmi_name if attached else "")
        rows = [(node, namespace, name, vmi, device.count, device.phase)]
    else:
        if state.node(subject) is None and subject not in state.accounts:
            close = suggestion(subject, {*state.node_names(), *state.accounts})
            fail(f"no node {subject} at {text.moment(asked)}{close}", EXIT_DIFFERS)
        rows = [(subject, ns, dev, vmi, units, "Bound") for ns, dev, vmi, units in console.holders(state, subject)]
        rows += [
            (subject, pod.namespace, "", pod.vmi_name or pod.name, sum(state.raw_capacity[uid].values()), "Raw")
            for uid in sorted(state.gpu_pods_on.get(subject, ()))
            if state.raw_capacity.get(uid) and (pod := state.pod(uid)) is not None
        ]
    columns = ("node", "namespace", "device", "vmi", "units", "phase")
    if form != "table":
        console.emit({"at": wire.from_ms(asked), "holders": [dict(zip(columns, r, strict=True)) for r in rows]}, form)
        return
    console.console().print(console.table(f"At {text.moment(asked)} UTC", columns, rows, numbers=("units",)))


COMMANDS = (replay_command, decisions_command, explain_command, verify_command, who_command)
