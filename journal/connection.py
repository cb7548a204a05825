"""SQLite connection to a journal file: transactions, and SQLite errors mapped to journal errors.

Owns how writers and readers open the file, and when free space is returned to the disk. Thread-safe; calls are
serialized. Knows no table.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from journal.store import JournalDamaged, JournalError

BUSY_SECONDS = 5.0
"""How long to wait for a lock held by another tool."""

WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""The WAL is cut back to this after a checkpoint, or pruning would leave it at its largest."""

VACUUMED_PAGES = 10_000
"""Free pages given back in one transaction; an append waits for no more than that."""

_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""SQLITE_ERROR among them: our statements are fixed, so a missing table or column is the file's fault."""

FULL = (
    "; nothing of it is lost. Free space on its disk or give it a larger one, then start again; fewer days or "
    "megabytes (--journal-days, --journal-megabytes) keep it smaller"
)
"""What to do about a full disk; the batch that did not fit was never acted upon."""

_NO_INDEX = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


class Connection:
    """Raises `JournalDamaged` where SQLite finds the file broken, `JournalError` for everything else (a full
    disk, a closed journal, another tool's lock)."""

    def __init__(self, path: str, *, readonly: bool) -> None:
        self.path = path
        self.readonly = readonly
        self.mutex = threading.RLock()
        self.closed = False
        with self.errors():
            self.raw = self._open_reader() if readonly else self._connect("mode=rwc")

    def _connect(self, mode: str) -> sqlite3.Connection:
        # https://www.sqlite.org/uri.html: these three have a meaning of their own in a file name
        name = os.path.abspath(self.path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        return sqlite3.connect(
            f"file:{name}?{mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_SECONDS,
        )

    def _open_reader(self) -> sqlite3.Connection:
        """Opens a file in a read-only directory: SQLite cannot create the WAL index there, so a file without a WAL is
        opened as immutable."""
        reader = self._connect("mode=ro")
        try:
            reader.execute("SELECT count(*) FROM sqlite_master")
        except BaseException as error:
            reader.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _NO_INDEX:
                raise
            with suppress(FileNotFoundError):
                if os.stat(f"{self.path}-wal").st_size:
                    raise JournalError(
                        f"journal {self.path} has a write-ahead log and its directory cannot be written; "
                        "copy both to a place of your own and read them there"
                    ) from error
            return self._connect("mode=ro&immutable=1")
        return reader

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        with self.mutex, self.errors():
            self.check_open()
            return self.raw.execute(sql, values).fetchall()

    def value(self, sql: str) -> Any:
        """The first column of the first row."""
        return self.rows(sql)[0][0]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction; durable when it ends."""
        with self.mutex, self.errors():
            self.check_writable()
            self.raw.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.raw.execute("COMMIT")
            finally:
                if self.raw.in_transaction:
                    self.raw.execute("ROLLBACK")

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Runs one statement inside a `transaction`; returns the number of rows affected."""
        return self.raw.execute(sql, values).rowcount

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Runs a statement once per row, inside a `transaction`."""
        self.raw.executemany(sql, rows)

    def write_ahead(self) -> None:
        """Enables WAL with a sync at every commit: acknowledged data survives a power failure (J1)."""
        mode = self.value("PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise JournalError(f"journal {self.path} needs a local file system with WAL, this one offers {mode}")
        self.rows("PRAGMA synchronous = FULL")
        self.rows(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")

    def used_bytes(self) -> int:
        """Bytes used by the tables, excluding free pages."""
        pages = self.value("PRAGMA page_count") - self.value("PRAGMA freelist_count")
        return int(pages * self.value("PRAGMA page_size"))

    def disk_bytes(self) -> int:
        """Size of the file and its write-ahead log on disk."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                total += os.stat(self.path + suffix).st_size
        return total

    def shrink(self) -> None:
        """Gives free pages back to the disk."""
        while self.value("PRAGMA freelist_count"):
            with self.transaction():
                self.rows(f"PRAGMA incremental_vacuum({VACUUMED_PAGES})")
        self.checkpoint()

    def checkpoint(self) -> None:
        """Copies the WAL into the file. A concurrent reader may keep part of it in the WAL; nothing is lost."""
        self.check_writable()
        self.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def copy_to(self, target: str, then: str) -> None:
        """Writes what is committed now to one file and runs the statement `then` on it. Raises `JournalError` if
        `target` exists."""
        self.check_open()
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise JournalError(f"journal {self.path} cannot be copied to {target}: {error}") from error
        try:
            with self.errors(), closing(sqlite3.connect(target)) as copy:
                self.raw.backup(copy)
                copy.execute(then)
                copy.commit()
        except BaseException:
            os.unlink(target)
            raise

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            undecodable = code is None and isinstance(error, sqlite3.OperationalError)
            if undecodable or (code is not None and code & 0xFF in _BROKEN):
                raise JournalDamaged(self.path, str(error)) from error
            full = code is not None and code & 0xFF == sqlite3.SQLITE_FULL
            raise JournalError(f"journal {self.path}: {error}{FULL if full else ''}") from error
        except UnicodeDecodeError as error:
            # sqlite3 quotes a broken schema in its message and fails to decode that
            raise JournalDamaged(self.path, f"its schema cannot be read: {error.reason}") from error

    def check_open(self) -> None:
        if self.closed:
            raise JournalError(f"journal {self.path} is closed")

    def check_writable(self) -> None:
        self.check_open()
        if self.readonly:
            raise JournalError(f"journal {self.path} was opened read-only")

    def close(self) -> None:
        with self.mutex:
            self.closed = True
            self.raw.close()
