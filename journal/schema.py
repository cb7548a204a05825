"""Tables of a SQLite journal, their migrations, and the checksum stored with every row (J6).

Tables are plain on purpose, for tools such as `sqlite-utils query FILE "select at, kind, payload from entries"`.
`entries.crc` covers the row's other columns, because SQLite does not detect a flipped byte in a value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

from sqlite_utils import Database

from journal.files import APPLICATION_ID
from journal.store import JournalDamaged, JournalError, JournalTooNew

_FOUR = struct.Struct(">4q").pack


def _entries_and_snapshots(db: Database) -> None:
    db.create_table(
        "entries",
        {"seq": int, "batch": int, "at": int, "kind": str, "version": int, "payload": str, "crc": int},
        pk="seq",
        not_null={"batch", "at", "kind", "version", "payload", "crc"},
    )
    db.table("entries").create_index(["at"])
    db.create_table(
        "snapshots",
        {"seq": int, "batch": int, "at": int, "build": str, "payload": bytes, "crc": int},
        pk="seq",
        not_null={"batch", "at", "build", "payload", "crc"},
    )


MIGRATIONS: list[Callable[[Database], None]] = [_entries_and_snapshots]
"""Step N takes a file from schema version N to N + 1; a step is never changed once released. A version that only marks
new kinds of events (`SINCE`) has an empty step once a later one changes tables."""


SINCE = {"HistoryReplaced": 2}
"""Kinds of events that came later, to the version that marks a file holding them. A file is raised to it with the first
such entry, not before: until then the build before can go on with the file after a rollback, and afterwards it sets the
file aside at once instead of failing somewhere within it."""

READS = max(len(MIGRATIONS), *SINCE.values())
"""The highest version this build reads."""


def create(db: Database) -> None:
    """Create the current tables in an empty database, in one transaction."""
    with db.atomic():
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.create_table("meta", {"key": str, "value": str}, pk="key")
        _apply(db, 0)


def migrate(db: Database, path: str) -> None:
    """Migrate an older file to the current version, in one transaction."""
    found = version(db, path)
    if found < len(MIGRATIONS):
        with db.atomic():
            _apply(db, found)


def _apply(db: Database, found: int) -> None:
    for step in MIGRATIONS[found:]:
        step(db)
    db.table("meta").upsert({"key": "schema_version", "value": str(len(MIGRATIONS))}, pk="key")


def check_readable(db: Database, path: str) -> None:
    """Raises `JournalError` for an older file that only a writer may migrate."""
    if (found := version(db, path)) < len(MIGRATIONS):
        raise JournalError(
            f"journal {path} has schema version {found}, this build reads {len(MIGRATIONS)}; open a copy of "
            "it for writing once to migrate it"
        )


def version(db: Database, path: str) -> int:
    """The file's schema version. Raises `JournalTooNew`, or `JournalDamaged` if it cannot be read."""
    row = db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    try:
        found = int(row[0])
    except (TypeError, ValueError) as error:
        raise JournalDamaged(path, "its schema version cannot be read") from error
    if found > max(len(MIGRATIONS), READS):
        raise JournalTooNew(path, f"it has schema version {found}, this build knows up to {READS}")
    return found


def entry_crc(seq: int, batch: int, at: int, kind: bytes, version: int, payload: bytes) -> int:
    """CRC-32 over seq, batch, at and version (8 bytes each, big-endian), kind and payload. Raises TypeError
    or `struct.error` for columns of another type."""
    return crc32(payload, crc32(kind, crc32(_FOUR(seq, batch, at, version))))


def snapshot_crc(seq: int, batch: int, at: int, build: bytes, payload: bytes) -> int:
    """CRC-32 over seq, batch, at and the build's length (8 bytes each), build and compressed payload."""
    return crc32(payload, crc32(build, crc32(_FOUR(seq, batch, at, len(build)))))
