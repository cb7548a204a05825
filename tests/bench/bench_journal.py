"""Appending to the journal against bare sqlite3 with the same rows and pragmas.

`python -m tests.bench.bench_journal` prints it. Both sides take turns in one run, so that a busy machine
slows both. `bare` gets its rows ready-made; what the journal does more is numbering, encoding and check sums.
Reading is set against fetching and decoding.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from journal.events import Event, ObjectObserved, decode
from journal.sqlite import SqliteJournal

TURNS = 15
BATCHES = {1: 40, 100: 20}
"""Events in a batch: batches in a turn."""
READ = 20_000


def pod(number: int) -> Event:
    """An observation of a usual size (about 400 bytes of JSON)."""
    body = {
        "name": f"virt-launcher-train-{number}-x7k2p",
        "namespace": "tenant-research",
        "uid": f"2f1c8a0e-0000-4000-8000-{number:012d}",
        "resourceVersion": str(100_000 + number),
        "created": 1_760_000_000_000 + number,
        "node": f"gpu-node-{number % 100}",
        "phase": "Running",
        "requests": {"nvidia.com/GA102GL_A10": 2},
        "memory": 68_719_476_736,
        "launcher": True,
        "vmiName": f"train-{number}",
        "vmiUid": f"7b0d2c4e-0000-4000-8000-{number:012d}",
    }
    name, uid, version = str(body["name"]), str(body["uid"]), str(body["resourceVersion"])
    return ObjectObserved("Pod", "tenant-research", name, uid, version, "watch", msgspec.Raw(msgspec.json.encode(body)))


def bare(path: Path, rows_from: Path) -> sqlite3.Connection:
    """A database with the journal's own tables and pragmas."""
    with closing(sqlite3.connect(rows_from)) as source:
        statements = [sql for (sql,) in source.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    for statement in statements:
        connection.execute(statement)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bench_append(size: int, directory: Path) -> None:
    journal = SqliteJournal(directory / f"journal-{size}.sqlite")
    events = [pod(number) for number in range(size)]
    journal.append(events, at=1_760_000_000_000, batch=1)
    with closing(sqlite3.connect(journal.path)) as look:
        rows = [row[1:] for row in look.execute("SELECT * FROM entries ORDER BY seq")]
    other = bare(directory / f"bare-{size}.sqlite", Path(journal.path))
    insert = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"
    batch, seq = 1, 0

    def append() -> None:
        nonlocal batch
        for _ in range(BATCHES[size]):
            batch += 1
            journal.append(events, at=1_760_000_000_000 + batch, batch=batch)

    def executemany() -> None:
        nonlocal seq
        for _ in range(BATCHES[size]):
            numbered = [(seq + place, *row) for place, row in enumerate(rows, 1)]
            seq += size
            other.execute("BEGIN IMMEDIATE")
            other.executemany(insert, numbered)
            other.execute("COMMIT")

    turns = [(seconds(append), seconds(executemany)) for _ in range(TURNS)]
    ours, theirs = (statistics.median(times) / BATCHES[size] for times in zip(*turns, strict=True))
    print(
        f"append, batches of {size:>3}: journal {size / ours:>9,.0f} events/s   bare sqlite3 "
        f"{size / theirs:>9,.0f} events/s   ratio {theirs / ours:.2f}"
    )
    journal.close()
    other.close()


def bench_read(directory: Path) -> None:
    journal = SqliteJournal(directory / "read.sqlite")
    journal.append([pod(number) for number in range(READ)], at=1_760_000_000_000, batch=1)

    def read() -> None:
        for _ in journal.read():
            pass

    def fetch_and_decode() -> None:
        with closing(sqlite3.connect(journal.path)) as look:
            for kind, version, payload in look.execute("SELECT kind, version, payload FROM entries ORDER BY seq"):
                decode(kind, version, payload)

    turns = [(seconds(read), seconds(fetch_and_decode)) for _ in range(TURNS)]
    ours, theirs = (statistics.median(times) for times in zip(*turns, strict=True))
    print(
        f"read:                   journal {READ / ours:>9,.0f} events/s   fetch+decode "
        f"{READ / theirs:>9,.0f} events/s   ratio {theirs / ours:.2f}"
    )
    journal.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for size in BATCHES:
            bench_append(size, Path(directory))
        bench_read(Path(directory))


if __name__ == "__main__":
    main()
