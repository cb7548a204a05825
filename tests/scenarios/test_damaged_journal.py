"""A controller starts whatever has become of its journal, and what can be read of it is kept (J6)."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from journal import schema
from journal.sqlite import SqliteJournal
from reconciler.core.model.objects import DEVICE
from reconciler.demo.environment import Environment
from tests.edges.cli import run

GPU = "nvidia.com/GA102"
SNAPSHOT_EVERY = 60


async def stopped_cluster(path: Path) -> Environment:
    """A cluster with a running VM and a past one, whose controller was killed; its journal has several snapshots, the
    newest some 300 entries ago."""
    env = Environment()
    await env.open()
    await env.ecosystem.add_node("n1", {GPU: 4})
    await env.ecosystem.kubevirt({GPU: "10DE:2236"})
    await env.ecosystem.gpu_class("a10", GPU)
    await env.ecosystem.tenant("a")
    replica = await env.add_replica(SqliteJournal(path), "r0", snapshot_every=SNAPSHOT_EVERY)
    await env.later(3)
    assert await env.do(env.ecosystem.vmi("tenant-a", "bygone", [{"className": "a10", "count": 1}]))
    await env.later(30)
    await env.do(env.ecosystem.stop("tenant-a", "bygone"))
    await env.later(30)
    assert await env.do(env.ecosystem.vmi("tenant-a", "vm", [{"className": "a10", "count": 4}]))
    for number in range(150):
        if number == 20:
            replica.controller.loop._snapshot_every = 10_000
        await env.ecosystem.allocatable("n1", {GPU: 4 + number % 2})
        await env.settle()
    for number in range(200):
        await env.ecosystem.allocatable("n1", {GPU: 4 + number % 2})
        await env.settle()
    await env.do(replica.kill())
    replica.controller.journal.close()
    return env


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def newest(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT max(seq) FROM snapshots").fetchone()[0])


def resnapshot(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Rewrite the newest snapshot, with a check sum that holds."""
    with closing(sqlite3.connect(path)) as db:
        row = db.execute("SELECT seq, batch, at, build, payload FROM snapshots ORDER BY seq DESC LIMIT 1").fetchone()
        seq, batch, at, build, payload = row
        compressed = zlib.compress(change(zlib.decompress(payload)))
        crc = schema.snapshot_crc(seq, batch, at, build.encode(), compressed)
        db.execute("UPDATE snapshots SET payload = ?, crc = ? WHERE seq = ?", (compressed, crc, seq))
        db.commit()


def flip_an_entry(path: Path) -> None:
    sql(path, f"UPDATE entries SET payload = replace(payload, 'n1', 'n2') WHERE seq = {newest(path) + 20}")


def of_a_newer_shape(path: Path) -> None:
    seq = newest(path) + 20
    with closing(sqlite3.connect(path)) as db:
        batch, at, kind, version, payload = db.execute(
            "SELECT batch, at, kind, version, payload FROM entries WHERE seq = ?", (seq,)
        ).fetchone()
        text = msgspec.json.encode({**msgspec.json.decode(payload), "kind": "GPUFleet"})
        crc = schema.entry_crc(seq, batch, at, kind.encode(), version, text)
        db.execute("UPDATE entries SET payload = ?, crc = ? WHERE seq = ?", (text.decode(), crc, seq))
        db.commit()


def of_a_newer_kind(path: Path) -> None:
    seq = newest(path) + 20
    with closing(sqlite3.connect(path)) as db:
        batch, at = db.execute("SELECT batch, at FROM entries WHERE seq = ?", (seq,)).fetchone()
        crc = schema.entry_crc(seq, batch, at, b"CardExploded", 1, b"{}")
        db.execute("UPDATE entries SET kind = 'CardExploded', payload = '{}', crc = ? WHERE seq = ?", (crc, seq))
        db.commit()


def snapshot_of_a_newer_schema(path: Path) -> None:
    resnapshot(path, lambda payload: msgspec.json.encode({**msgspec.json.decode(payload), "schema": 99}))


def snapshot_of_an_unknown_shape(path: Path) -> None:
    resnapshot(path, lambda payload: b'{"state":"of another build"}')


def flip_a_snapshot(path: Path) -> None:
    sql(path, f"UPDATE snapshots SET crc = crc + 1 WHERE seq = {newest(path)}")


def all_snapshots_broken_and_pruned(path: Path) -> None:
    sql(path, "UPDATE snapshots SET crc = crc + 1", "DELETE FROM entries WHERE seq < 30")


HARM = {
    flip_an_entry: r"entries \d+ to \d+ of journal .* cannot be read \(its check sum does not match\)",
    of_a_newer_shape: r"entries \d+ to \d+ of journal .* cannot be read \(KeyError: 'GPUFleet'\)",
    of_a_newer_kind: r"entries \d+ to \d+ of journal .* event CardExploded version 1 is not known to this build",
    snapshot_of_a_newer_schema: r"the snapshot of entry \d+ .* cannot be read \(.*snapshot schema 99 is not 1\)",
    snapshot_of_an_unknown_shape: r"the snapshot of entry \d+ .* cannot be read",
    flip_a_snapshot: r"the snapshot of entry \d+ .* check sum of the snapshot of entry \d+ does not match",
    all_snapshots_broken_and_pruned: r"is damaged: none of its snapshots can be read .* was set aside as",
}


@pytest.mark.parametrize("harm", HARM, ids=[harm.__name__ for harm in HARM])
def test_j6_a_controller_starts_on_what_is_left_of_its_journal(harm: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def story() -> None:
        env = await stopped_cluster(path)
        harm(path)
        replica = await env.add_replica(SqliteJournal.open_or_set_aside(path, at=env.time.clock())[0], "r1")
        (told,) = replica.controller.set_aside
        assert re.search(HARM[harm], told), told
        assert "\n" not in told
        assert len(list(tmp_path.glob("journal.db.damaged-*Z"))) == 1
        await env.later(30)
        assert env.leader is replica
        (device,) = env.cluster.peek_all(DEVICE)
        assert device["status"]["phase"] == "Bound"
        await env.close()
        replica.controller.journal.close()
        journal, message = SqliteJournal.open_or_set_aside(path, at=env.time.clock())
        assert message is None, "the next start has nothing to tell"
        journal.close()
        done = run("usage", str(path), "--open")
        assert done.exit_code == 0, done.output
        kept = harm is not all_snapshots_broken_and_pruned
        assert ("bygone" in done.output) is kept, "what was metered before is exported"
        assert '"vm"' in done.output

    asyncio.run(story())
