"""The journal in a SQLite file: WAL, synchronous FULL, one transaction per batch (J1, J6).

Owns appending, reading, snapshots, pruning and the health check at opening; `files` guards the file, `connection`
executes its SQL, `schema` defines its tables. One process writes while any number read. A damaged file raises a
`JournalError`; it never yields a wrong entry.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from sqlite_utils import Database

from journal import files, salvage, schema
from journal.connection import Connection
from journal.events import Entry, Event, UnknownEventError, decode, encode
from journal.store import (
    JournalDamaged,
    JournalError,
    JournalForeign,
    JournalPruned,
    JournalTooNew,
    Snapshot,
    Tail,
    no_such_entry,
    number,
    snapshot_set_aside,
    tail_set_aside,
)

FULL_CHECK_BYTES = 64 * 1024 * 1024
"""Up to this size every page is checked at opening; a larger file is checked at its end, and elsewhere when
it is read. More would make a restart with a year's journal slow."""

CHECKED_ENTRIES = 256
"""Entries at the end that are read at opening: what a torn file lost is lost there."""

PAGE_ENTRIES = 512
"""Entries fetched in one read transaction. A longer one would keep the WAL from being checkpointed."""

PRUNED_AT_ONCE = 10_000
"""Entries deleted in one transaction; an append waits for no more than that."""

_ENTRY = "seq, batch, at, CAST(kind AS BLOB), version, CAST(payload AS BLOB), crc"
_SNAPSHOT = "seq, batch, at, CAST(build AS BLOB), payload, crc"
_PAGE = f"SELECT {_ENTRY} FROM entries WHERE seq >= ? AND seq <= ? ORDER BY seq LIMIT {PAGE_ENTRIES}"
_INSERT = "INSERT INTO entries (seq, batch, at, kind, version, payload, crc) VALUES (?, ?, ?, ?, ?, CAST(? AS TEXT), ?)"
_RAISE_VERSION = "UPDATE meta SET value = max(CAST(value AS INTEGER), ?) WHERE key = 'schema_version'"
_MOMENT = "SELECT batch, at FROM entries WHERE seq = ?1 UNION ALL SELECT batch, at FROM snapshots WHERE seq = ?1"


_BATCH_BEFORE = "SELECT max(seq) FROM entries WHERE seq < ?1 AND batch != (SELECT batch FROM entries WHERE seq = ?1)"
"""The last entry of the batch before an entry's; where that entry is missing, NULL."""


class SqliteJournal:
    """A `Journal` in the file at `path`.

    The writer creates a missing or empty file and holds its `WriterLock` until closed. `readonly` opens an existing
    file, even while another process writes it, and sees what is appended. Raises `JournalDamaged`, `JournalForeign`,
    `JournalTooNew`, `JournalLocked`, or `JournalError` for a file system error; none of them changes the file. If
    opening fails, a `lock` passed in remains the caller's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        readonly: bool = False,
        lock: files.WriterLock | None = None,
        check_entries: bool = True,
    ) -> None:
        """`check_entries` False: the entries at the end are known to be unreadable in part."""
        self.path = os.fspath(path)
        self.readonly = readonly
        self._lock = None if readonly else lock or files.WriterLock(self.path)
        self._had_wal = os.path.exists(f"{self.path}-wal")
        try:
            known = files.examine(self.path)
            if readonly and not known:
                raise JournalError(f"there is no journal at {self.path}")
            self._open(known, check_entries)
        except BaseException:
            if self._lock is not None and lock is None:
                self._lock.release()
            raise

    def _open(self, known: bool, check_entries: bool) -> None:
        self._connection = Connection(self.path, readonly=self.readonly)
        try:
            self._prepare(known)
            self._tail = self._check_health(check_entries)
            if not self.readonly:
                self._set_meta("writer", "open")
                self._connection.checkpoint()
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def open_or_set_aside(cls, path: str | os.PathLike[str], *, at: int) -> tuple[SqliteJournal, str | None]:
        """The writer's journal at `path`, and a message for the operator if something in it was unusable (J6).

        Where an entry near the end cannot be read, it and what follows are moved to a file of their own. A file that
        is damaged, foreign or too new as a whole is renamed to `<path>.damaged-<UTC time of at>` with its WAL, and a
        new journal begins. `at` is now, in ms. Raises `JournalLocked`, or `JournalError` for a file system error;
        neither justifies starting over without the history.
        """
        name = os.fspath(path)
        lock = files.WriterLock(name)
        try:
            try:
                return cls(name, lock=lock), None
            except (JournalDamaged, JournalForeign, JournalTooNew) as error:
                if not isinstance(error, JournalForeign) and error.seq is not None:
                    journal = cls(name, lock=lock, check_entries=False)
                    return journal, journal.set_aside(error.seq, at=at, why=error.why)
                target = files.set_aside(name, at)
                return cls(name, lock=lock), str(type(error)(name, error.why, target))
        except BaseException:
            lock.release()
            raise

    @property
    def first_seq(self) -> int:
        """See `Journal.first_seq`."""
        first = self._connection.value("SELECT min(seq) FROM entries")
        return self.last_seq + 1 if first is None else int(first)

    @property
    def last_seq(self) -> int:
        return self._last().seq

    @property
    def last_batch(self) -> int:
        return self._last().batch

    @property
    def last_at(self) -> int:
        return self._last().at

    @property
    def size_bytes(self) -> int:
        """Size of the file and its write-ahead log on disk."""
        return self._connection.disk_bytes()

    @property
    def watched_until(self) -> int:
        """See `Journal.watched_until`."""
        return int(self._connection.value("SELECT CAST(max(value) AS INTEGER) FROM meta WHERE key = 'watched'") or 0)

    def mark(self, until: int) -> None:
        """See `Journal.mark`."""
        self._set_meta("watched", str(until))

    @property
    def lacks_wal(self) -> bool:
        """The file was copied while a writer had it open, without the write-ahead log that may hold its newest
        entries. Unknown, and False, for files of builds before this one."""
        writer = self._connection.rows("SELECT value FROM meta WHERE key = 'writer'")
        return not self._had_wal and self.readonly and writer == [("open",)]

    def _set_meta(self, key: str, value: str) -> None:
        with self._connection.transaction():
            self._connection.run("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    def append(self, events: Sequence[Event], *, at: int, batch: int) -> list[Entry]:
        """See `Journal.append`; synced to disk before it returns."""
        with self._connection.mutex:
            self._connection.check_writable()
            entries = number(events, self._tail, at=at, batch=batch)
            rows = [_row_of(entry) for entry in entries]
            if entries:
                with self._connection.transaction():
                    self._connection.run_many(_INSERT, rows)
                    for version in {schema.SINCE[row[3]] for row in rows if row[3] in schema.SINCE}:
                        self._connection.run(_RAISE_VERSION, (version,))
                self._tail = Tail(entries[-1].seq, batch, entries[-1].at)
            return entries

    def read(self, after: int = 0, until: int | None = None) -> Iterator[Entry]:
        """See `Journal.read`."""
        last = self.last_seq
        start = after + 1 if after > 0 else self.first_seq
        return self._stream(start, last if until is None else min(until, last))

    def _stream(self, start: int, until: int) -> Iterator[Entry]:
        while start <= until:
            rows = self._connection.rows(_PAGE, (start, until))
            if not rows:
                raise self._gap(start)
            for row in rows:
                if row[0] != start:
                    raise self._gap(start)
                yield self._entry(row)
                start += 1

    def seq_at(self, at: int) -> int:
        """See `Journal.seq_at`."""
        newest = "SELECT seq FROM entries WHERE at <= ? ORDER BY at DESC, seq DESC LIMIT 1"
        rows = self._connection.rows(newest, (at,))
        return int(rows[0][0]) if rows else self.first_seq - 1

    def snapshot(self, seq: int, at: int, payload: bytes, *, build: str) -> None:
        """See `Journal.snapshot`; compressed on disk."""
        compressed = zlib.compress(payload, 1)
        with self._connection.mutex:
            self._connection.check_writable()
            rows = self._connection.rows(_MOMENT, (seq,))
            if not rows:
                raise no_such_entry(seq, self.first_seq, self.last_seq)
            batch, at = rows[0][0], max(at, rows[0][1])
            crc = schema.snapshot_crc(seq, batch, at, build.encode(), compressed)
            with self._connection.transaction():
                self._connection.run(
                    "INSERT OR REPLACE INTO snapshots (seq, batch, at, build, payload, crc) VALUES (?, ?, ?, ?, ?, ?)",
                    (seq, batch, at, build, compressed, crc),
                )

    def nearest_snapshot(self, seq: int | None = None, at: int | None = None) -> Snapshot | None:
        """See `Journal.nearest_snapshot`."""
        rows = self._connection.rows(
            f"SELECT {_SNAPSHOT} FROM snapshots WHERE (?1 IS NULL OR seq <= ?1) AND (?2 IS NULL OR at <= ?2) "
            "ORDER BY seq DESC LIMIT 1",
            (seq, at),
        )
        return self._snapshot(rows[0]) if rows else None

    def snapshots(self) -> list[int]:
        """See `Journal.snapshots`."""
        return [int(row[0]) for row in self._connection.rows("SELECT seq FROM snapshots ORDER BY seq")]

    def set_aside(self, seq: int | None, *, at: int, why: str) -> str:
        """See `Journal.set_aside`; what is taken out is in a file beside this one."""
        with self._connection.mutex:
            self._connection.check_writable()
            if seq is None:
                self._connection.close()
                target = files.set_aside(self.path, at)
                self._open(known=False, check_entries=True)
                return str(JournalDamaged(self.path, why, target))
            before = self._connection.rows(_BATCH_BEFORE, (seq,))[0][0]
            first, last = seq if before is None else before + 1, self._tail.seq
            target = salvage.move_tail(self._connection, first, at)
            self._tail = self._load_tail()
            self.mark(min(self.watched_until, self._tail.at))
            return tail_set_aside(self.path, first, last, why, target)

    def set_aside_snapshot(self, seq: int, *, at: int, why: str) -> str:
        """See `Journal.set_aside_snapshot`."""
        target = salvage.move_snapshot(self._connection, seq, at)
        return snapshot_set_aside(self.path, seq, why, target)

    def prune(self, *, before_at: int | None = None, max_bytes: int | None = None) -> int:
        """See `Journal.prune`. Frees the space on disk in steps: an append in another thread waits for one step at
        most, and a crash in between leaves a journal that still replays."""
        self._connection.check_writable()
        kept = self._connection.rows("SELECT seq, at FROM snapshots ORDER BY seq")
        old = [seq for seq, at in kept if before_at is not None and at <= before_at]
        gone = self._forget(old[-1]) if old else 0
        for seq, _ in kept:
            if max_bytes is None or self._connection.used_bytes() <= max_bytes:
                break
            gone += self._forget(seq)
        if gone:
            self._connection.shrink()
        return gone

    def _forget(self, base: int) -> int:
        """Deletes everything before the snapshot of entry `base`: older snapshots first, because a replay from one
        whose entries are partly deleted would run into the gap."""
        with self._connection.transaction():
            self._connection.run("DELETE FROM snapshots WHERE seq < ?", (base,))
        gone = 0
        for low in range(self.first_seq, base + 1, PRUNED_AT_ONCE):
            high = min(low + PRUNED_AT_ONCE - 1, base)
            with self._connection.transaction():
                gone += self._connection.run("DELETE FROM entries WHERE seq <= ?", (high,))
        return gone

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """A consistent copy in one file, even while the writer writes. Raises `JournalError` if `path` exists."""
        self._connection.copy_to(os.fspath(path), "DELETE FROM meta WHERE key = 'writer'")

    def checkpoint(self) -> None:
        """See `Journal.checkpoint`."""
        self._connection.checkpoint()

    def close(self) -> None:
        """See `Journal.close`; the writer's WAL is checkpointed and its lock released."""
        if not self.readonly and not self._connection.closed:
            with suppress(JournalError):
                self._set_meta("writer", "closed")
        self._connection.close()
        if self._lock is not None:
            self._lock.release()

    def _prepare(self, known: bool) -> None:
        with self._connection.errors():
            db = Database(self._connection.raw, execute_plugins=False)
            db.execute("PRAGMA cell_size_check = ON")
            if self.readonly:
                schema.check_readable(db, self.path)
                return
            if not known:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
                schema.create(db)
            schema.migrate(db, self.path)
        self._connection.write_ahead()
        if not known:
            files.sync_directory(self.path)

    def _check_health(self, check_entries: bool) -> Tail:
        """The tail, after an integrity check as thorough as `FULL_CHECK_BYTES` and `CHECKED_ENTRIES` allow."""
        if self.size_bytes <= FULL_CHECK_BYTES:
            verdict = self._connection.value("PRAGMA quick_check(1)")
            if verdict != "ok":
                raise JournalDamaged(self.path, " ".join(str(verdict).split()))
        self._tail = self._load_tail()
        newest = max(self.snapshots(), default=0)
        if self._tail.seq < newest:
            why = f"it ends at entry {self._tail.seq}, before its snapshot of entry {newest}"
            raise JournalDamaged(self.path, why)
        if not check_entries:
            return self._tail
        for _ in self._stream(max(self.first_seq, self._tail.seq + 1 - CHECKED_ENTRIES), self._tail.seq):
            pass
        return self._tail

    def _load_tail(self) -> Tail:
        for table in ("entries", "snapshots"):
            rows = self._connection.rows(f"SELECT seq, batch, at FROM {table} ORDER BY seq DESC LIMIT 1")
            if rows:
                return Tail(*rows[0])
        return Tail()

    def _last(self) -> Tail:
        self._connection.check_open()
        return self._load_tail() if self.readonly else self._tail

    def _entry(self, row: Sequence[Any]) -> Entry:
        seq, batch, at, kind, version, payload, crc = row
        try:
            if schema.entry_crc(seq, batch, at, kind, version, payload) != crc:
                raise JournalDamaged(self.path, "its check sum does not match", seq=seq)
            return Entry(seq, batch, at, decode(kind.decode(), version, payload))
        except UnknownEventError as error:
            raise JournalTooNew(self.path, f"entry {seq}: {error}", seq=seq) from error
        except (TypeError, ValueError, LookupError, struct.error, msgspec.MsgspecError) as error:
            raise JournalDamaged(self.path, f"it cannot be decoded: {error}", seq=seq) from error

    def _snapshot(self, row: Sequence[Any]) -> Snapshot:
        seq, batch, at, build, payload, crc = row
        try:
            if schema.snapshot_crc(seq, batch, at, build, payload) != crc:
                raise JournalDamaged(self.path, f"the check sum of the snapshot of entry {seq} does not match")
            return Snapshot(seq, batch, at, build.decode(), zlib.decompress(payload))
        except (TypeError, ValueError, struct.error, zlib.error) as error:
            raise JournalDamaged(self.path, f"the snapshot of entry {seq} cannot be read: {error}") from error

    def _gap(self, seq: int) -> JournalError:
        first = self.first_seq
        return JournalPruned(seq, first) if seq < first else JournalDamaged(self.path, "it is missing", seq=seq)


def _row_of(entry: Entry) -> tuple[int, int, int, str, int, bytes, int]:
    kind, version, payload = encode(entry.event)
    crc = schema.entry_crc(entry.seq, entry.batch, entry.at, kind.encode(), version, payload)
    return entry.seq, entry.batch, entry.at, kind, version, payload, crc
