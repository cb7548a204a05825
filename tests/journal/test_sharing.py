"""One writer, any number of readers, and a writer that crashes (J1, J5, J6)."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlite_utils import Database

from journal.events import EVENTS
from journal.sqlite import SqliteJournal
from journal.store import JournalError, JournalLocked
from tests.journal.samples import MORNING, node, raw

ROOT = Path(__file__).parents[2]

WRITER = """
import sys
from journal.sqlite import SqliteJournal
from tests.journal.samples import node
journal = SqliteJournal(sys.argv[1])
print("open", flush=True)
batch = journal.last_batch
while True:
    batch += 1
    seq = journal.last_seq
    journal.append([node(seq + 1 + step) for step in range(1 + batch % 7)], at=batch, batch=batch)
    if batch % 10 == 0:
        journal.snapshot(journal.last_seq, batch, b"state", build="0.1.0")
    if batch % 50 == 0:
        journal.prune(before_at=batch - 40)
    print(batch, flush=True)
"""


def start_writer(path: Path) -> subprocess.Popen[str]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    return writer


def kill(writer: subprocess.Popen[str]) -> list[int]:
    """Kills the writer as a power button would; returns the batches it acknowledged and nobody had read."""
    assert writer.stdout is not None
    writer.kill()
    acknowledged = [int(line) for line in writer.stdout if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()
    return acknowledged


def test_j1_a_killed_writer_leaves_whole_batches_and_all_it_acknowledged(path: Path) -> None:
    """Six lives on one file; snapshots and pruning go on meanwhile."""
    patience = random.Random(7)
    for _ in range(6):
        writer = start_writer(path)
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(patience.randrange(1, 90))]
        acknowledged += kill(writer)
        journal, message = SqliteJournal.open_or_set_aside(path, at=1)
        assert message is None
        assert journal.last_batch >= acknowledged[-1]
        base = journal.nearest_snapshot()
        entries = list(journal.read(base.seq if base else 0))
        sizes = Counter(entry.batch for entry in entries)
        assert sizes == {batch: 1 + batch % 7 for batch in sizes}
        assert [entry.event for entry in entries] == [node(entry.seq) for entry in entries]
        if base and base.seq < journal.last_seq:
            assert entries[0].seq == base.seq + 1
        journal.close()


def test_j6_a_second_writer_is_refused_and_told_who_writes(path: Path) -> None:
    writer = start_writer(path)
    try:
        with pytest.raises(JournalLocked, match=f"being written by process {writer.pid} on ") as told:
            SqliteJournal(path)
        assert "opens it read-only" in str(told.value)
    finally:
        kill(writer)
    SqliteJournal(path).close()


def test_j6_a_second_writer_in_the_same_process_is_refused_too(path: Path) -> None:
    first = SqliteJournal(path)
    with pytest.raises(JournalLocked):
        SqliteJournal(path)
    first.append([node(1)], at=1, batch=1)
    first.close()
    second = SqliteJournal(path)
    assert second.last_seq == 1
    second.close()


def test_j6_a_reader_follows_a_writer_in_another_process(path: Path) -> None:
    writer = start_writer(path)
    assert writer.stdout is not None
    try:
        writer.stdout.readline()
        reader = SqliteJournal(path, readonly=True)
        seen: list[int] = []
        while len(seen) < 40:
            after = seen[-1] if seen else 0
            seen += [entry.seq for entry in reader.read(after)]
            acknowledged = int(writer.stdout.readline())
            assert reader.last_batch >= acknowledged
        assert seen == list(range(1, len(seen) + 1))
        reader.close()
    finally:
        kill(writer)


def test_j6_a_reader_writes_nothing(path: Path) -> None:
    writer = SqliteJournal(path)
    writer.append([node(1)], at=1, batch=1)
    reader = SqliteJournal(path, readonly=True)
    for call in (
        lambda: reader.append([node(2)], at=1, batch=1),
        lambda: reader.snapshot(1, 1, b"", build=""),
        lambda: reader.prune(before_at=1),
        reader.checkpoint,
    ):
        with pytest.raises(JournalError, match="was opened read-only"):
            call()
    reader.close()
    writer.close()


def test_j6_a_copy_made_while_the_writer_writes_is_whole(path: Path) -> None:
    writer = start_writer(path)
    assert writer.stdout is not None
    try:
        batch = int(writer.stdout.readline())
        reader = SqliteJournal(path, readonly=True)
        copy = path.with_name("copy.sqlite")
        reader.copy_to(copy)
        with pytest.raises(JournalError, match="File exists"):
            reader.copy_to(copy)
        reader.close()
    finally:
        kill(writer)
    copied = SqliteJournal(copy)
    assert copied.last_batch >= batch
    entries = list(copied.read())
    assert Counter(entry.batch for entry in entries)[copied.last_batch] == 1 + copied.last_batch % 7
    copied.append([node(1)], at=1, batch=copied.last_batch)
    copied.close()


def test_j1_threads_of_one_process_share_a_journal(path: Path) -> None:
    """The loop appends in a worker thread while another prunes and the metrics look on."""
    journal = SqliteJournal(path)
    failures: list[BaseException] = []

    def work(write: bool) -> None:
        try:
            for _ in range(60):
                if write:
                    journal.append([node(1), node(2)], at=1, batch=1)
                else:
                    journal.snapshot(journal.last_seq, 1, b"state", build="0.1.0")
                    journal.prune(max_bytes=0)
                    assert journal.last_seq - journal.first_seq < 1000
                    assert journal.size_bytes > 0
        except BaseException as failure:
            failures.append(failure)

    journal.append([node(0)], at=1, batch=1)
    threads = [threading.Thread(target=work, args=(write,)) for write in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert journal.last_seq == 121
    journal.close()


def test_j6_pruning_gives_the_space_back(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.append([node(number) for number in range(20_000)], at=1, batch=1)
    journal.snapshot(19_000, 1, b"state", build="0.1.0")
    journal.checkpoint()
    before = path.stat().st_size
    assert journal.prune(before_at=1) == 19_000
    assert path.stat().st_size < before // 8
    assert journal.size_bytes == path.stat().st_size
    journal.close()


def test_n1_a_closed_journal_is_one_file_and_so_is_a_checkpointed_one(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.append([node(1)], at=1, batch=1)
    journal.checkpoint()
    copy = path.with_name("copy.sqlite")
    shutil.copyfile(path, copy)
    copied = SqliteJournal(copy, readonly=True)
    assert list(copied.read()) == list(journal.read())
    copied.close()
    journal.close()
    assert sorted(file.name for file in path.parent.glob("journal.sqlite*")) == [
        "journal.sqlite",
        "journal.sqlite.lock",
    ]


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A directory that another user can reach and not write."""
    directory = Path(tempfile.mkdtemp())
    yield directory
    shutil.rmtree(directory)


def read_as_somebody_else(path: Path) -> str:
    """What a reader without the right to write says: how many entries, or why not."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            answer = str(SqliteJournal(path, readonly=True).last_seq)
        except BaseException as error:
            answer = str(error)
        os.write(sending, answer.encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as answer_file:
        answer = answer_file.read()
    os.waitpid(child, 0)
    return answer


def test_j6_a_journal_in_a_directory_nobody_may_write_can_be_read(shelf: Path) -> None:
    path = shelf / "100% sure? #1.sqlite"
    journal = SqliteJournal(path)
    journal.append([node(1), node(2)], at=1, batch=1)
    journal.close()
    shelf.chmod(0o555)
    assert read_as_somebody_else(path) == "2"
    shelf.chmod(0o755)


def test_j6_a_wal_in_a_directory_nobody_may_write_is_not_left_out(shelf: Path) -> None:
    path = shelf / "journal.sqlite"
    writer = start_writer(path)
    assert writer.stdout is not None
    writer.stdout.readline()
    kill(writer)
    Path(f"{path}-shm").unlink(missing_ok=True)
    assert Path(f"{path}-wal").stat().st_size > 0
    shelf.chmod(0o555)
    assert "has a write-ahead log and its directory cannot be written" in read_as_somebody_else(path)
    shelf.chmod(0o755)


def test_j6_a_person_can_query_a_journal(path: Path) -> None:
    journal = SqliteJournal(path)
    for number, events in enumerate(MORNING, 1):
        journal.append(events, at=number, batch=number)
    db = Database(path)
    rows = list(
        db.query(
            "select seq, payload ->> '$.decision.node' as node from entries "
            "where kind = 'Decided' and at between 1 and 9"
        )
    )
    assert rows == [{"seq": 12, "node": "gpu-1"}]
    assert {row["kind"] for row in db.query("select distinct kind from entries")} <= set(EVENTS)
    db.close()
    journal.close()


def test_j1_what_is_stored_of_an_object_is_its_owners_json_byte_for_byte(path: Path) -> None:
    """Whatever the owner wrote: another order of keys, spaces, escapes."""
    body = raw('{ "b": 1,\n "a": "\\u0000é\\ud83d\\ude00" }')
    journal = SqliteJournal(path)
    observed = type(node(1))("Node", "", "gpu", "n", "1", "list", body)
    journal.append([observed], at=1, batch=1)
    (entry,) = journal.read()
    assert bytes(entry.event.object) == bytes(body)  # type: ignore[attr-defined]
    journal.close()
