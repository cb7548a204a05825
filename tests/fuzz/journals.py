"""Targets: journal files that are cut, flipped, foreign, or lack or lose their write-ahead log (J6).

What is read is what was written, or the file is told to be unusable; a command says so in one sentence.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from click.testing import CliRunner
from hypothesis import strategies as st
from rich.console import Console

from journal.events import Entry
from journal.sqlite import SqliteJournal
from journal.store import JournalError
from reconciler.core import snapshot
from reconciler.demo.story import demo
from reconciler.main import main
from reconciler.runtime import restore
from tests.fuzz.targets import Target
from tests.simulation.safety import same_when_counted_anew

COMMANDS = (
    ("journal", "info"),
    ("journal", "info", "-o", "json"),
    ("journal", "tail"),
    ("journal", "tail", "-n", "100000"),
    ("journal", "export"),
    ("journal", "export", "--from", "5", "--to", "40"),
    ("verify",),
    ("usage",),
    ("usage", "--format", "csv"),
    ("replay",),
    ("decisions",),
)
AT = 1_900_000_000_000


class Written(NamedTuple):
    """A journal as its files, the log in a file of its own, and what is in it."""

    main: bytes
    wal: bytes
    entries: tuple[Entry, ...]
    snapshots: frozenset[Any]


class Files(NamedTuple):
    """The files beside each other; None: missing."""

    main: bytes
    wal: bytes | None
    shm: bytes | None
    rollback: bytes | None

    def __repr__(self) -> str:
        whole = written_files()
        pairs = (("main", self.main, whole.main), ("wal", self.wal, whole.wal), ("shm", self.shm, b""))
        parts = [_difference(*pair) for pair in (*pairs, ("rollback", self.rollback, b""))]
        return f"Files({', '.join(parts)})"


def _difference(name: str, found: bytes | None, whole: bytes) -> str:
    """How a file differs from the one that was written."""
    if found is None or found == whole:
        return f"{name} {'missing' if found is None else 'whole'}"
    changed = [index for index, (ours, theirs) in enumerate(zip(found, whole, strict=False)) if ours != theirs]
    where = f", {len(changed)} changed from {changed[0]} to {changed[-1]}" if changed else ""
    return f"{name} {len(found)} of {len(whole)} bytes{where}"


@cache
def written_files() -> Written:
    """The demo's journal: half of it in the database, half in the log."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.db"
        before = structlog.get_config()
        asyncio.run(demo(path, Console(file=StringIO())))
        structlog.configure(**before)
        source = SqliteJournal(path, readonly=True)
        entries, copy = tuple(source.read()), SqliteJournal(Path(directory) / "copy.db")
        state = restore.state_at(source)
        for number, entry in enumerate(entries):
            copy.append([entry.event], at=entry.at, batch=entry.batch)
            if number == len(entries) // 2:
                copy.snapshot(entry.seq, entry.at, _payload(source, entry.seq), build="test")
                copy.checkpoint()
        main, wal = (Path(f"{copy.path}{suffix}").read_bytes() for suffix in ("", "-wal"))
        found = Written(main, wal, entries, frozenset({copy.nearest_snapshot()}))
        source.close()
        copy.close()
        assert state.seq == entries[-1].seq and wal
        return found


def _payload(journal: SqliteJournal, seq: int) -> bytes:
    return snapshot.export(restore.state_at(journal, seq=seq))


@st.composite
def harmed(draw: st.DrawFn, content: bytes) -> bytes:
    """A file with bytes flipped, zeroed, cut, repeated or put elsewhere."""
    most = len(content)
    where = st.integers(0, most - 1) | st.integers(0, min(400, most - 1)) | st.integers(0, most // 512).map(_page(most))
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(where)
        length = draw(st.sampled_from((1, 1, 4, 24, 512, 4096)))
        match draw(st.sampled_from(("flip", "flip", "zero", "noise", "cut", "move", "longer"))):
            case "flip":
                changed[start % len(changed)] ^= draw(st.integers(1, 255))
            case "zero":
                changed[start : start + length] = bytes(len(changed[start : start + length]))
            case "noise":
                noise = draw(st.binary(min_size=1, max_size=16))
                changed[start : start + len(noise)] = noise
            case "cut":
                del changed[max(1, start) :]
            case "move":
                other = draw(where)
                changed[start : start + length] = content[other : other + length]
            case "longer":
                changed += content[start : start + length]
    return bytes(changed)


def _page(most: int) -> Any:
    return lambda number: min(most - 1, number * 512)


FOREIGN = (b"", b"\0", b"SQLite format 3\0", b"apiVersion: v1\n", b"SQLite format 3\0" + bytes(84), b"\xff" * 5000)


@st.composite
def files(draw: st.DrawFn) -> Files:
    """A journal of which something is amiss."""
    whole = written_files()
    mains = st.just(whole.main) | harmed(whole.main)
    wals = st.none() | st.just(whole.wal) | harmed(whole.wal)
    odd = st.none() | st.sampled_from(FOREIGN) | st.binary(max_size=40)
    main = draw(mains | mains | mains | st.sampled_from(FOREIGN))
    return Files(main, draw(wals | wals | odd), draw(st.none() | st.none() | odd), draw(st.none() | st.none() | odd))


def put(directory: str, found: Files) -> Path:
    path = Path(directory) / "journal.db"
    for suffix, content in (("", found.main), ("-wal", found.wal), ("-shm", found.shm), ("-journal", found.rollback)):
        if content is not None:
            Path(f"{path}{suffix}").write_bytes(content)
    return path


def true(entries: list[Entry]) -> None:
    """Every entry is one that was written, and they follow each other."""
    known = written_files().entries
    first = entries[0].seq - 1 if entries else 0
    assert tuple(entries) == known[first : first + len(entries)], "an entry that was never written"


def check_files(example: tuple[Files, bool]) -> None:
    found, readonly = example
    with tempfile.TemporaryDirectory() as directory:
        path = put(directory, found)
        if readonly:
            _check_reader(path)
            for suffix, content in (("", found.main), ("-wal", found.wal)):
                assert content is None or Path(f"{path}{suffix}").read_bytes() == content, "a reader changed the file"
        else:
            _check_writer(path)


def _check_reader(path: Path) -> None:
    try:
        journal = SqliteJournal(path, readonly=True)
    except JournalError as error:
        sentence(str(error))
        return
    _check_content(journal)
    journal.close()


def _check_content(journal: SqliteJournal) -> None:
    entries: list[Entry] = []
    try:
        for entry in journal.read():
            entries.append(entry)
        state = restore.state_at(journal)
        assert {journal.nearest_snapshot()} - {None} <= written_files().snapshots
    except JournalError as error:
        sentence(str(error))
        return
    finally:
        true(entries)
    same_when_counted_anew(state)


def _check_writer(path: Path) -> None:
    """A writer keeps what cannot be used beside the journal, and goes on with what can."""
    try:
        journal, message = SqliteJournal.open_or_set_aside(path, at=AT)
    except JournalError as error:
        sentence(str(error))
        return
    if message is not None:
        sentence(message)
        assert list(path.parent.glob("*.damaged-*")), "what was unusable is gone"
    _check_content(journal)
    try:
        last = journal.last_seq
        (made,) = journal.append([written_files().entries[0].event], at=AT, batch=journal.last_batch + 1)
        assert list(journal.read(after=last)) == [made]
    except JournalError as error:
        sentence(str(error))
    finally:
        journal.close()


def check_command(example: tuple[Files, tuple[str, ...]]) -> None:
    found, command = example
    with tempfile.TemporaryDirectory() as directory:
        path = put(directory, found)
        result = CliRunner().invoke(main, [*command, str(path)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, 3), result.output
    assert "Traceback" not in result.output
    if result.exit_code == 3:
        sentence(result.stderr)


def sentence(text: str) -> None:
    """One line a person can read."""
    text = text.strip()
    assert text and text.isprintable(), f"not one sentence: {text!r}"
    text.encode()


FILES = Target("journal files", st.deferred(lambda: st.tuples(files(), st.booleans())), check_files, 40)
SAID = Target("journal commands", st.deferred(lambda: st.tuples(files(), st.sampled_from(COMMANDS))), check_command, 20)
