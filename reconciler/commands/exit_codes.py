"""How every command ends: its exit codes and the one sentence before them.

A code means the same for every command. Owns no command.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

EXIT_DIFFERS = 1
EXIT_USAGE = 2
EXIT_JOURNAL = 3
EXIT_CLUSTER = 4
EXIT_OUTPUT = 5
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

EXIT_CODES = {
    0: "yes: done, all the same, everything fits",
    EXIT_DIFFERS: "no: a decision differs, something is blocked, left over or without a price, no such subject or time",
    EXIT_USAGE: "an argument, a manifest or a price book cannot be used; nothing was done",
    EXIT_JOURNAL: "the journal cannot be opened, is no journal, damaged, held by another process or from a newer build",
    EXIT_CLUSTER: "the cluster does not answer, refuses to be read, or its kubeconfig cannot be used",
    EXIT_OUTPUT: "the output cannot be written, or the library it needs is not installed",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
    EXIT_PIPE: "the reader of the output went away, as in `… | head`",
}
"""Every exit code to what it says."""


def fail(message: str, code: int) -> NoReturn:
    """Say why on standard error and end."""
    click.echo(f"gpu-binder: {message}", err=True)
    sys.exit(code)


def reason(error: OSError) -> str:
    """What the operating system says, without its number."""
    return error.strerror or str(error)
