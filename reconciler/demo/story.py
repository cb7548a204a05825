"""`gpu-binder demo`: orders, starts, refusals, a lost card and a restart on an in-memory cluster, in a few seconds.

Owns the script and its output. The parts are those that run in production; the journal it leaves is a real one, to be
replayed, explained and verified.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from journal.sqlite import SqliteJournal
from reconciler.cluster.port import Rejected
from reconciler.commands import console
from reconciler.core.model.objects import VMI, Function, Profile
from reconciler.core.model.vocabulary import FunctionKind, Mode
from reconciler.core.tenancy.tenants import class_key
from reconciler.debugging import explain, replay, replicas
from reconciler.demo.embedded import Replica
from reconciler.demo.environment import Environment

A10 = "nvidia.com/GA102GL_A10"
A40_8Q = "nvidia.com/NVIDIA_A40-8Q"
ACME = "tenant-acme"
LABS = "tenant-acme-labs"


class Demo:
    """One run of the demo, printed to `out`."""

    def __init__(self, path: Path, out: Console) -> None:
        self._path = path
        self._out = out
        self._env = Environment()
        self._ecosystem = self._env.ecosystem
        self._numbers = itertools.count(1)
        self._replica: Replica | None = None

    async def run(self) -> None:
        """Run the whole script; leaves a closed journal at the path."""
        await self._set_up()
        await self._orders()
        await self._starts()
        await self._refusals()
        await self._loss()
        await self._restart()
        assert self._replica is not None
        self._show_tables(self._replica)
        await self._env.close()
        self._explain()

    def _chapter(self, title: str) -> None:
        self._out.rule(f"[bold]{title}[/bold]", align="left")

    def _say(self, text: str, indent: int = 2) -> None:
        self._out.print(Padding(Text(text), (0, 0, 0, indent), expand=False))

    async def _set_up(self) -> None:
        self._chapter("Three GPU nodes, two classes, nested tenants")
        env, ecosystem = self._env, self._ecosystem
        await env.open()
        for name, units in (("gpu-1", 4), ("gpu-2", 2)):
            await ecosystem.add_node(name, {A10: units})
            await ecosystem.report(name, [_card(index) for index in range(units)])
        await ecosystem.add_node("gpu-3", {A40_8Q: 6})
        await ecosystem.report("gpu-3", [_vgpu_parent()])
        await ecosystem.kubevirt({A10: "10DE:2236", A40_8Q: "NVIDIA A40-8Q"})
        await ecosystem.gpu_class("a10", A10, display_name="NVIDIA A10, whole card")
        await ecosystem.gpu_class("a40-8q", A40_8Q, Mode.VGPU, max_count=4, display_name="NVIDIA A40, 8 GiB slice")
        await ecosystem.tenant("acme", quotas={str(class_key("a10")): "10"}, entitled=True)
        await ecosystem.tenant("labs", parent=ACME, quotas={str(class_key("a10")): "2"})
        await ecosystem.tenant("beta")
        await self._start_replica()
        self._say("gpu-1: 4 A10, gpu-2: 2 A10, gpu-3: 6 A40-8Q slices")
        self._say(f"{ACME} may use 10 A10, {LABS} 2 of these; {ACME} is entitled to vGPUs, tenant-beta is not")

    async def _start_replica(self) -> None:
        journal = SqliteJournal(str(self._path))
        self._replica = await self._env.add_replica(
            journal, f"demo-{len(self._env.replicas)}", build="demo", new_id=self._request_id
        )
        await self._env.later(3)

    def _request_id(self) -> str:
        return f"{next(self._numbers):08x}-demo"

    async def _orders(self) -> None:
        self._chapter("Orders are held")
        await self._order(ACME, "render-1", "a10")
        await self._order(ACME, "render-2", "a10")
        await self._order(LABS, "lab-1", "a10")
        await self._order("tenant-beta", "slice", "a40-8q")

    async def _order(self, namespace: str, name: str, class_name: str, count: int = 1) -> None:
        what = f"{namespace} orders {count} {class_name} as {name}"
        try:
            await self._env.do(self._ecosystem.order(namespace, name, class_name, count))
        except Rejected as refused:
            self._say(f"{what}: refused")
            self._say(_reason(refused), indent=6)
            return
        await self._env.settle()
        assert self._replica is not None
        device = self._replica.state.device(namespace, name)
        self._say(f"{what}: {device.phase if device is not None else 'gone'}")

    async def _starts(self) -> None:
        self._chapter("VMs start with their GPUs")
        await self._start(ACME, "render", ["render-1", {"className": "a10", "count": 1}])
        await self._start(ACME, "desktop", [{"className": "a40-8q", "count": 2}])
        await self._start(LABS, "notebook", ["lab-1"])

    async def _start(self, namespace: str, name: str, devices: list[Any], spec: Any = None) -> None:
        parts = [d if isinstance(d, str) else f"{d['count']} new {d['className']}" for d in devices]
        what = f"{namespace}/{name} starts with {' and '.join(parts)}"
        try:
            await self._env.do(self._ecosystem.vmi(namespace, name, devices, spec=spec))
        except Rejected as refused:
            self._say(f"{what}: refused")
            self._say(_reason(refused), indent=6)
            return
        await self._env.settle()
        vmi = self._env.cluster.peek(VMI, namespace, name) or {}
        status = vmi.get("status") or {}
        entries = len(vmi["spec"]["domain"]["devices"].get("gpus", []))
        gpus = "1 GPU" if entries == 1 else f"{entries} GPUs"
        self._say(f"{what}: {status.get('phase')} on {status.get('nodeName')} with {gpus}")

    async def _refusals(self) -> None:
        self._chapter("Two refusals, each with its number")
        await self._start(LABS, "training", [{"className": "a10", "count": 2}])
        await self._start(ACME, "wide", [{"className": "a10", "count": 4}])

    async def _loss(self) -> None:
        self._chapter("A card dies on gpu-2, and comes back")
        env, ecosystem = self._env, self._ecosystem
        await env.do(ecosystem.report("gpu-2", [_card(0), _card(1, healthy=False)]))
        await env.do(ecosystem.allocatable("gpu-2", {A10: 1}))
        await env.later(30)
        self._phases("after 30 s")
        await env.later(40)
        self._phases("after 70 s")
        await env.do(ecosystem.report("gpu-2", [_card(0), _card(1)]))
        await env.do(ecosystem.allocatable("gpu-2", {A10: 2}))
        await env.later(2)
        self._phases("replaced")

    def _phases(self, when: str) -> None:
        assert self._replica is not None
        on_node = [
            f"{device.namespace}/{device.name} {device.phase}" for device in self._replica.state.devices_on("gpu-2")
        ]
        self._say(f"{when}: {', '.join(on_node) or 'nothing placed there'}")

    async def _restart(self) -> None:
        self._chapter("The controller is killed and comes back; a VM stops")
        assert self._replica is not None
        before = {(d.namespace, d.name): d.placement for d in self._replica.state.all_devices()}
        await self._replica.kill()
        self._replica.controller.journal.close()
        await self._env.later(20)
        await self._start_replica()
        after = {(d.namespace, d.name): d.placement for d in self._replica.state.all_devices()}
        self._say("nothing has moved" if before == after else "something has moved")
        await self._env.do(self._ecosystem.stop(ACME, "render"))
        await self._env.later(3)
        device = self._replica.state.device(ACME, "render-1")
        self._say(f"{ACME}/render is stopped: its device render-1 is {device.phase if device else 'gone'} again")

    def _show_tables(self, replica: Replica) -> None:
        self._chapter("Final state")
        self._out.print(console.device_table(replica.state))
        self._out.print(console.node_table(replica.state))
        self._out.print(console.tenant_table(replica.state))

    def _explain(self) -> None:
        self._chapter("Why was tenant-acme/wide refused?")
        journal = SqliteJournal(str(self._path), readonly=True)
        try:
            _, last = replicas.history([journal], VMI.name, ACME, "wide")[-1]
            console.print_explanation(explain.explain(journal, last.seq), self._out)
            found = replay.verify(journal)
        finally:
            journal.close()
        same = "all the same" if found.difference is None else f"first difference: {found.difference.what}"
        self._chapter("Ask the journal yourself")
        self._say(f"{found.entries} entries, {found.decisions} decisions, recomputed: {same}")
        for command in (
            f"gpu-binder explain {self._path} vmi {LABS}/training",
            f"gpu-binder explain {self._path} device {ACME}/render-1",
            f"gpu-binder replay {self._path} --at 40 --decisions",
            f"gpu-binder verify {self._path}",
        ):
            self._out.print(f"  {command}", markup=False, soft_wrap=True)


def _card(index: int, healthy: bool = True) -> Function:
    return Function(
        id=f"0000:{0x3B + index:02x}:00.0",
        stable_id=f"GPU-{index}",
        kind=FunctionKind.PHYSICAL.value,
        resource_name=A10,
        healthy=healthy,
        message="" if healthy else "fallen off the bus",
    )


def _vgpu_parent() -> Function:
    return Function(
        id="0000:af:00.0",
        stable_id="GPU-A40",
        kind=FunctionKind.MDEV_PARENT.value,
        profiles=(Profile(A40_8Q, 0, 6),),
    )


def _reason(refused: Rejected) -> str:
    """The refusal without the API server's prefix."""
    return refused.message.partition("denied the request: ")[2] or refused.message


async def demo(path: Path, out: Console) -> None:
    """Run the demo and keep its journal at `path`, replacing an existing one. Raises `JournalError` if the file is
    not a journal, is being written by another process, or cannot be written."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    SqliteJournal(path).close()
    for leftover in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", ".lock"))):
        leftover.unlink(missing_ok=True)
    await Demo(path, out).run()
