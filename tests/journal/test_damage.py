"""A truncated, corrupt or foreign file is reported and set aside, never read as if it were intact (J6)."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from journal import schema, sqlite
from journal.events import ControllerStarted, Entry, Event, HistoryReplaced, TimeReached
from journal.sqlite import SqliteJournal
from journal.store import (
    JournalDamaged,
    JournalError,
    JournalForeign,
    JournalLocked,
    JournalTooNew,
    Snapshot,
)
from tests.journal.samples import MORNING, node

NOON = 1_760_000_400_000
"""2025-10-09 09:00:00 UTC."""


def write(path: Path, count: int = 600) -> list[Entry]:
    """A journal of `count` nodes, one a batch, with three snapshots, closed: one file, no WAL."""
    content, entries = written(count)
    path.write_bytes(content)
    return list(entries)


@cache
def written(count: int) -> tuple[bytes, tuple[Entry, ...]]:
    """Written once, since every append waits for the disk."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.sqlite"
        journal = SqliteJournal(path)
        entries = []
        for number in range(1, count + 1):
            entries += journal.append([node(number)], at=number, batch=number)
            if number % (count // 3) == 0:
                journal.snapshot(number, number, b"state " * 50, build="0.1.0")
        journal.close()
        return path.read_bytes(), tuple(entries)


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def truncate(path: Path) -> None:
    overwrite(path, 0, b"")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)


def zero_the_last_page(path: Path) -> None:
    overwrite(path, path.stat().st_size - 4096, bytes(4096))


def zero_the_first_page(path: Path) -> None:
    overwrite(path, 0, bytes(4096))


def scribble_over_a_page(path: Path) -> None:
    overwrite(path, path.stat().st_size // 2 // 4096 * 4096, b"\xa5" * 300)


def put_garbage_beside(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(b"\xde\xad\xbe\xef" * 5000)


def keep_only_a_wal(path: Path) -> None:
    put_garbage_beside(path)
    path.write_bytes(b"")


def make_a_text(path: Path) -> None:
    path.write_text("apiVersion: v1\nkind: ConfigMap\n")


def make_another_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
        other.execute("INSERT INTO invoices VALUES (7)")
    other.close()


def make_newer(path: Path) -> None:
    db = Database(path)
    db.table("meta").update("schema_version", {"value": "99"})
    db.close()


def forget_the_version(path: Path) -> None:
    db = Database(path)
    db.table("meta").delete("schema_version")
    db.close()


def drop_the_entries(path: Path) -> None:
    db = Database(path)
    db.table("entries").drop()
    db.close()


def lose_the_last_entries(path: Path) -> None:
    db = Database(path)
    db.table("entries").delete_where("seq > 590")
    db.close()


def invent_a_kind_at_the_end(path: Path) -> None:
    row = (601, 601, 601, b"CardExploded", 1, b"{}")
    values = {"seq": 601, "batch": 601, "at": 601, "kind": "CardExploded", "version": 1, "payload": "{}"}
    db = Database(path)
    db.table("entries").insert({**values, "crc": schema.entry_crc(*row)})
    db.close()


HARM: list[tuple[Callable[[Path], None], type[JournalError], str]] = [
    (truncate, JournalDamaged, "malformed"),
    (zero_the_last_page, JournalDamaged, "is damaged"),
    (zero_the_first_page, JournalForeign, "does not start like a SQLite database"),
    (scribble_over_a_page, JournalDamaged, "is damaged"),
    (put_garbage_beside, JournalDamaged, "write-ahead log next to it has a broken header"),
    (keep_only_a_wal, JournalDamaged, "empty or missing, but a write-ahead log exists next to it"),
    (make_a_text, JournalForeign, "does not start like a SQLite database"),
    (make_another_database, JournalForeign, "the SQLite database of another application"),
    (make_newer, JournalTooNew, "schema version 99, this build knows up to 2"),
    (forget_the_version, JournalDamaged, "schema version cannot be read"),
    (drop_the_entries, JournalDamaged, "no such table: entries"),
    (lose_the_last_entries, JournalDamaged, "ends at entry 590, before its snapshot of entry 600"),
]


@pytest.mark.parametrize(("harm", "error", "why"), HARM, ids=[harm.__name__ for harm, _, _ in HARM])
class TestHarm:
    def test_j6_it_is_told_to_a_reader(
        self, path: Path, harm: Callable[[Path], None], error: type[JournalError], why: str
    ) -> None:
        write(path)
        harm(path)
        with pytest.raises(error, match=why) as told:
            SqliteJournal(path, readonly=True)
        assert str(path) in str(told.value)
        assert "set aside" not in str(told.value)
        assert str(told.value).isprintable(), "more than one line"

    def test_j6_it_is_set_aside_and_a_new_journal_begins(
        self, path: Path, harm: Callable[[Path], None], error: type[JournalError], why: str
    ) -> None:
        write(path)
        harm(path)
        before = path.read_bytes()
        journal, message = SqliteJournal.open_or_set_aside(path, at=NOON)
        aside = Path(f"{path}.damaged-20251009T090000Z")
        assert message is not None
        assert f"set aside as {aside}" in message
        assert f"sqlite-utils tables {aside} --counts" in message
        assert aside.read_bytes() == before
        assert journal.last_seq == 0
        journal.append([node(1)], at=NOON, batch=1)
        journal.close()
        journal, message = SqliteJournal.open_or_set_aside(path, at=NOON + 1)
        assert (journal.last_seq, message) == (1, None)
        journal.close()


def change_an_entry_near_the_end(path: Path) -> None:
    db = Database(path)
    db.table("entries").update(595, {"payload": "{}"})
    db.close()


def lose_an_entry_near_the_end(path: Path) -> None:
    db = Database(path)
    db.table("entries").delete(595)
    db.close()


PART = [
    (invent_a_kind_at_the_end, JournalTooNew, 601, "entry 601: event CardExploded version 1 is not known"),
    (change_an_entry_near_the_end, JournalDamaged, 595, "its check sum does not match"),
    (lose_an_entry_near_the_end, JournalDamaged, 595, "it is missing"),
]


@pytest.mark.parametrize(("harm", "error", "seq", "why"), PART, ids=[harm.__name__ for harm, *_ in PART])
def test_j6_an_entry_near_the_end_is_set_aside_with_what_follows_and_the_rest_goes_on(
    path: Path, harm: Callable[[Path], None], error: type[JournalError], seq: int, why: str
) -> None:
    entries = write(path)
    harm(path)
    with pytest.raises(error, match=why):
        SqliteJournal(path, readonly=True)
    journal, message = SqliteJournal.open_or_set_aside(path, at=NOON)
    aside = Path(f"{path}.damaged-20251009T090000Z")
    assert message is not None and message.startswith(f"entries {seq} to {max(600, seq)} of journal {path}")
    assert why in message and f"set aside as {aside};" in message
    assert list(journal.read()) == entries[: seq - 1]
    assert journal.snapshots() == [taken for taken in (200, 400, 600) if taken < seq]
    assert journal.append([node(1)], at=NOON, batch=700)[0].seq == seq
    journal.close()
    with sqlite3.connect(aside) as kept:
        found = [row[0] for row in kept.execute("SELECT seq FROM entries ORDER BY seq")]
    kept.close()
    lost = {seq} if harm is lose_an_entry_near_the_end else set()
    assert found == sorted(set(range(seq, max(600, seq) + 1)) - lost)


def test_j6_a_journal_s_mark_does_not_outlive_the_entries_it_spoke_of(path: Path) -> None:
    write(path)
    with sqlite3.connect(path) as db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('watched', '9000')")
    db.close()
    change_an_entry_near_the_end(path)
    journal, _ = SqliteJournal.open_or_set_aside(path, at=NOON)
    assert journal.watched_until == journal.last_at == 594
    journal.close()


def test_j6_a_wal_goes_aside_with_its_database(path: Path) -> None:
    write(path)
    put_garbage_beside(path)
    journal, _ = SqliteJournal.open_or_set_aside(path, at=NOON)
    assert Path(f"{path}.damaged-20251009T090000Z-wal").read_bytes() == b"\xde\xad\xbe\xef" * 5000
    journal.close()


def test_j6_two_files_set_aside_in_one_second_are_both_kept(path: Path) -> None:
    for content in ("first", "second"):
        path.write_text(content)
        journal, _ = SqliteJournal.open_or_set_aside(path, at=NOON)
        journal.close()
    aside = f"{path}.damaged-20251009T090000Z"
    assert (Path(aside).read_text(), Path(f"{aside}-2").read_text()) == ("first", "second")


def test_j6_an_empty_file_is_a_new_journal(path: Path) -> None:
    path.touch()
    with pytest.raises(JournalError, match="there is no journal at"):
        SqliteJournal(path, readonly=True)
    journal, message = SqliteJournal.open_or_set_aside(path, at=NOON)
    assert message is None
    assert journal.append([node(1)], at=1, batch=1)[0].seq == 1
    journal.close()


def test_j6_a_file_that_is_not_there_is_not_made_by_a_reader(path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal at"):
        SqliteJournal(path, readonly=True)
    assert list(path.parent.iterdir()) == []


def test_a_directory_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(JournalError, match=r"cannot be written: .*No such file or directory.*nowhere"):
        SqliteJournal(path.parent / "nowhere" / "journal.sqlite")


def test_j6_a_directory_in_its_place_is_no_damage(path: Path) -> None:
    """It is neither moved nor replaced: whoever mounted it there wants to know."""
    path.mkdir()
    with pytest.raises(JournalError, match=r"cannot be read: .*Is a directory"):
        SqliteJournal.open_or_set_aside(path, at=NOON)
    assert path.is_dir()


def test_j6_a_journal_in_use_is_not_set_aside_however_it_looks(path: Path) -> None:
    journal = SqliteJournal(path)
    with pytest.raises(JournalLocked):
        SqliteJournal.open_or_set_aside(path, at=NOON)
    journal.append([node(1)], at=1, batch=1)
    journal.close()


def test_j6_a_failed_opening_leaves_the_lock_free(path: Path) -> None:
    make_a_text(path)
    for _ in range(2):
        with pytest.raises(JournalForeign):
            SqliteJournal(path)


def test_j6_the_entry_that_cannot_be_decoded_is_named_and_those_before_it_are_read(path: Path) -> None:
    entries = write(path)
    with sqlite3.connect(path) as tampered:
        payload = b'{"kind":["Node"]}'
        crc = schema.entry_crc(100, 100, 100, b"ObjectObserved", 1, payload)
        tampered.execute("UPDATE entries SET payload = ?, crc = ? WHERE seq = 100", (payload.decode(), crc))
    tampered.close()
    with SqliteReader(path) as journal, pytest.raises(JournalDamaged, match="entry 100 is damaged") as told:
        list(journal.read())
    assert told.value.seq == 100
    with SqliteReader(path) as journal:
        stream = journal.read()
        assert [next(stream) for _ in range(99)] == entries[:99]


@pytest.mark.parametrize(
    ("change", "seq"),
    [
        ("UPDATE entries SET payload = replace(payload, 'gpu-100', 'gpu-101') WHERE seq = 100", 100),
        ("UPDATE entries SET at = at + 1 WHERE seq = 100", 100),
        ("UPDATE entries SET kind = 'ReportSilenced' WHERE seq = 100", 100),
        ("UPDATE entries SET at = 'noon' WHERE seq = 100", 100),
        ("DELETE FROM entries WHERE seq = 100", 100),
    ],
)
def test_j6_a_changed_or_missing_entry_is_never_read_as_if_it_were_whole(path: Path, change: str, seq: int) -> None:
    write(path)
    db = sqlite3.connect(path)
    db.execute(change)
    db.commit()
    db.close()
    with SqliteReader(path) as journal, pytest.raises(JournalDamaged) as told:
        list(journal.read())
    assert told.value.seq == seq


def test_j6_a_file_too_large_to_check_whole_is_checked_at_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "FULL_CHECK_BYTES", 0)
    write(path)
    SqliteJournal(path).close()
    with sqlite3.connect(path) as tampered:
        tampered.execute("UPDATE entries SET payload = '{}' WHERE seq = 599")
    tampered.close()
    with pytest.raises(JournalDamaged, match="entry 599 is damaged: its check sum"):
        SqliteJournal(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[Entry], list[Snapshot | None]]:
    path = tmp_path_factory.mktemp("whole") / "journal.sqlite"
    write(path, 90)
    with SqliteReader(path) as journal:
        return path.read_bytes(), list(journal.read()), snapshots(journal)


def snapshots(journal: SqliteJournal) -> list[Snapshot | None]:
    return [journal.nearest_snapshot(seq) for seq in (30, 60, 90)]


@settings(max_examples=200, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), readonly=st.booleans())
def test_j6_one_wrong_byte_anywhere_is_told_or_harmless(
    whole: tuple[bytes, list[Entry], list[Snapshot | None]],
    share: float,
    flip: int,
    readonly: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    content, entries, kept = whole
    directory = tmp_path_factory.mktemp("flipped")
    damaged = bytearray(content)
    damaged[int(share * len(content))] ^= flip
    (directory / "journal.sqlite").write_bytes(damaged)
    try:
        journal = SqliteJournal(directory / "journal.sqlite", readonly=readonly)
        try:
            assert list(journal.read()) == entries
            assert snapshots(journal) == kept
        finally:
            journal.close()
    except JournalError:
        pass
    shutil.rmtree(directory)


class SqliteReader:
    """A read-only journal for the length of a `with`."""

    def __init__(self, path: Path) -> None:
        self._journal = SqliteJournal(path, readonly=True)

    def __enter__(self) -> SqliteJournal:
        return self._journal

    def __exit__(self, *_: object) -> None:
        self._journal.close()


def test_j6_an_older_schema_is_migrated_by_the_writer_and_refused_by_a_reader(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = [event for batch in MORNING for event in batch]
    journal = SqliteJournal(path)
    written = journal.append(events, at=1, batch=1)
    journal.close()

    def with_a_note(db: Database) -> None:
        db.table("entries").add_column("note", str)

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, lambda db: None, with_a_note])
    with pytest.raises(JournalError, match="schema version 1, this build reads 3; open a copy"):
        SqliteJournal(path, readonly=True)
    SqliteJournal(path).close()
    with SqliteReader(path) as reader:
        assert list(reader.read()) == written
    monkeypatch.undo()
    with pytest.raises(JournalTooNew, match="schema version 3, this build knows up to 2"):
        SqliteJournal(path)


def test_j6_a_file_is_raised_to_a_later_version_by_the_first_entry_that_needs_it(path: Path) -> None:
    def version() -> str:
        with sqlite3.connect(path) as db:
            found = db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()[0]
        db.close()
        return str(found)

    journal = SqliteJournal(path)
    journal.append([node(1)], at=1, batch=1)
    assert version() == "1", "the build before reads it"
    entries = journal.append([HistoryReplaced("Node", "9", "3"), node(2)], at=2, batch=2)
    journal.close()
    assert version() == "2"
    journal = SqliteJournal(path)
    assert list(journal.read(1)) == entries
    journal.close()
    with SqliteReader(path) as reader:
        assert list(reader.read(1)) == entries


def test_j6_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = write(path, 30)

    def half(db: Database) -> None:
        db.table("entries").add_column("note", str)
        raise RuntimeError("power cut")

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, half])
    with pytest.raises(RuntimeError, match="power cut"):
        SqliteJournal(path)
    monkeypatch.undo()
    with SqliteReader(path) as reader:
        assert list(reader.read()) == entries


def test_a_full_disk_is_told_with_the_way_out_and_loses_nothing(tmp_path: Path) -> None:
    """J6, J1: what does not fit is not half written; the journal goes on once there is room."""
    path = tmp_path / "journal.db"
    journal = SqliteJournal(str(path))
    journal.append([TimeReached()], at=1, batch=1)
    pages = journal._connection.raw.execute("pragma page_count").fetchone()[0]
    journal._connection.raw.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(JournalError, match=r"full.*Free space"):
        journal.append([ControllerStarted("x" * 100_000, "b")], at=2, batch=2)
    assert journal.last_seq == 1
    journal._connection.raw.execute("pragma max_page_count = 100000")
    assert journal.append([TimeReached()], at=3, batch=2)[0].seq == 2
    journal.close()
