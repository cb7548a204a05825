"""Commands that read a journal: output and exit codes (J6, J7)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from freezegun import freeze_time

from journal import events
from journal.sqlite import SqliteJournal
from journal.store import MemoryJournal
from reconciler.core.state.decisions import Action
from reconciler.debugging import replay
from tests.edges.cli import run
from tests.tidy.source import ROOT


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


def test_verify_compares_the_newest_snapshot_of_its_own_build(journal: Path) -> None:
    """J6: what a replica remembers is what its journal says."""
    source = SqliteJournal(str(journal), readonly=True)
    assert replay.verify(source, build="demo").snapshots == 1
    newest = source.nearest_snapshot()
    assert newest is not None
    wrong = json.loads(newest.payload) | {"silent": ["gpu-1"]}
    copy = MemoryJournal()
    for entry in source.read():
        copy.append([entry.event], at=entry.at, batch=entry.batch)
    copy.snapshot(newest.seq, newest.at, json.dumps(wrong).encode(), build="demo")
    found = replay.verify(copy, build="demo").difference
    assert found is not None and found.what == "the snapshot differs in silent"
    assert replay.verify(copy, build="another").difference is None


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
    assert "no entry to verify" in run("verify", str(copied)).stderr, "only the snapshot is left"


def test_prune_counts_days_back_from_the_wall_clock(journal: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy.db"
    assert run("journal", "export", str(journal), "--copy", str(copied)).exit_code == 0
    with freeze_time("2026-01-02T00:00:00Z"):
        assert run("journal", "prune", str(copied), "--older-than-days", "1").output == "0 entries dropped\n"
    with freeze_time("2026-01-03T00:00:00Z"):
        assert run("journal", "prune", str(copied), "--older-than-days", "1").output != "0 entries dropped\n"


def test_a_torn_file_is_told(journal: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.db"
    shutil.copy(journal, torn)
    with torn.open("r+b") as file:
        file.truncate(torn.stat().st_size // 2)
    result = run("verify", str(torn))
    assert result.exit_code == 3 and "damaged" in result.output


# What a terminal has room for


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_table_breaks_no_number_no_phase_and_no_time_at_any_usual_width(
    journal: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    told = run("replay", str(journal)).output
    assert max(map(len, told.splitlines())) <= width
    for whole in ("a40-8q", "Bound", "notebook", "gpu-3", "00:01:39.000", "2026-01-01"):
        assert whole in told
    assert "reason" not in told, "a column that is empty in every row takes no room"


def test_a_very_narrow_table_loses_nothing(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    told = run("who", str(journal), "tenant-acme/desktop-gpu-68693d02-0").output
    header = next(line for line in told.splitlines() if "device" in line)
    begin, end = header.index("device"), header.index("vmi")
    pieces = [line[begin:end].strip() for line in told.partition("─\n")[2].splitlines()]
    assert "".join(pieces) == "desktop-gpu-68693d02-0"


# How every command ends


def spawned(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """The command in a process of its own, with SIGINT as a terminal has it even where the tests run under nohup."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from reconciler.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], text=True, stderr=subprocess.PIPE, env=environment, **more
    )


@pytest.mark.parametrize(
    "command",
    [
        "usage FILE",
        "usage FILE --format csv",
        "usage FILE --format focus --from 2026-01-01 --to 2026-01-02 --provisional",
        "replay FILE",
        "replay FILE -o json",
        "explain FILE vmi tenant-acme/wide",
        "verify FILE",
        "who FILE gpu-1",
        "plan --drain gpu-1 --journal FILE",
        "journal export FILE",
        "journal tail FILE",
        "journal info FILE",
    ],
)
def test_a_reader_that_went_away_ends_a_command_without_a_word(journal: Path, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = spawned(*command.replace("FILE", str(journal)).split(), stdout=writing)
    os.close(writing)
    _, told = process.communicate()
    assert (process.returncode, [line for line in told.splitlines() if "provisional" not in line]) == (141, [])


def test_ctrl_c_ends_a_command_without_a_word(journal: Path) -> None:
    process = spawned("journal", "tail", "-f", "-n", "1", str(journal), stdout=subprocess.PIPE, bufsize=1)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert (process.returncode, told) == (130, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("command", ["usage FILE", "replay FILE", "journal export FILE"])
def test_output_that_has_no_room_is_one_sentence(journal: Path, command: str) -> None:
    with open("/dev/full", "w") as full:
        process = spawned(*command.replace("FILE", str(journal)).split(), stdout=full)
        _, told = process.communicate()
    assert process.returncode == 5
    assert told.startswith("gpu-binder: ") and told.count("\n") == 1 and "No space left on device" in told


def test_a_table_is_printable_where_the_locale_is_not_utf_8(journal: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from reconciler.main import main; main()", "replay", str(journal)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert b"tenant-acme" in done.stdout and done.stdout.isascii()


@pytest.mark.parametrize(
    ("written", "the_same"),
    [
        ("2026-01-01 00:00:04.000", "2026-01-01T00:00:04Z"),
        ("2026-01-01T00:00:04", "2026-01-01T00:00:04Z"),
        ("2026-01-01", "2026-01-01T00:00:00Z"),
    ],
)
def test_a_time_is_taken_as_our_own_tables_write_it(journal: Path, written: str, the_same: str) -> None:
    found = [
        json.loads(run("replay", str(journal), "--at", at, "-o", "json").output)["seq"] for at in (written, the_same)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("at", "text"),
    [("99999", "ends at entry"), ("0", "starts at entry 1"), ("2025-12-31", "starts at entry 1")],
)
@pytest.mark.parametrize("command", ["replay FILE", "who FILE gpu-1", "plan --drain gpu-1 --journal FILE"])
def test_a_moment_the_journal_does_not_have(journal: Path, command: str, at: str, text: str) -> None:
    found = run(*command.replace("FILE", str(journal)).split(), "--at", at)
    assert found.exit_code == 1 and text in found.stderr


def test_a_mistyped_tenant_is_no_silent_empty_bill(journal: Path) -> None:
    """U3: the records are none, and standard error says so."""
    for form in (
        ("--format", "csv"),
        ("--format", "focus", "--from", "2026-01-01", "--to", "2026-02-01", "--provisional"),
    ):
        found = run("usage", str(journal), "--tenant", "tenant-acmee", *form)
        assert found.exit_code == 0 and len(found.stdout.splitlines()) == 1
        assert "no usage of tenant-acmee" in found.stderr
    assert "no usage" not in run("usage", str(journal), "--tenant", "tenant-acme").stderr


def test_prices_without_focus_are_refused(journal: Path, tmp_path: Path) -> None:
    book = tmp_path / "prices.yaml"
    book.write_text("currency: EUR\nprices: {}\n")
    found = run("usage", str(journal), "--prices", str(book))
    assert found.exit_code == 2 and "--format focus" in found.stderr


@pytest.mark.parametrize("bound", [("--older-than-days", "-1"), ("--to-megabytes", "0")])
def test_a_slip_does_not_prune_everything(journal: Path, bound: tuple[str, str]) -> None:
    found = run("journal", "prune", str(journal), *bound)
    assert found.exit_code == 2 and bound[0] in found.stderr
    assert json.loads(run("journal", "info", str(journal), "-o", "json").output)["firstSeq"] == 1


def test_the_demo_replaces_a_journal_and_nothing_else(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir or Madam,\n")
    assert run("demo", "--journal", str(letter)).exit_code == 3
    assert letter.read_text() == "Dear Sir or Madam,\n"
    nowhere = run("demo", "--journal", str(tmp_path / "nowhere" / "demo.db"))
    assert (nowhere.exit_code, nowhere.stdout) == (3, "")


@pytest.mark.parametrize("command", ["plan --drain n", "node-agent --node-name n", "uninstall --webhook-config-name c"])
def test_a_cluster_that_cannot_be_found_is_one_sentence(command: str) -> None:
    found = run(*command.split(), "--kubeconfig", "/nowhere")
    assert found.exit_code == 4
    assert found.stderr == (
        "gpu-binder: no kubeconfig at /nowhere and not inside a cluster: give --kubeconfig or set KUBECONFIG\n"
    )
