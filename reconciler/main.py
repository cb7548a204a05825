"""The command line.

Owns the list of commands and the error handling they share; each is implemented in `reconciler.commands`. Nothing is
downloaded at run time.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Any

import click

from journal.store import JournalError
from reconciler import VERSION
from reconciler.cluster.credentials import ClusterConfigError
from reconciler.commands import cluster_jobs, history, journal, plan, prices, report, run, usage
from reconciler.commands.console import console
from reconciler.commands.exit_codes import (
    EXIT_CLUSTER,
    EXIT_INTERRUPTED,
    EXIT_JOURNAL,
    EXIT_OUTPUT,
    EXIT_PIPE,
    fail,
    reason,
)

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""What writing to a file or a terminal fails with; any other fault of the operating system is ours to explain."""


class Commands(click.Group):
    """The command group, with the error handling shared by all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        """A closed pipe or Ctrl-C ends a command silently with the exit code a shell expects; an unusable journal or
        kubeconfig ends it with one sentence."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            sys.exit(EXIT_PIPE)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except JournalError as error:
            fail(str(error), EXIT_JOURNAL)
        except ClusterConfigError as error:
            fail(str(error), EXIT_CLUSTER)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            fail(f"the output cannot be written: {reason(error)}", EXIT_OUTPUT)


def _discard_output() -> None:
    """Drop buffered output that has no reader, so that the interpreter does not report it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Commands, context_settings={"auto_envvar_prefix": "GPU_BINDER", "help_option_names": ["-h", "--help"]})
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
    """Run the main scenario on an in-memory cluster and keep its journal."""
    from reconciler.demo.story import demo

    asyncio.run(demo(journal, console()))


for command in (
    *run.COMMANDS,
    *history.COMMANDS,
    *journal.COMMANDS,
    *report.COMMANDS,
    *plan.COMMANDS,
    *usage.COMMANDS,
    *prices.COMMANDS,
    *cluster_jobs.COMMANDS,
):
    main.add_command(command)
