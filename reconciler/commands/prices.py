"""`prices check`: whether a price book can bill what journals recorded (U3).

Owns what is shown; reading and lookup are `billing.prices`'.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from reconciler.billing import export
from reconciler.billing.focus import sku
from reconciler.billing.prices import PriceBookError, day_of, lacking, load
from reconciler.commands import console
from reconciler.commands.exit_codes import EXIT_DIFFERS
from reconciler.commands.journals import opened, output
from reconciler.core.metering.usage_records import UsageState


@click.group("prices")
def prices_group() -> None:
    """Look at a price book."""


@prices_group.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("journals", nargs=-1, type=click.Path(dir_okay=False))
@output
def check_command(file: Path, journals: tuple[str, ...], form: str) -> None:
    """Read the price book FILE; with JOURNALS also whether it prices everything they recorded, from its first day."""
    try:
        book = load(file)
    except PriceBookError as error:
        raise click.UsageError(str(error)) from error
    used = _used(journals)
    missing = [
        lacking(key, state, since)
        for (key, state), since in sorted(used.items())
        if (priced := book.priced_from(key, state)) is None or priced > since
    ]
    columns = ("key", "state", "from", "price", "used from")
    rows = [
        (
            price.key,
            price.state.value,
            day_of(price.since),
            str(price.per_unit_hour),
            day_of(used[price.key, price.state]) if (price.key, price.state) in used else "",
        )
        for price in book.prices
    ]
    if form == "table":
        title = f"Prices per unit and hour in {book.currency}"
        console.console().print(console.table(title, columns, rows, numbers=("price",)))
    else:
        names = ("key", "state", "from", "price", "usedFrom")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        console.emit({"currency": book.currency, "prices": found, "missing": missing}, form)
    for said in missing:
        click.echo(f"gpu-binder: {file} has {said}", err=True)
    if missing:
        raise click.exceptions.Exit(EXIT_DIFFERS)


def _used(files: tuple[str, ...]) -> dict[tuple[str, UsageState], int]:
    """What was used, by what it is sold as and its state, to since when (ms)."""
    used: dict[tuple[str, UsageState], int] = {}
    if not files:
        return used
    with ExitStack() as stack:
        journals = [stack.enter_context(opened(file)) for file in files]
        for record in export.usage(journals, cluster=""):
            used.setdefault((sku(record), record.state), record.start)
    return used


COMMANDS = (prices_group,)
