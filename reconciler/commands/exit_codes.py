"""Exit codes, shared by all commands, and the error message printed before them.

A code has the same meaning in every command. Defines no command.
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
    0: "success: done, no difference, everything fits",
    EXIT_DIFFERS: "negative: a decision differs, something is blocked, left over or unpriced, a billing period is not "
    "covered, no such subject or time",
    EXIT_USAGE: "invalid argument, manifest or price book; nothing was done",
    EXIT_JOURNAL: "not a readable journal: missing, corrupt, locked by another process or from a newer build",
    EXIT_CLUSTER: "the cluster is unreachable or denies access, or the kubeconfig is invalid",
    EXIT_OUTPUT: "the output cannot be written, or a library it needs is not installed",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
    EXIT_PIPE: "the reader closed the output pipe, as in `… | head`",
}
"""Exit codes and their meanings."""


def fail(message: str, code: int) -> NoReturn:
    """Print an error message to standard error and exit."""
    click.echo(f"gpu-binder: {message}", err=True)
    sys.exit(code)


def reason(error: OSError) -> str:
    """The operating system's error message, without the errno."""
    return error.strerror or str(error)
