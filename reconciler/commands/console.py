"""Output of the commands: tables for a terminal, JSON and YAML for scripts.

Owns the format, not the content; every function takes plain model values. Times are printed in
UTC to the millisecond.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec
import yaml
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table

from reconciler.core.capacity.node_units import Units
from reconciler.core.model.device_state import holds_units
from reconciler.core.model.text import moment
from reconciler.core.model.wire_base import from_ms
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging.explain import BudgetLine, Explanation
from reconciler.debugging.outcomes import Outcome

SHORT = 12
"""Columns up to this width wrap last: wrapped numbers and phases are unreadable."""
TIMES = ("at", "since")
DATE = 12
"""Minimum width of a time column, so that a time wraps between date and time of day."""
FRAME, GAP = 3, 2
"""Characters per column besides its cells, with and without vertical borders."""

FORMATS = ("table", "json", "yaml")
TIME_KEYS = frozenset(
    (
        *("answeredAt", "at", "created", "deleting", "finished", "lastSeen"),
        *("lastTransitionTime", "phaseSince", "reportedAt", "requestedAt", "since", "started"),
    )
)
"""Fields of the model and of outcomes that are ms since the epoch; RFC 3339 in JSON and YAML."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves the error to `main`, which ends every command the same way."""
        raise BrokenPipeError


def console() -> Console:
    """Console on standard output. Not a terminal: as wide as $COLUMNS, otherwise 160 characters."""
    found = _Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal or os.environ.get("COLUMNS") else _Console(highlight=False, width=160)


def plain_of(value: Any) -> Any:
    """A value as JSON has it, with times in RFC 3339; objects that are kept encoded, such as what a write leaves, are
    decoded too."""
    return _timed(msgspec.json.decode(msgspec.json.encode(value)))


def _timed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: from_ms(item) if key in TIME_KEYS and isinstance(item, int) else _timed(item)
            for key, item in value.items()
        }
    return [_timed(item) for item in value] if isinstance(value, list) else value


def emit(value: Any, form: str) -> None:
    """Print a value as JSON or YAML on standard output."""
    plain = plain_of(value)
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())
    else:
        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()
) -> Table:
    """A table; columns in `numbers` are right-aligned, columns without any value are omitted."""
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    made = _Fitting(title=title, title_justify="left", title_style="bold", header_style="bold")
    for index, name in enumerate(columns):
        if not texts or any(row[index] for row in texts):
            longest = max(map(cell_len, (name, *(row[index] for row in texts))))
            made.add(name, longest, justify="right" if name in numbers else "left")
    for row in texts:
        made.add_row(*(text for index, text in enumerate(row) if any(each[index] for each in texts)))
    return made


class _Fitting(Table):
    """A table with borders if it fits; otherwise without vertical borders and with its short columns unwrapped."""

    _longest: list[int]

    def add(self, name: str, longest: int, justify: JustifyMethod) -> None:
        """Add a column. `longest`: width in characters of its longest cell, header included."""
        self.add_column(name, justify=justify, overflow="fold")
        self._longest = [*getattr(self, "_longest", []), longest]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if sum(self._longest) + FRAME * len(self._longest) + 1 > options.max_width:
            self.box, self.show_edge, self.pad_edge, self.padding = box.SIMPLE_HEAD, False, False, (0, 1, 0, 0)
            sized = list(zip(self._longest, self.columns, strict=True))
            whole = [DATE if column.header in TIMES else min(longest, SHORT) for longest, column in sized]
            if sum(whole) + GAP * len(whole) <= options.max_width:
                for longest, column in sized:
                    column.no_wrap = longest <= SHORT
                    column.min_width = DATE + 1 if column.header in TIMES else None
        return super().__rich_console__(console, options)


def device_table(state: PlacementState) -> Table:
    """Every order with its class, VMI, node and phase."""
    rows = []
    for device in state.all_devices():
        reason = next((c for c in device.conditions if c.status != "True"), None)
        rows.append(
            (
                device.namespace,
                device.name,
                device.class_name,
                device.count,
                device.phase or "New",
                device.attachment.vmi_name if device.attachment else "",
                device.placement.node if device.placement else "",
                moment(device.phase_since),
                reason.reason if reason else "",
            )
        )
    columns = ("namespace", "device", "class", "units", "phase", "vmi", "node", "since", "reason")
    return table("Devices", columns, rows, numbers=("units",))


def node_rows(state: PlacementState) -> list[tuple[str, str, Units]]:
    """(node, resource name, units), sorted by node and name."""
    return [
        (node, name, state.accounts[node][name])
        for node in sorted(state.accounts)
        for name in sorted(state.accounts[node])
    ]


def node_table(state: PlacementState) -> Table:
    """Units per node and resource name."""
    rows = [
        (node, name, "?" if u.served is None else u.served, u.placed, u.raw, u.free, u.limit.value)
        for node, name, u in node_rows(state)
    ]
    columns = ("node", "resource", "served", "placed", "raw", "free", "limited by")
    return table("Nodes", columns, rows, numbers=("served", "placed", "raw", "free"))


def tenant_table(state: PlacementState) -> Table:
    """Every tenant's budgets and the charges against them."""
    rows: list[tuple[object, ...]] = []
    for tenant in state.charges.tenants():
        budgets = state.charges.budgets(tenant)
        for key in sorted(budgets.limits):
            charge = state.charges.charge(tenant, key)
            rows.append((tenant, str(key), budgets.limits[key], charge, budgets.limits[key] - charge, ""))
        rows.extend((tenant, str(key), "?", "", "", why) for key, why in sorted(budgets.unreadable.items()))
        rows.extend((tenant, key, "", "", "", "bounds nothing: no such class or name") for key in budgets.unmatched)
    columns = ("tenant", "key", "budget", "charged", "left", "problem")
    return table("Budgets", columns, rows, numbers=("budget", "charged", "left"))


def names_of(files: Sequence[str]) -> list[str]:
    """Base names of files, whole paths where two are alike."""
    names = [os.path.basename(file) for file in files]
    return names if len(set(names)) == len(files) else list(files)


def outcome_table(
    title: str, found: Iterable[tuple[int, Outcome]], files: Sequence[str], *, subject: bool = True
) -> Table:
    """Decisions and refusals, each with the index of its file in `files`; without `subject` all are of one subject."""
    shown = names_of(files)
    rows = [
        (
            shown[number] if len(files) > 1 else "",
            one.seq,
            moment(one.at),
            one.by,
            one.action,
            one.subject if subject else "",
            one.node,
            one.reason,
            one.message,
        )
        for number, one in found
    ]
    columns = ("journal", "seq", "at", "by", "action", "subject", "node", "reason", "message")
    return table(title, columns, rows, numbers=("seq",))


def print_explanation(found: Explanation, out: Console) -> None:
    """Print the decision, then every node and every budget."""
    verdict = f"{found.action} {found.subject}" + (f" on {found.node}" if found.node else "")
    out.print(f"[bold]{verdict}[/bold]  (entry {found.seq}, {moment(found.at)}, {found.by})")
    if found.reason or found.message:
        out.print(f"{found.reason}{': ' if found.reason and found.message else ''}{found.message}")
    if found.unrecorded:
        out.print(f"{_count(found.unrecorded, 'more refusal')} before it without an entry")
    if found.cut:
        out.print("the request was too large to be recorded whole: nodes are judged without its constraints")
    if found.needs:
        out.print("requested: " + ", ".join(f"{count} {name}" for name, count in sorted(found.needs.items())))
    for name, sizes in sorted(found.holds.items()):
        if sizes:
            holds = ", ".join(f"{_count(n, 'order')} of {_count(size, 'unit')}" for size, n in sorted(sizes.items()))
            out.print(f"held and unplaced of {name}: {holds}")
    if found.nodes:
        out.print(_verdict_table(found))
    if found.budgets:
        out.print(budget_table(found.budgets))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def budget_table(lines: Iterable[BudgetLine]) -> Table:
    """Budgets up the tenant tree, for each key."""
    rows = [(b.key, b.tenant, "none" if b.budget is None else b.budget, b.charge, b.left, b.error) for b in lines]
    columns = ("key", "tenant", "budget", "charged", "left", "problem")
    return table("Budgets up the tenant tree", columns, rows, numbers=("budget", "charged", "left"))


def _verdict_table(found: Explanation) -> Table:
    names = sorted(found.needs) or sorted({name for verdict in found.nodes for name in verdict.free})
    rows = []
    for verdict in found.nodes:
        chosen = "chosen" if verdict.node == found.node and found.action == "Bind" else ""
        fits = chosen or ("fits" if verdict.fits else "no")
        free = ", ".join(f"{verdict.free.get(name, 0)}" for name in names)
        left = verdict.left if verdict.fits else ""
        why = verdict.why or (
            "" if chosen or found.action != "Bind" else f"would leave {verdict.left} free, more than {found.node}"
        )
        rows.append((verdict.node, fits, free, verdict.missing or "", left, why))
    columns = ("node", "verdict", f"free {', '.join(names)}", "missing", "left", "why")
    return table("Nodes", columns, rows, numbers=("missing", "left"))


def outcome_line(found: Outcome) -> str:
    """One decision or refusal as one line of text."""
    tail = f" on {found.node}" if found.node else ""
    why = f"  {found.reason + ': ' if found.reason else ''}{found.message}"
    return f"{found.seq:>7}  {moment(found.at)}  {found.action:<15} {found.subject}{tail}{why}"


def holders(state: PlacementState, node: str) -> list[tuple[str, str, str, int]]:
    """(namespace, device, VMI, units) of each device holding units on a node."""
    return [
        (
            device.namespace,
            device.name,
            device.attachment.vmi_name if device.attachment else "",
            device.placement.units,
        )
        for device in state.devices_on(node)
        if holds_units(device) and device.placement is not None
    ]
