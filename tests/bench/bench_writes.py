"""Status writes per second against a bare HTTP session, and starts through real admission against writes / 3.

`python -m tests.bench.bench_writes` prints it, on a real control plane on loopback. Both writers send the same merge
patches with their preconditions, as many at once, and take turns. A start costs three writes that wait for each other
(attachment and request, placement and answer, the VMI), each behind a hook or a watch. Nobody plays KubeVirt: the VMIs
exist and no launcher follows, so that the machine's cores belong to what is measured.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from journal import events
from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.memory.manifests import (
    class_body,
    device_body,
    kubevirt_body,
    node_body,
    release_body,
    vmi_body,
)
from reconciler.cluster.writer import MAX_IN_FLIGHT, ClusterWriter
from reconciler.core.model.objects import CLASS, DEVICE, KUBEVIRT, NAMESPACE, NODE, RELEASE, VMI, Kind
from reconciler.core.model.vocabulary import GROUP, VERSION
from reconciler.core.state.decisions import Action, Decision, Verb, Write
from tests.realserver.binder import NAMESPACE as BINDER_NAMESPACE
from tests.realserver.binder import Binder
from tests.realserver.controlplane import ControlPlane, running
from tests.realserver.registration import register_webhooks, unregister

WRITES = 300
TURNS = 5
STARTS = 96
AT_ONCE = 16
GPU, CLASS_NAME, TENANT = "nvidia.com/GA102", "a10", "tenant-bench"


async def together(work: Iterable[Awaitable[Any]], at_once: int) -> list[Any]:
    """Everything, `at_once` at a time."""
    slots = asyncio.Semaphore(at_once)

    async def one(item: Awaitable[Any]) -> Any:
        async with slots:
            return await item

    return list(await asyncio.gather(*(one(item) for item in work)))


async def create(port: KubeCluster, kind: Kind, namespace: str, body: dict[str, Any]) -> None:
    await port.create(kind, namespace, {"apiVersion": kind.api_version, "kind": kind.name, **body})


# Writes


def patch(turn: int, number: int) -> dict[str, Any]:
    """A status as large as the binder's usual one."""
    condition = {
        "type": "Held",
        "status": "False",
        "reason": "NoFreeUnits",
        "message": f"turn {turn}: {number} units asked for, 0 free; node n0 serves 8, 4 placed and 4 in raw use",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {"status": {"phase": "Pending", "observedGeneration": 1, "conditions": [condition]}}


async def versions(admin: KubeCluster) -> list[tuple[str, str, str]]:
    """(name, uid, resourceVersion) of every device."""
    items = msgspec.json.decode(await admin.list(DEVICE, namespace=TENANT))["items"]
    return [(m["name"], m["uid"], m["resourceVersion"]) for m in (item["metadata"] for item in items)]


async def through_writer(port: KubeCluster, found: list[tuple[str, str, str]], turn: int) -> float:
    outcomes: list[events.Event] = []

    async def reread(kind: str, namespace: str, name: str) -> None:
        raise AssertionError(f"{kind} {namespace}/{name} conflicted")

    writer = ClusterWriter(port, outcomes.append, reread, lambda: True)
    start = time.perf_counter()
    for number, (name, uid, version) in enumerate(found):
        write = Write(
            kind=DEVICE.name,
            namespace=TENANT,
            name=name,
            uid=uid,
            resource_version=version,
            verb=Verb.STATUS,
            body=patch(turn, number),
            after=msgspec.Raw(b"{}"),
        )
        decision = Decision(action=Action.REFUSE_ORDER, kind=DEVICE.name, subject=name, message="", writes=(write,))
        writer.send(number, decision)
    await writer.drain()
    took = time.perf_counter() - start
    assert all(isinstance(outcome, events.WriteSucceeded) for outcome in outcomes), outcomes[:3]
    return took


async def through_session(plane: ControlPlane, found: list[tuple[str, str, str]], turn: int) -> float:
    context = ssl.create_default_context(cafile=str(plane.ca_path))
    headers = {
        "Authorization": f"Bearer {plane.token('binder')}",
        "Content-Type": "application/merge-patch+json",
        "Accept-Encoding": "identity",
    }
    base = f"{plane.url}/apis/{GROUP}/{VERSION}/namespaces/{TENANT}/{DEVICE.plural}"
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:

        async def send(number: int, name: str, uid: str, version: str) -> str:
            body = {**patch(turn, number), "metadata": {"uid": uid, "resourceVersion": version}}
            url = f"{base}/{name}/status?fieldManager=gpu-binder"
            async with session.patch(url, data=json.dumps(body)) as answer:
                assert answer.status == 200, await answer.text()
                seen: str = (await answer.json())["metadata"]["resourceVersion"]
                return seen

        start = time.perf_counter()
        await together((send(number, *one) for number, one in enumerate(found)), MAX_IN_FLIGHT)
        return time.perf_counter() - start


async def bench_writes(plane: ControlPlane, admin: KubeCluster, port: KubeCluster) -> float:
    """The bare session's writes per second."""
    names = [f"w{number}" for number in range(WRITES)]
    await together((create(admin, DEVICE, TENANT, device_body(name, CLASS_NAME)) for name in names), MAX_IN_FLIGHT)
    ours, bare = [], []
    for turn in range(TURNS):
        # The first requests of a session also make its connections; the other one's turn is no different.
        ours.append(await through_writer(port, await versions(admin), 2 * turn))
        bare.append(await through_session(plane, await versions(admin), 2 * turn + 1))
    took, base = statistics.median(ours), statistics.median(bare)
    print(
        f"status writes: ClusterWriter {WRITES / took:>6,.0f}/s   bare session {WRITES / base:>6,.0f}/s   "
        f"ratio {base / took:.2f}"
    )
    await together((admin.delete(DEVICE, TENANT, name) for name in names), MAX_IN_FLIGHT)
    return WRITES / base


# Starts


async def until(done: Callable[[], Awaitable[bool]], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not await done():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.05)


async def phases(admin: KubeCluster) -> list[str]:
    items = msgspec.json.decode(await admin.list(DEVICE, namespace=TENANT))["items"]
    return [(item.get("status") or {}).get("phase", "") for item in items]


async def cluster(admin: KubeCluster) -> None:
    """Namespaces, tenants, nodes, KubeVirt's table and one class."""
    for name in (BINDER_NAMESPACE, "tenant-root", "cozy-kubevirt", TENANT):
        await create(admin, NAMESPACE, "", {"metadata": {"name": name}})
    for name in ("tenant-root", TENANT):
        await create(admin, RELEASE, "tenant-root", release_body(name))
    await create(admin, KUBEVIRT, "cozy-kubevirt", kubevirt_body({GPU: "10DE:2236"}))
    await create(admin, CLASS, "", class_body(CLASS_NAME, GPU))
    for number in range(16):
        await create(admin, NODE, "", node_body(f"n{number}", {GPU: 8}))


async def timed(admin: KubeCluster, names: list[str], at_once: int) -> tuple[float, list[float]]:
    """(seconds in all, seconds of each) of starting VMs, each with the held device of its name."""

    async def start(name: str) -> float:
        begun = time.perf_counter()
        await create(admin, VMI, TENANT, vmi_body(f"vm-{name}", [name]))
        return time.perf_counter() - begun

    begun = time.perf_counter()
    each = await together((start(name) for name in names), at_once)
    return time.perf_counter() - begun, each


async def stopped(admin: KubeCluster, names: list[str]) -> None:
    await together((admin.delete(VMI, TENANT, f"vm-{name}") for name in names), AT_ONCE)

    async def held() -> bool:
        return set(await phases(admin)) == {"Held"}

    await until(held, "every device is held again")


async def bench_starts(plane: ControlPlane, admin: KubeCluster, directory: Path, writes: float) -> None:
    binder = Binder(plane, directory, "binder-0")
    try:
        await binder.start()
        await register_webhooks(plane, binder.url, plane.ca_path.read_text())
        await until(binder.leads, "the binder leads")
        names = [f"d{number}" for number in range(STARTS)]
        begun = time.perf_counter()
        await together((create(admin, DEVICE, TENANT, device_body(name, CLASS_NAME)) for name in names), AT_ONCE)

        async def held() -> bool:
            return (await phases(admin)).count("Held") == STARTS

        await until(held, "every order is held")
        print(f"orders: {STARTS / (time.perf_counter() - begun):,.0f} held per second")
        await timed(admin, names[:8], 1)
        await stopped(admin, names[:8])
        rates, latencies = [], []
        for _ in range(TURNS):
            took, each = await timed(admin, names, AT_ONCE)
            rates.append(STARTS / took)
            latencies.extend(each)
            await stopped(admin, names)
        _, alone = await timed(admin, names[:32], 1)
        rate = statistics.median(rates)
        print(
            f"starts: {rate:,.0f}/s, {AT_ONCE} at once   writes / 3: {writes / 3:,.0f}/s   "
            f"ratio {rate / writes * 3:.2f}\n"
            f"latency of a start: median {statistics.median(latencies) * 1e3:,.0f} ms at {AT_ONCE} at once, "
            f"{statistics.median(alone) * 1e3:,.0f} ms alone"
        )
    finally:
        await unregister(plane)
        binder.kill()


async def bench(plane: ControlPlane, directory: Path) -> None:
    admin = await KubeCluster.connect(str(plane.kubeconfig("admin")))
    port = await KubeCluster.connect(str(plane.kubeconfig("binder")))
    try:
        await cluster(admin)
        writes = await bench_writes(plane, admin, port)
        await bench_starts(plane, admin, directory, writes)
    finally:
        await admin.close()
        await port.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, running(Path(directory) / "plane") as plane:
        asyncio.run(bench(plane, Path(directory) / "binder"))


if __name__ == "__main__":
    main()
