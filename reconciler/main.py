"""The command line.

Owns the list of commands; each lives in `reconciler.commands`. Nothing is downloaded at run time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from reconciler.commands import cluster_jobs, history, journal, plan, report, run, usage
from reconciler.console import console
from reconciler.version import VERSION


@click.group(context_settings={"auto_envvar_prefix": "GPU_BINDER", "help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="gpu-binder")
def main() -> None:
    """GPUs of a multi-tenant KubeVirt cloud: ordered, held, attached, explained and billed."""


@main.command("demo")
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("gpu-binder-demo.db"),
    show_default=True,
    help="Where the demo leaves its journal; a file of that name is replaced.",
)
def demo_command(journal: Path) -> None:
    """Play the main job on an in-memory cluster and leave its journal."""
    from reconciler.demo import demo

    asyncio.run(demo(journal, console()))


for command in (
    *run.COMMANDS,
    *history.COMMANDS,
    *journal.COMMANDS,
    *report.COMMANDS,
    *plan.COMMANDS,
    *usage.COMMANDS,
    *cluster_jobs.COMMANDS,
):
    main.add_command(command)
