"""A real cluster with players, the product running in processes of its own, and its webhooks registered."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from reconciler.cluster.memory.json_objects import Document
from reconciler.core.model.objects import DEVICE, VMI
from tests.realserver.binder import NAMESPACE, Binder
from tests.realserver.controlplane import ControlPlane
from tests.realserver.ecosystem import RealEcosystem
from tests.realserver.registration import register_webhooks, unregister

GPU = "nvidia.com/GA102"
CLASS_NAME = "a10"
_numbers = itertools.count()


class World:
    """What a story needs. `tenant`: the namespace of a tenant of this story alone."""

    def __init__(self, plane: ControlPlane, ecosystem: RealEcosystem, directory: Path) -> None:
        self.plane = plane
        self.ecosystem = ecosystem
        self.directory = directory
        self.number = next(_numbers)
        self.tenant = ""
        self.binders: list[Binder] = []

    @property
    def binder(self) -> Binder:
        return self.binders[0]

    def node(self, name: str) -> str:
        """A node's name that no other story uses."""
        return f"s{self.number}-{name}"

    async def device(self, name: str, namespace: str = "") -> Document | None:
        return await self.ecosystem.get(DEVICE, namespace or self.tenant, name)

    async def devices(self, namespace: str = "") -> list[Document]:
        return await self.ecosystem.list(DEVICE, namespace or self.tenant)

    async def phase(self, name: str, namespace: str = "") -> str:
        found = await self.device(name, namespace)
        return "" if found is None else (found.get("status") or {}).get("phase", "")

    async def held(self, name: str, count: int = 1) -> None:
        """Order a device and wait until it is held."""
        await self.ecosystem.order(self.tenant, name, CLASS_NAME, count)

        async def is_held() -> bool:
            return await self.phase(name) == "Held"

        await self.ecosystem.until(is_held, f"{name} is held")

    async def becomes(self, name: str, phase: str, seconds: float = 60.0) -> None:
        async def reached() -> bool:
            return await self.phase(name) == phase

        await self.ecosystem.until(reached, f"{name} becomes {phase or 'gone'}", seconds)

    async def running(self, name: str) -> Document:
        """The VMI once it runs."""

        async def runs() -> Document | None:
            found = await self.ecosystem.get(VMI, self.tenant, name)
            return found if found and (found.get("status") or {}).get("phase") == "Running" else None

        found: Document = await self.ecosystem.until(runs, f"{name} runs")
        return found

    async def gone(self, name: str) -> None:
        async def away() -> bool:
            return await self.ecosystem.get(VMI, self.tenant, name) is None

        await self.ecosystem.until(away, f"{name} is gone")

    async def add_binder(self, *flags: str) -> Binder:
        binder = Binder(self.plane, self.directory, f"binder-{len(self.binders)}", *flags)
        self.binders.append(binder)
        await binder.start()
        return binder

    async def serve_from(self, binder: Binder) -> None:
        """Point the webhooks at one replica."""
        await register_webhooks(self.plane, binder.url, self.plane.ca_path.read_text())

    async def led(self) -> None:
        async def leads() -> bool:
            return await self.binder.leads()

        await self.ecosystem.until(leads, "a binder leads")


@asynccontextmanager
async def story(plane: ControlPlane, directory: Path, flags: Sequence[str] = (), **nodes: int) -> AsyncIterator[World]:
    """A world with nodes (name to units of GPU), one class, one tenant, one binder that leads and its webhooks.
    `flags`: further ones of the binder."""
    ecosystem = RealEcosystem(plane)
    await ecosystem.start()
    world = World(plane, ecosystem, directory)
    try:
        await ecosystem.namespace(NAMESPACE)
        await ecosystem.tenant("root")
        for name, units in nodes.items():
            await ecosystem.add_node(world.node(name), {GPU: units})
        await ecosystem.kubevirt({GPU: "10DE:2236"})
        await ecosystem.gpu_class(CLASS_NAME, GPU)
        world.tenant = await ecosystem.tenant(f"s{world.number}")
        await world.add_binder(*flags)
        await world.serve_from(world.binder)
        await world.led()
        yield world
    finally:
        await unregister(plane)
        try:
            await ecosystem.stop()
        finally:
            for binder in world.binders:
                binder.kill()


def entries(vmi: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = vmi["spec"]["domain"]["devices"].get("gpus", [])
    return found
