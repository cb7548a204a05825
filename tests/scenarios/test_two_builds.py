"""An older build goes on where a newer one was, as after `helm rollback`, and the newer one after it (J6).

Not covered: Helm's own part. It restores the older chart's templates and values and leaves CustomResourceDefinitions
as they are; the older build then meets objects with the newer build's fields, as it does here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from journal import events
from journal.sqlite import SqliteJournal
from tests.edges.cli import run
from tests.tidy.source import ROOT

OLDER = "3bbf74fa5bd7"
"""A build before schema version 2, fences that name their leader, and reports judged by their own time."""
SCRIPT = Path(__file__).parent / "one_build.py"

Turn = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = subprocess.run(["git", "archive", OLDER], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history does not go back to {OLDER}")
    target = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
        packed.extractall(target, filter="data")
    return target


@pytest.fixture
def turn(older: Path, tmp_path: Path) -> Turn:
    def play(build: str, name: str) -> dict[str, Any]:
        tree = older if build == "older" else ROOT
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path / "cluster.json"), str(tmp_path / "journal.db"), name],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return play


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_j6_the_older_build_goes_on_with_the_newer_one_s_journal_and_objects(
    turn: Turn, tmp_path: Path, end: str
) -> None:
    for number, build in enumerate(("newer", "older", "newer"), 1):
        found = turn(build, f"vm{number}-{end}")
        assert found["leads"] and found["failed"] == "None" and found["message"] is None, (build, found)
        assert found["phases"][f"order-vm{number}-{end}"] == "Held"
        assert sorted(found["phases"].values()) == ["Bound", *["Held"] * number], "one VM at a time"
        assert found["free"] == 3 - number
    path = str(tmp_path / "journal.db")
    done = run("verify", path)
    assert done.exit_code == 0, done.output
    done = run("usage", path, "--open")
    assert done.exit_code == 0
    assert all(f"vm{number}-{end}" in done.output for number in (1, 2, 3))


def test_j6_the_older_build_sets_aside_a_journal_with_entries_it_does_not_know(turn: Turn, tmp_path: Path) -> None:
    turn("newer", "vm1-stopped")
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    batch = journal.last_batch
    journal.append([events.HistoryReplaced("Node", "9", "3")], at=journal.last_at, batch=batch + 1)
    for number in range(300):
        journal.append([events.TimeReached()], at=journal.last_at + 1, batch=batch + 2 + number)
    journal.close()
    found = turn("older", "vm2-stopped")
    assert found["leads"] and "schema version 2, this build knows up to 1" in found["message"]
    found = turn("newer", "vm3-stopped")
    assert found["leads"] and found["message"] is None
    (aside,) = tmp_path.glob("journal.db.damaged-*Z")
    assert "vm1-stopped" in run("usage", str(aside), str(path), "--open").output, "nothing of the history is lost"
