"""What a journal costs to read again: replay and verify against reading and decoding it, snapshots against JSON.

`python -m tests.bench.bench_replay [NODES]` prints it. The journal is the first list of a cluster and a few hundred
orders that come and go, taken through the real loop with a writer whose every write lands.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from journal import events
from journal.sqlite import SqliteJournal
from reconciler.core import snapshot
from reconciler.core.model.objects import DEVICE, KINDS, POD, Device, Pod
from reconciler.core.state.decisions import Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging.replay import verify
from reconciler.runtime.loop import Loop
from reconciler.runtime.restore import state_at
from tests.bench import synthetic_cluster as synthetic_cluster

TURNS = 5
ORDERS = 500


class Landing:
    """A writer whose every write lands at once."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self._versions = itertools.count(10_000_000)

    def send(self, seq: int, decision: Decision) -> None:
        assert self.loop is not None
        for index in range(len(decision.writes)):
            self.loop.submit(events.WriteSucceeded(f"{seq}.{index}", str(next(self._versions))))


def record(nodes: int, journal: SqliteJournal) -> PlacementState:
    """The journal of a cluster that is listed, led and used; the state it led to."""
    world = synthetic_cluster.fill(nodes)
    clock = itertools.count(world.at)
    writer = Landing()
    loop = Loop(
        journal,
        PlacementState(),
        writer,
        clock=lambda: next(clock),
        timer=time.perf_counter,
        snapshot_every=1 << 60,
    )
    writer.loop = loop
    observed = [entry.event for entry in world.entries]
    listed = [events.KindListed(kind) for kind in KINDS]
    for event in (*observed, *listed, events.LeadershipAcquired("binder-0", 1)):
        loop.submit(event)
    for number in range(ORDERS):
        version = str(1_000_000 + number)
        order = Device(
            name=f"order-{number}", namespace="tenant-x0", uid=f"order-{number}", class_name="a10", created=world.at
        )
        pod = Pod(
            name=f"job-{number}", namespace="kube-system", uid=f"job-{number}", node=synthetic_cluster.name(0), memory=1
        )
        for kind, item in ((DEVICE, order), (POD, pod)):
            loop.submit(world.observation(kind, msgspec.structs.replace(item, resource_version=version)))
        if number % 50 == 0:
            while loop.step():
                pass
    while loop.step():
        pass
    return loop.state


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(title: str, unit: str, amount: int, ours: Callable[[], object], base: Callable[[], object]) -> None:
    """Both sides take turns in one run, so that a busy machine slows both."""
    turns = [(seconds(ours), seconds(base)) for _ in range(TURNS)]
    took, bare = (statistics.median(times) for times in zip(*turns, strict=True))
    print(f"{title:<34}{amount / took:>12,.0f} {unit}/s {amount / bare:>14,.0f} {unit}/s   ratio {bare / took:.2f}")


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with tempfile.TemporaryDirectory() as directory:
        journal = SqliteJournal(Path(directory) / "journal.sqlite")
        state = record(nodes, journal)
        entries = journal.last_seq
        found = verify(journal)
        assert found.difference is None, found.difference
        print(f"{nodes:,} nodes, {entries:,} entries, {found.decisions:,} decisions\n")

        def read() -> None:
            for _ in journal.read():
                pass

        compare("replay / read and decode", "entries", entries, lambda: state_at(journal), read)
        compare("verify / read and decode", "entries", entries, lambda: verify(journal), read)
        payload = snapshot.export(state)
        plain = msgspec.json.decode(payload)
        objects = sum(len(found) for found in state.objects.values())
        print(f"\nsnapshot: {objects:,} objects, {len(payload):,} bytes")
        compare(
            "export / plain JSON encode",
            "objects",
            objects,
            lambda: snapshot.export(state),
            lambda: msgspec.json.encode(plain),
        )
        compare(
            "restore / plain JSON decode",
            "objects",
            objects,
            lambda: snapshot.restore(payload),
            lambda: msgspec.json.decode(payload),
        )
        journal.close()


if __name__ == "__main__":
    main()
