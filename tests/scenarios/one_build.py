"""One build's turn on a cluster and a journal that another build has used; run as a script of either build.

`python one_build.py CLUSTER.json JOURNAL.db NAME`: goes on from the cluster's objects, starts the VM NAME, stops the
one before it, and prints what came of it as JSON. Imports only what all builds have.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec

from journal.sqlite import SqliteJournal
from reconciler.cluster.memory.store import Stored
from reconciler.core.model.objects import CLASS, DEVICE, GPU_NODE, KINDS, LEASE, VMI, Function, Key
from reconciler.demo.environment import START, Environment

GPU = "nvidia.com/GA102"


def load(env: Environment, path: Path) -> None:
    """The objects as they were left, with their versions."""
    kept = json.loads(path.read_bytes())
    store = env.cluster.store
    for name, document in kept["objects"]:
        kind = LEASE if name == LEASE.name else KINDS[name]
        metadata = document["metadata"]
        at = (metadata.get("namespace", ""), metadata["name"])
        store._objects.setdefault(name, {})[at] = Stored(kind, document, msgspec.json.encode(document))
        store.uids[metadata["uid"]] = Key(name, *at)
    store.version, store._named = kept["version"], kept["named"]


def save(env: Environment, path: Path) -> None:
    store = env.cluster.store
    objects = [[stored.kind.name, stored.document] for stored in store.everything()]
    kept = {"objects": objects, "version": store.version, "named": store._named, "now": env.time.clock()}
    path.write_text(json.dumps(kept))


async def prepare(env: Environment) -> None:
    await env.open()
    await env.ecosystem.add_node("n1", {GPU: 4})
    await env.ecosystem.kubevirt({GPU: "10DE:2236"})
    await env.ecosystem.gpu_class("a10", GPU)
    await env.ecosystem.tenant("a", quotas={"gpu.cozystack.io/a10": 4})


async def play(cluster: Path, journal_path: Path, name: str) -> None:
    now = json.loads(cluster.read_bytes())["now"] + 60_000 if cluster.exists() else START
    env = Environment(start=now)
    if cluster.exists():
        load(env, cluster)
    else:
        await prepare(env)
    card = Function(id="0000:01:00.0", stable_id="c", resource_name=GPU, healthy=True)
    await env.ecosystem.report("n1", [card] * 4)
    journal, message = SqliteJournal.open_or_set_aside(journal_path, at=now)
    replica = await env.add_replica(journal, f"{name}-0", snapshot_every=40)
    await env.later(30)
    for vmi in env.cluster.peek_all(VMI, "tenant-a"):
        await env.do(env.ecosystem.stop("tenant-a", vmi["metadata"]["name"]))
    await env.later(30)
    await env.do(env.ecosystem.order("tenant-a", f"order-{name}", "a10", 1))
    await env.do(env.ecosystem.vmi("tenant-a", name, [{"className": "a10", "count": 1}]))
    await env.later(60)
    answer = {
        "leads": env.leader is replica,
        "message": message,
        "failed": repr(replica.failed),
        "phases": {d["metadata"]["name"]: d["status"]["phase"] for d in env.cluster.peek_all(DEVICE)},
        "free": env.cluster.peek(CLASS, "", "a10")["status"]["units"]["free"],  # type: ignore[index]
        "reported": env.cluster.peek(GPU_NODE, "", "n1") is not None,
    }
    if replica.failed is None:
        await env.do(replica.kill() if name.endswith("killed") else replica.stop())
    journal.close()
    save(env, cluster)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
