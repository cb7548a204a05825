"""Debugging commands on damaged journals: changed, truncated, copied, from one replica (J6, J7)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from journal import events
from journal.sqlite import SqliteJournal
from reconciler.core.state.decisions import Action
from reconciler.debugging import replay
from tests.edges.cli import run


@pytest.fixture(scope="module")
def changed(journal: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's journal as another build would have written it: its first bind went elsewhere."""
    path = tmp_path_factory.mktemp("changed") / "journal.db"
    source, copy = SqliteJournal(str(journal), readonly=True), SqliteJournal(str(path))
    once = True
    for entry in source.read():
        event = entry.event
        if once and isinstance(event, events.Decided) and replay.decision_of(event).action is Action.BIND:
            once = False
            decision = msgspec.structs.replace(replay.decision_of(event), node="gpu-9")
            event = events.Decided(msgspec.Raw(msgspec.json.encode(decision)))
        copy.append([event], at=entry.at, batch=entry.batch)
    source.close()
    copy.close()
    return path


# verify (J7)


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_verify_shows_a_decision_that_differs_in_every_form(changed: Path, form: str) -> None:
    found = run("verify", str(changed), "-o", form)
    assert found.exit_code == 1
    if form == "table":
        assert "recorded 'gpu-9', recomputed 'gpu-2'" in found.output and "writes" in found.output
        return
    told = json.loads(found.output) if form == "json" else yaml.safe_load(found.output)
    assert told["same"] is False
    sides = told["difference"]["recorded"], told["difference"]["recomputed"]
    assert [side["node"] for side in sides] == ["gpu-9", "gpu-2"]
    assert {type(write["after"]) for side in sides for write in side["writes"]} == {dict}


@pytest.mark.parametrize("form", ["table", "json"])
def test_nothing_to_verify_is_not_a_yes(tmp_path: Path, form: str) -> None:
    path = tmp_path / "journal.db"
    SqliteJournal(str(path)).close()
    found = run("verify", str(path), "-o", form)
    assert found.exit_code == 1 and "all the same" not in found.output
    assert "holds no entry to verify" in found.stderr


# A journal fetched from a pod (J6)


def test_a_consistent_copy_is_streamed_to_standard_output(journal: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    path.write_bytes(run("journal", "export", str(journal), "--copy", "-").stdout_bytes)
    assert "all the same" in run("verify", str(path)).output
    assert not Path("-").exists()
