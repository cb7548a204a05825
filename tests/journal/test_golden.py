"""Journals written by older builds are read exactly, whatever the current build writes (J6)."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from journal import events, schema
from journal.events import Event, encode
from journal.sqlite import SqliteJournal
from journal.store import JournalDamaged, JournalTooNew, MemoryJournal
from tests.journal import make_golden
from tests.journal.samples import MORNING

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(file.stem for file in GOLDEN.glob("*.sqlite"))


def lines(version: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (GOLDEN / f"{version}.jsonl").read_bytes().splitlines()]


def test_there_is_a_golden_journal_of_every_schema_version() -> None:
    expected = [f"v{number}" for number in range(1, len(schema.MIGRATIONS) + 1)]
    assert expected == VERSIONS


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_j6_a_golden_journal_reads_back_exactly(version: str, readonly: bool, path: Path) -> None:
    if readonly and version != VERSIONS[-1]:
        pytest.skip("only a writer migrates")
    shutil.copyfile(GOLDEN / f"{version}.sqlite", path)
    with closing(SqliteJournal(path, readonly=readonly)) as journal:
        entries = list(journal.read())
        snapshot = journal.nearest_snapshot()
    assert [
        {
            "seq": entry.seq,
            "batch": entry.batch,
            "at": entry.at,
            "kind": encode(entry.event)[0],
            "version": encode(entry.event)[1],
            "payload": msgspec.json.decode(encode(entry.event)[2]),
        }
        for entry in entries
    ] == lines(version)
    assert [entry.event for entry in entries] == [event for batch in MORNING for event in batch]
    assert snapshot is not None
    assert (snapshot.seq, snapshot.batch, snapshot.at) == (9, 3, 1_760_000_000_750)
    assert snapshot.payload == b'{"nodes":["gpu-1","gpu-2"]}'


def test_j2_todays_build_writes_what_the_golden_journal_holds(tmp_path: Path) -> None:
    """A changed encoding without a new version is caught here."""
    make_golden.main(tmp_path)
    name = f"v{len(schema.MIGRATIONS)}"
    assert (tmp_path / f"{name}.jsonl").read_bytes() == (GOLDEN / f"{name}.jsonl").read_bytes()

    def rows(file: Path) -> list[Any]:
        with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as db:
            tables = (
                db.execute("SELECT * FROM entries").fetchall(),
                db.execute("SELECT * FROM meta WHERE key != 'writer'").fetchall(),
            )
            return [db.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall(), *tables]

    assert rows(tmp_path / f"{name}.sqlite") == rows(GOLDEN / f"{name}.sqlite")


class ReportSilenced(Event, frozen=True):
    """The event as a later build might have it: a list of nodes since version 2, a reason since 3."""

    VERSION: ClassVar[int] = 3

    nodes: list[str]
    why: str


def test_j6_older_events_are_upcast_step_by_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copyfile(GOLDEN / "v1.sqlite", path)
    monkeypatch.setitem(events.EVENTS, "ReportSilenced", ReportSilenced)
    monkeypatch.setitem(events.UPCASTS, ("ReportSilenced", 1), lambda values: {"nodes": [values["node"]]})
    with pytest.raises(JournalDamaged, match="entry 9 is damaged: it cannot be decoded"):
        SqliteJournal(path)
    monkeypatch.setitem(events.UPCASTS, ("ReportSilenced", 2), lambda values: {**values, "why": "unknown"})
    with closing(SqliteJournal(path)) as journal:
        (silenced,) = journal.read(8, 9)
        assert silenced.event == ReportSilenced(["gpu-2"], "unknown")
        journal.append([silenced.event], at=0, batch=journal.last_batch)
    monkeypatch.undo()
    with pytest.raises(JournalTooNew, match="ReportSilenced version 3 is not known to this build"):
        SqliteJournal(path)


def test_both_journals_hold_the_same_entries(path: Path) -> None:
    memory = MemoryJournal()
    with closing(SqliteJournal(path)) as sqlite:
        for number, batch in enumerate(MORNING):
            assert memory.append(batch, at=9 - number, batch=number) == sqlite.append(
                batch, at=9 - number, batch=number
            )
        assert list(memory.read()) == list(sqlite.read())
