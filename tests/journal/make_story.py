"""Writes the golden journal of decisions: the demo's, made by the build it is committed with.

`python -m tests.journal.make_story` replaces it. Do so when a decision is meant to differ from before, and say in the
changelog what differs: whoever upgrades can try the new build on yesterday's journal with `gpu-binder verify`.
"""

from __future__ import annotations

import asyncio
from io import StringIO
from pathlib import Path

from rich.console import Console

from journal.sqlite import SqliteJournal
from reconciler.demo.story import demo

STORY = Path(__file__).parent / "story" / "v1.sqlite"


def make(path: Path) -> None:
    """Play the demo and leave its journal as one file, without the files SQLite keeps beside it."""
    work = path.with_name("story.tmp.db")
    asyncio.run(demo(work, Console(file=StringIO())))
    path.unlink(missing_ok=True)
    journal = SqliteJournal(str(work), readonly=True)
    journal.copy_to(str(path))
    journal.close()
    for leftover in work.parent.glob("story.tmp.db*"):
        leftover.unlink()


if __name__ == "__main__":
    make(STORY)
