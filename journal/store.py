"""The `Journal` protocol, its errors, and the in-memory journal (J1, J6).

Owns the sequence numbers that both journals share. Knows nothing of files (`sqlite`) or of what events mean. `seq`
starts at 1 and grows by one; times are integer milliseconds since the Unix epoch, UTC; sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from journal.events import Entry, Event, encode


class JournalError(Exception):
    """Base of all journal errors. The message names the file and the remedy."""


class JournalDamaged(JournalError):
    """The file is truncated or corrupt. `seq`: the entry that cannot be read, None for the file as a whole.
    `set_aside`: the file's new path, "" if it was not moved (J6)."""

    def __init__(self, path: str, why: str, set_aside: str = "", seq: int | None = None) -> None:
        where = f"journal {path}" if seq is None else f"journal {path}, entry {seq}"
        super().__init__(f"{where} is damaged: {why}{_whereabouts(set_aside)}")
        self.path, self.why, self.set_aside, self.seq = path, why, set_aside, seq


class JournalForeign(JournalError):
    """The file is not a gpu-binder journal; nothing was written to it."""

    def __init__(self, path: str, why: str, set_aside: str = "") -> None:
        super().__init__(f"{path} is no journal of gpu-binder: {why}{_whereabouts(set_aside)}")
        self.path, self.why, self.set_aside = path, why, set_aside


class JournalTooNew(JournalError):
    """A newer build wrote the file; nothing was written to it. `seq`: the entry that only that build reads, None for
    the file as a whole."""

    def __init__(self, path: str, why: str, set_aside: str = "", seq: int | None = None) -> None:
        super().__init__(
            f"journal {path} was written by a newer gpu-binder: {why}; read it with that build{_whereabouts(set_aside)}"
        )
        self.path, self.why, self.set_aside, self.seq = path, why, set_aside, seq


class JournalLocked(JournalError):
    """Another process is writing this file; it can still be opened read-only."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"journal {path} is being written by {holder or 'another process'}; every replica needs a file "
            "of its own, and who only wants to look opens it read-only"
        )
        self.path, self.holder = path, holder


class JournalPruned(JournalError):
    """The entries asked for are gone: start from `nearest_snapshot`, or read what is left (J6)."""

    def __init__(self, asked: int, first_seq: int) -> None:
        super().__init__(
            f"entry {asked} was asked for, but the journal now starts at entry {first_seq}: what came before "
            "was pruned; start from the nearest snapshot"
        )
        self.asked, self.first_seq = asked, first_seq


def _whereabouts(set_aside: str) -> str:
    if not set_aside:
        return ""
    return (
        f". It was set aside as {set_aside} and a new journal started; the cluster is the authority, so only "
        f"the history is interrupted. To look at it: `sqlite-utils tables {set_aside} --counts`, or "
        f"`sqlite3 {set_aside} .recover`; to be rid of it, delete it"
    )


class Snapshot(msgspec.Struct, frozen=True):
    """The folded state after entry `seq`, in its owner's encoding. `at`: ms, never before the entry's. `build`: the
    version that wrote it; another build may have to fold the entries again."""

    seq: int
    batch: int
    at: int
    build: str
    payload: bytes


class Tail(msgspec.Struct, frozen=True):
    """Position of the last record; zeros in an empty journal."""

    seq: int = 0
    batch: int = 0
    at: int = 0


class Journal(Protocol):
    """Append-only and ordered (J1). Calls may come from any thread."""

    @property
    def first_seq(self) -> int:
        """The oldest entry that can still be read; `last_seq + 1` if there is none."""
        ...

    @property
    def last_seq(self) -> int: ...

    @property
    def last_batch(self) -> int: ...

    @property
    def last_at(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def watched_until(self) -> int:
        """Time (ms) up to which the journal is known to be complete, from the last `mark`; 0 if never marked."""
        ...

    def mark(self, until: int) -> None:
        """Record that the journal is complete up to `until` (ms), without adding an entry (J3)."""
        ...

    def append(self, events: Sequence[Event], *, at: int, batch: int) -> list[Entry]:
        """Append all events or none, durable on return, numbered from `last_seq + 1`. `at` is raised to `last_at` if
        the clock went back. Raises ValueError for a `batch` below `last_batch`."""
        ...

    def read(self, after: int = 0, until: int | None = None) -> Iterator[Entry]:
        """Stream the entries with `after` < seq <= `until` in order; None: up to the last one at the time of the
        call. `after` 0 starts at `first_seq`. Raises `JournalPruned` if an entry asked for by number was pruned,
        `JournalDamaged` with its seq if one cannot be read."""
        ...

    def seq_at(self, at: int) -> int:
        """The last entry recorded at or before `at`; `first_seq - 1` if there is none."""
        ...

    def snapshot(self, seq: int, at: int, payload: bytes, *, build: str) -> None:
        """Store the state after entry `seq`, replacing an earlier snapshot of that entry. Raises ValueError if the
        journal has no such entry (never written, or pruned)."""
        ...

    def nearest_snapshot(self, seq: int | None = None, at: int | None = None) -> Snapshot | None:
        """The newest snapshot not after `seq` and not after `at`. None with `first_seq` > 1: the state there can no
        longer be reconstructed (J6)."""
        ...

    def snapshots(self) -> list[int]:
        """The entries with a snapshot, oldest first, whether it can be read or not."""
        ...

    def set_aside(self, seq: int | None, *, at: int, why: str) -> str:
        """Take the entries from `seq` on and their snapshots out of the journal, the whole batch of `seq` among them;
        None: everything, as the file cannot be read. `at`: now, in ms. Returns one sentence for the operator."""
        ...

    def set_aside_snapshot(self, seq: int, *, at: int, why: str) -> str:
        """Take one snapshot out of the journal. Returns one sentence for the operator."""
        ...

    def prune(self, *, before_at: int | None = None, max_bytes: int | None = None) -> int:
        """Delete the oldest entries up to a snapshot, which is kept: the newest one not after `before_at`, then newer
        ones until the rest fits `max_bytes`. Returns how many entries were deleted. Without a snapshot nothing is
        deleted, whatever the size (J6)."""
        ...

    def checkpoint(self) -> None:
        """Checkpoint everything into the main file, so that it can be copied alone (N1)."""
        ...

    def close(self) -> None:
        """Further calls raise `JournalError`; closing twice is fine."""
        ...


def complete_until(journal: Journal) -> int:
    """Time (ms) up to which a journal is known to be complete: its last entry or its last mark; 0 without entries."""
    return max(journal.last_at, journal.watched_until)


def tail_set_aside(path: str, first: int, last: int, why: str, where: str) -> str:
    """What is told about entries that were taken out."""
    return (
        f"entries {first} to {last} of journal {path} cannot be read ({why}) and were set aside as {where}; everything "
        f"before entry {first} is kept and can be exported, and the cluster is observed anew from there. To look at "
        f"them: `sqlite-utils rows {where} entries`; to be rid of them, delete the file"
    )


def snapshot_set_aside(path: str, seq: int, why: str, where: str) -> str:
    """What is told about a snapshot that was taken out."""
    return (
        f"the snapshot of entry {seq} of journal {path} cannot be read ({why}) and was set aside as {where}; an older "
        "one or the first entry serves instead, and no entry is lost. The file may be deleted"
    )


def number(events: Sequence[Event], tail: Tail, *, at: int, batch: int) -> list[Entry]:
    """Number the entries that follow `tail`. Raises ValueError for an earlier batch."""
    if batch < tail.batch:
        raise ValueError(f"batch {batch} comes after batch {tail.batch}; batches only grow")
    at = max(at, tail.at)
    return [Entry(seq, batch, at, event) for seq, event in enumerate(events, tail.seq + 1)]


def no_such_entry(seq: int, first_seq: int, last_seq: int) -> ValueError:
    return ValueError(f"no snapshot of entry {seq}: the journal holds entries {first_seq} to {last_seq}")


class MemoryJournal:
    """In-memory journal for tests and simulations."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self._snapshots: list[Snapshot] = []
        self._tail = Tail()
        self._closed = False
        self.watched_until = 0

    @property
    def first_seq(self) -> int:
        return self._tail.seq + 1 - len(self._entries)

    @property
    def last_seq(self) -> int:
        return self._tail.seq

    @property
    def last_batch(self) -> int:
        return self._tail.batch

    @property
    def last_at(self) -> int:
        return self._tail.at

    @property
    def size_bytes(self) -> int:
        """Size of the encoded events and snapshots; the structs in memory take more."""
        return self._bytes + sum(len(snapshot.payload) for snapshot in self._snapshots)

    def mark(self, until: int) -> None:
        self._check_open()
        self.watched_until = until

    def append(self, events: Sequence[Event], *, at: int, batch: int) -> list[Entry]:
        self._check_open()
        entries = number(events, self._tail, at=at, batch=batch)
        sizes = [len(encode(event)[2]) for event in events]
        if entries:
            self._entries += entries
            self._sizes += sizes
            self._bytes += sum(sizes)
            self._tail = Tail(entries[-1].seq, batch, entries[-1].at)
        return entries

    def read(self, after: int = 0, until: int | None = None) -> Iterator[Entry]:
        self._check_open()
        start = after + 1 if after > 0 else self.first_seq
        return self._stream(start, self.last_seq if until is None else min(until, self.last_seq))

    def _stream(self, start: int, until: int) -> Iterator[Entry]:
        for seq in range(start, until + 1):
            self._check_open()
            if seq < self.first_seq:
                raise JournalPruned(seq, self.first_seq)
            yield self._entries[seq - self.first_seq]

    def seq_at(self, at: int) -> int:
        self._check_open()
        return self.first_seq - 1 + bisect_right(self._entries, at, key=lambda entry: entry.at)

    def snapshot(self, seq: int, at: int, payload: bytes, *, build: str) -> None:
        self._check_open()
        known: Entry | Snapshot | None = self.nearest_snapshot(seq)
        if self.first_seq <= seq <= self.last_seq:
            known = self._entries[seq - self.first_seq]
        if known is None or known.seq != seq:
            raise no_such_entry(seq, self.first_seq, self.last_seq)
        taken = Snapshot(seq, known.batch, max(at, known.at), build, payload)
        kept = [snapshot for snapshot in self._snapshots if snapshot.seq != seq]
        self._snapshots = sorted([*kept, taken], key=lambda snapshot: snapshot.seq)

    def nearest_snapshot(self, seq: int | None = None, at: int | None = None) -> Snapshot | None:
        self._check_open()
        for snapshot in reversed(self._snapshots):
            if (seq is None or snapshot.seq <= seq) and (at is None or snapshot.at <= at):
                return snapshot
        return None

    def snapshots(self) -> list[int]:
        self._check_open()
        return [snapshot.seq for snapshot in self._snapshots]

    def set_aside(self, seq: int | None, *, at: int, why: str) -> str:
        self._check_open()
        first = self.first_seq if seq is None else seq
        while seq is not None and first > self.first_seq and self._batch(first - 1) == self._batch(seq):
            first -= 1
        last, index = self.last_seq, first - self.first_seq
        self._snapshots = [snapshot for snapshot in self._snapshots if seq is not None and snapshot.seq < first]
        self._bytes -= sum(self._sizes[index:])
        del self._entries[index:], self._sizes[index:]
        newest: Entry | Snapshot | None = self._entries[-1] if self._entries else self.nearest_snapshot()
        self._tail = Tail() if newest is None else Tail(newest.seq, newest.batch, newest.at)
        self.watched_until = min(self.watched_until, self._tail.at)
        return tail_set_aside("in memory", first, last, why, "nothing")

    def _batch(self, seq: int) -> int:
        return self._entries[seq - self.first_seq].batch

    def set_aside_snapshot(self, seq: int, *, at: int, why: str) -> str:
        self._check_open()
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot.seq != seq]
        return snapshot_set_aside("in memory", seq, why, "nothing")

    def prune(self, *, before_at: int | None = None, max_bytes: int | None = None) -> int:
        self._check_open()
        before = len(self._entries)
        if before_at is not None and (base := self.nearest_snapshot(at=before_at)):
            self._forget(base)
        if max_bytes is not None:
            for base in list(self._snapshots):
                if self.size_bytes <= max_bytes:
                    break
                self._forget(base)
        return before - len(self._entries)

    def _forget(self, base: Snapshot) -> None:
        gone = max(0, base.seq + 1 - self.first_seq)
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot.seq >= base.seq]
        self._bytes -= sum(self._sizes[:gone])
        del self._entries[:gone], self._sizes[:gone]

    def checkpoint(self) -> None:
        self._check_open()

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise JournalError("the journal is closed")
