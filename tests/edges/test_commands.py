"""The commands that read a journal: what they print, and how they end (J6, J7)."""

from __future__ import annotations

import asyncio
import json
import shutil
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from journal import events
from journal.sqlite import SqliteJournal
from journal.store import MemoryJournal
from reconciler import replay
from reconciler.core.decisions import Action
from reconciler.demo import demo
from reconciler.main import main


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the demo leaves."""
    path = tmp_path_factory.mktemp("demo") / "journal.db"
    asyncio.run(demo(path, Console(file=StringIO())))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def test_replay_shows_the_state_at_an_entry_and_at_a_time(journal: Path) -> None:
    latest = json.loads(run("replay", str(journal), "-o", "json").output)
    assert {device["name"] for device in latest["devices"]} >= {"render-1", "render-2", "lab-1"}
    early = json.loads(run("replay", str(journal), "--at", "30", "-o", "json").output)
    assert early["seq"] == 30
    timed = json.loads(run("replay", str(journal), "--at", "2026-01-01T00:00:03.6Z", "-o", "json").output)
    assert early["seq"] < timed["seq"] < latest["seq"]
    table = run("replay", str(journal), "--decisions").output
    assert "Hold" in table and "Budgets" in table


def test_explain_names_every_node_and_budget(journal: Path) -> None:
    found = json.loads(run("explain", str(journal), "vmi", "tenant-acme/wide", "-o", "json").output)["explanation"]
    assert found["by"] == "Webhook" and found["reason"] == "NoFreeUnits"
    assert (found["nodes"][0]["node"], found["nodes"][0]["missing"]) == ("gpu-1", 1)
    assert {b["tenant"] for b in found["budgets"]} == {"tenant-acme", "tenant-root"}
    assert "Bind tenant-acme/render on gpu-2" in run("explain", str(journal), "vmi", "tenant-acme/render").output
    assert "would leave" in run("explain", str(journal), "vmi", "tenant-acme/render").output
    assert "Hold" in run("explain", str(journal), "device", "tenant-acme/render-2").output


def test_who_held_what_when(journal: Path) -> None:
    bound = next(
        entry.seq
        for entry, decision in replay.decisions(SqliteJournal(str(journal), readonly=True))
        if decision.action is Action.BIND and decision.subject == "tenant-acme/render"
    )
    held = json.loads(run("who", str(journal), "gpu-2", "--at", str(bound), "-o", "json").output)["holders"]
    assert {row["vmi"] for row in held} == {"render"} and sum(row["units"] for row in held) == 2
    where = json.loads(run("who", str(journal), "tenant-acme/render-1", "--at", str(bound), "-o", "json").output)
    assert where["holders"][0]["node"] == "gpu-2"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("explain", "vmi", "tenant-acme/nobody"), 1),
        (("explain", "vmi", "nonsense"), 2),
        (("who", "no-such-node"), 1),
        (("replay", "--at", "yesterday"), 2),
    ],
)
def test_exit_codes(journal: Path, arguments: tuple[str, ...], code: int) -> None:
    command, *rest = arguments
    result = run(command, str(journal), *rest)
    assert result.exit_code == code, result.output


@pytest.mark.parametrize("command", ["replay", "verify", "journal info"])
def test_a_file_that_is_no_journal_is_named_and_left_alone(tmp_path: Path, command: str) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam,\n" * 100)
    result = run(*command.split(), str(path))
    assert result.exit_code == 3
    assert str(path) in result.output
    assert path.read_text().startswith("Dear Sir")


def test_verify_names_the_first_decision_that_differs(journal: Path) -> None:
    """A journal of another build is replayed by this one; the difference is shown side by side."""
    source, copy = SqliteJournal(str(journal), readonly=True), MemoryJournal()
    changed = 0
    for entry in source.read():
        event = entry.event
        if isinstance(event, events.Decided):
            decision = replay.decision_of(event)
            if decision.action is Action.BIND and not changed:
                changed = entry.seq
                decision = msgspec.structs.replace(decision, node="gpu-9")
            event = events.Decided(msgspec.Raw(msgspec.json.encode(decision)))
        copy.append([event], at=entry.at, batch=entry.batch)
    found = replay.verify(copy).difference
    assert found is not None and found.seq == changed
    assert found.what == "node: recorded 'gpu-9', recomputed 'gpu-2'"
    assert replay.verify(source).difference is None


def test_the_journal_s_own_commands(journal: Path, tmp_path: Path) -> None:
    info = json.loads(run("journal", "info", str(journal), "-o", "json").output)
    assert info["firstSeq"] == 1 and info["entries"] == info["lastSeq"]
    lines = run("journal", "tail", str(journal), "-n", "5").output.splitlines()
    assert len(lines) == 5 and lines[-1].split()[0] == str(info["lastSeq"])
    exported = run("journal", "export", str(journal), "--from", "2", "--to", "4").output.splitlines()
    assert [json.loads(line)["seq"] for line in exported] == [2, 3, 4]
    copied = tmp_path / "copy.db"
    assert run("journal", "export", str(journal), "--copy", str(copied)).exit_code == 0
    assert "all the same" in run("verify", str(copied)).output
    assert run("journal", "prune", str(copied)).exit_code == 2
    assert "entries dropped" in run("journal", "prune", str(copied), "--older-than-days", "1").output
    assert "all the same" in run("verify", str(copied)).output


def test_a_torn_file_is_told(journal: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.db"
    shutil.copy(journal, torn)
    with torn.open("r+b") as file:
        file.truncate(torn.stat().st_size // 2)
    result = run("verify", str(torn))
    assert result.exit_code == 3 and "damaged" in result.output
