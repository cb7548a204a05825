"""Journal files on disk: writer lock, file validation, and moving damaged files aside.

Works on raw bytes and names before SQLite opens the file: a foreign file is never written to. Knows the first bytes of
SQLite's two file formats (https://www.sqlite.org/fileformat2.html) and nothing of the tables' content.
"""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from journal.store import JournalDamaged, JournalError, JournalForeign, JournalLocked

APPLICATION_ID = 0x47505542
""""GPUB" in the header of every journal, so that `file` and we know one from any other SQLite database."""

COMPANIONS = ("", "-wal", "-shm", "-journal")
"""The database itself first: a leftover WAL without its database is noticed, the reverse is not."""

_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID_AT = 68
_WAL_MAGICS = (0x377F0682, 0x377F0683)
_WAL_HEADER_BYTES = 32


class WriterLock:
    """An advisory lock on `<path>.lock`, held by the one process that writes the journal.

    Raises `JournalLocked` while another holder lives; the kernel frees the lock of a dead one. The lock file
    stays: deleting it would let two processes lock two files of the same name.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file: IO[str] = open(f"{path}.lock", "a+", encoding="utf-8")  # noqa: SIM115 (held while open)
        except OSError as error:
            where = os.path.dirname(path) or "."
            raise JournalError(f"journal {path} cannot be written: {error.strerror}: {where}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read(200).strip()
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise JournalLocked(path, holder) from error
            raise JournalError(f"journal {path} cannot be locked on this file system: {error}") from error
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def examine(path: str) -> bool:
    """Whether there is a journal at `path`; False if there is no file or it is empty.

    Raises `JournalForeign` for any other file, `JournalDamaged` for a database without its pages or a WAL
    that SQLite would silently throw away, `JournalError` where the file cannot be read.
    """
    try:
        header, wal = _read(path, 100), _read(f"{path}-wal", _WAL_HEADER_BYTES + 1)
    except OSError as error:
        raise JournalError(f"journal {path} cannot be read: {error}") from error
    if not header:
        if wal:
            raise JournalDamaged(path, "the file is empty or missing, but a write-ahead log exists next to it")
        return False
    if not header.startswith(_MAGIC):
        raise JournalForeign(path, "it does not start like a SQLite database")
    if int.from_bytes(header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4]) != APPLICATION_ID:
        raise JournalForeign(path, "it is the SQLite database of another application")
    if len(wal) > _WAL_HEADER_BYTES and not _wal_header_holds(wal[:_WAL_HEADER_BYTES]):
        raise JournalDamaged(path, "the write-ahead log next to it has a broken header")
    return True


def _read(path: str, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except FileNotFoundError:
        return b""


def _wal_header_holds(header: bytes) -> bool:
    """Whether the checksum over the header's first 24 bytes is SQLite's; the last bit of the magic number gives the
    byte order."""
    magic = int.from_bytes(header[:4])
    if magic not in _WAL_MAGICS:
        return False
    order = "big" if magic & 1 else "little"
    words = [int.from_bytes(header[at : at + 4], order) for at in range(0, 24, 4)]  # type: ignore[arg-type]
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return (first, second) == (int.from_bytes(header[24:28]), int.from_bytes(header[28:32]))


def set_aside(path: str, at: int) -> str:
    """Renames the journal and its companions to `<path>.damaged-<UTC time of at>`; returns that name.

    The caller holds the `WriterLock`. Nothing is ever overwritten or deleted (J6).
    """
    target = free_name(path, at)
    try:
        for suffix in COMPANIONS:
            if os.path.lexists(path + suffix):
                os.rename(path + suffix, target + suffix)
        sync_directory(path)
    except OSError as error:
        raise JournalError(f"damaged journal {path} cannot be set aside as {target}: {error}") from error
    return target


def free_name(path: str, at: int) -> str:
    """The name for what is set aside at `at` (ms): `<path>.damaged-<UTC time>`, numbered where it is taken."""
    moment = datetime.fromtimestamp(at / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    target, attempt = f"{path}.damaged-{moment}", 1
    while any(os.path.lexists(target + suffix) for suffix in COMPANIONS):
        attempt += 1
        target = f"{path}.damaged-{moment}-{attempt}"
    return target


def sync_directory(path: str) -> None:
    """Fsyncs the directory of `path`, so that renames in it are durable."""
    directory = os.open(Path(path).absolute().parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
