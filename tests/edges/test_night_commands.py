"""Debugging commands on damaged journals: changed, truncated, copied, from one replica (J6, J7)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import yaml
from pytest import MonkeyPatch

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


# Copies


@pytest.fixture
def live(journal: Path, tmp_path: Path) -> Iterator[Path]:
    """The demo's journal, open in a writer that has entries in its write-ahead log."""
    path = tmp_path / "live.db"
    source, writer = SqliteJournal(str(journal), readonly=True), SqliteJournal(path)
    for entry in source.read():
        writer.append([entry.event], at=entry.at, batch=entry.batch)
    source.close()
    yield path
    writer.close()


@pytest.mark.parametrize("command", ["journal info FILE", "replay FILE", "usage FILE --open", "decisions FILE"])
def test_j6_a_copy_without_its_write_ahead_log_is_told(live: Path, tmp_path: Path, command: str) -> None:
    """J6: neither the live file nor a clean copy of it is accused."""
    bare = tmp_path / "bare.db"
    shutil.copy(live, bare)
    assert "was copied from a running controller without" in run(*command.replace("FILE", str(bare)).split()).stderr
    clean = tmp_path / "clean.db"
    assert run("journal", "export", str(live), "--copy", str(clean)).exit_code == 0
    both = tmp_path / "both.db"
    shutil.copy(live, both)
    shutil.copy(f"{live}-wal", f"{both}-wal")
    for path in (live, clean, both):
        found = run(*command.replace("FILE", str(path)).split())
        assert found.exit_code == 0 and "was copied" not in found.stderr


def test_j6_a_journal_that_was_closed_or_whose_writer_died_is_not_accused(live: Path, tmp_path: Path) -> None:
    """J6: a killed writer leaves its write-ahead log."""
    closed = tmp_path / "closed.db"
    SqliteJournal(closed).close()
    reader = SqliteJournal(closed, readonly=True)
    assert not reader.lacks_wal
    reader.close()


@pytest.mark.parametrize("command", ["replay", "verify", "usage", "journal info", "decisions"])
def test_a_missing_journal_is_exit_code_3(tmp_path: Path, command: str) -> None:
    found = run(*command.split(), str(tmp_path / "none.db"))
    assert found.exit_code == 3 and "there is no journal at" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_j6_an_export_is_imported_to_the_same_journal(journal: Path, tmp_path: Path) -> None:
    """J6: entry by entry, and it verifies."""
    exported = run("journal", "export", str(journal)).stdout
    lines, made = tmp_path / "journal.jsonl", tmp_path / "made.db"
    lines.write_text(exported)
    assert run("journal", "import", str(lines), str(made)).exit_code == 0
    assert run("journal", "export", str(made)).stdout == exported
    assert "all the same" in run("verify", str(made)).stdout
    again = run("journal", "import", str(lines), str(made))
    assert again.exit_code == 2 and "exists; name a new file" in again.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: lines[1:], "line 1 is entry 2, but an import needs every entry from the first on"),
        (lambda lines: [*lines[:3], *lines[4:]], "line 4 is entry 5"),
        (lambda lines: [*lines[:3], "{"], "line 4 is no entry of a `journal export`"),
        (lambda lines: [lines[0].replace('"version":1', '"version":99')], "the export cannot be imported"),
    ],
)
def test_j6_a_broken_export_leaves_no_journal(
    change: Callable[[list[str]], list[str]], says: str, journal: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "journal.jsonl"
    lines.write_text("\n".join(change(run("journal", "export", str(journal)).stdout.splitlines())))
    found = run("journal", "import", str(lines), str(tmp_path / "made.db"))
    assert found.exit_code == 2 and says in found.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["journal.jsonl"]


def test_j6_a_copy_that_does_not_fit_is_refused_before_it_is_made(journal: Path, monkeypatch: MonkeyPatch) -> None:
    """J6: a pod whose /tmp overflows is evicted, with the controller in it."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    found = run("journal", "export", str(journal), "--copy", "-")
    assert found.exit_code == 5 and found.stdout == ""
    assert "does not fit into" in found.stderr and "TMPDIR to a directory" in found.stderr
