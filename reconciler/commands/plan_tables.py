"""Tables of a plan for a terminal. Owns presentation; the content comes from `debugging.planning`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from reconciler.commands.console import budget_table, table
from reconciler.debugging.planning.drain import Drain
from reconciler.debugging.planning.plan import Outcome, Plan

SHOWN_NODES = 20
"""Nodes listed in a table; `-o json` has all of them."""


def print_plan(plan: Plan, out: Console) -> None:
    """Print the verdict, the blockers, the nodes and the budgets."""
    verdicts = {
        Outcome.BOUND: f"would start on {plan.node}",
        Outcome.HELD: "would be held",
        Outcome.BLOCKED: f"is blocked for {len(plan.blockers)} reason{'s'[: len(plan.blockers) != 1]}",
    }
    asked = ", ".join(f"{count} {name}" for name, count in sorted(plan.needs.items()))
    out.print(
        f"\n[bold]{plan.kind} {escape(plan.subject)} {verdicts[plan.outcome]}[/bold]"
        + (f" (requests {escape(asked)})" if asked else ""),
        soft_wrap=True,
    )
    for note in plan.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)
    if plan.blockers:
        rows = [(blocker.reason, blocker.missing or "", blocker.message) for blocker in plan.blockers]
        out.print(table("Blockers", ("reason", "missing", "why"), rows, numbers=("missing",)))
    if plan.nodes:
        _print_nodes(plan, out)
    if plan.budgets:
        out.print(budget_table(plan.budgets))


def _print_nodes(plan: Plan, out: Console) -> None:
    names = sorted(plan.needs)
    rows = []
    for verdict in plan.nodes[:SHOWN_NODES]:
        chosen = "chosen" if verdict.node == plan.node else ""
        free = ", ".join(str(verdict.free.get(name, 0)) for name in names)
        left = verdict.left if verdict.fits else ""
        rows.append(
            (
                verdict.node,
                chosen or ("fits" if verdict.fits else "no"),
                free,
                verdict.missing or "",
                left,
                verdict.why,
            )
        )
    columns = ("node", "verdict", f"free {', '.join(names)}", "missing", "left", "why")
    out.print(table("Nodes", columns, rows, numbers=("missing", "left")))
    if len(plan.nodes) > SHOWN_NODES:
        out.print(f"and {len(plan.nodes) - SHOWN_NODES} more nodes; -o json lists all")


def print_drain(drain: Drain, out: Console) -> None:
    """Print the restarts in order, then the raw use that its owners have to move."""
    stuck = f", {drain.stuck} of them fit nowhere" if drain.stuck else ""
    count = "1 VM" if len(drain.moves) == 1 else f"{len(drain.moves)} VMs"
    out.print(f"\n[bold]To drain {escape(drain.node)}, {count} must restart{stuck}[/bold]")
    rows = [
        (
            number,
            f"{move.namespace}/{move.vmi}",
            ", ".join(f"{count} {name}" for name, count in sorted(move.units.items())),
            move.node or "nowhere",
            move.missing or "",
            "; ".join(f"{blocker.reason}: {blocker.message}" for blocker in move.blockers),
        )
        for number, move in enumerate(drain.moves, 1)
    ]
    if rows:
        columns = ("", "vm", "units", "would go to", "missing", "why")
        out.print(table("Restarts, in this order", columns, rows, numbers=("", "missing")))
    if drain.raw:
        raw = [(f"{p.namespace}/{p.pod}", p.vmi, sum(p.units.values())) for p in drain.raw]
        title = "Raw use, to be moved by its owners"
        out.print(table(title, ("pod", "vmi", "units"), raw, numbers=("units",)))
