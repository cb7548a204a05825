"""The command line, run in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from reconciler.main import main


def run(*arguments: str) -> Result:
    """One command; an exception other than an exit is raised."""
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)
