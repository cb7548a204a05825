"""A journal of an earlier build, verified by this one under several hash seeds (J2, J6, J7)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from journal.sqlite import SqliteJournal
from reconciler.core import snapshot
from reconciler.core.fold import fold
from reconciler.core.state.decisions import Action
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging import replay
from tests.journal.make_story import STORY
from tests.tidy.source import ROOT

ACTIONS = {Action.GUARD, Action.HOLD, Action.BIND, Action.LOSE, Action.RESTORE, Action.RELEASE, Action.FINALIZE}


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """A copy: SQLite keeps files beside whatever it opens."""
    return Path(shutil.copy(STORY, tmp_path))


def test_the_story_has_every_kind_of_decision_that_matters(story: Path) -> None:
    journal = SqliteJournal(str(story), readonly=True)
    found = {decision.action for _, decision in replay.decisions(journal)}
    journal.close()
    assert found >= ACTIONS


@pytest.mark.parametrize("seed", ["0", "7", "12345"])
def test_this_build_decides_as_the_one_that_wrote_it(seed: str, story: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from reconciler.main import main; main()", "verify", str(story)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_j6_the_earlier_build_s_snapshots_are_restored_field_by_field(story: Path) -> None:
    """A field this build no longer reads is ignored; all others equal those of a fold from the first entry."""
    journal = SqliteJournal(str(story), readonly=True)
    recorded = journal.nearest_snapshot()
    assert recorded is not None
    folded = PlacementState()
    for entry in journal.read(until=recorded.seq):
        fold(folded, entry)
    journal.close()
    ours, theirs = (json.loads(snapshot.export(state)) for state in (folded, snapshot.restore(recorded.payload)))
    for state in (ours, theirs):
        for name in replay.DIES_WITH_THE_PROCESS:
            state.pop(name, None)
    assert theirs == ours
    assert set(json.loads(recorded.payload)) - set(replay.DIES_WITH_THE_PROCESS) <= set(ours)
