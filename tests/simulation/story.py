"""A random story: actions of tenants, the hoster and the hardware, and faults.

Everything is drawn from one seed, so a seed reproduces a story.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

from journal.store import Journal, MemoryJournal
from reconciler.cluster.memory import Call, Fault
from reconciler.cluster.port import ClusterError
from reconciler.core.model.objects import DEVICE, POD, VMI
from reconciler.demo.embedded import SERVICE_ACCOUNT, Replica
from reconciler.demo.environment import Environment
from tests.simulation.safety import Safety, status

A, B = "nvidia.com/A10", "nvidia.com/L4"
CLASSES = {"a10": A, "a10-pair": A, "l4": B}
NODES = {"n1": {A: 4}, "n2": {A: 2, B: 2}, "n3": {B: 4}}
BUDGETS = {"a": {"gpu.cozystack.io/a10": 6}, "b": {"gpu.cozystack.io/l4": 3}}
TENANTS = ("tenant-a", "tenant-a-sub", "tenant-b")
GRACE = 20_000


class Story:
    """One run. `step` is taken again and again; `log` is what to read when it fails."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.env = Environment(settings={"lost_grace": GRACE, "attach_grace": GRACE})
        self.ecosystem = self.env.ecosystem
        self.safety = Safety(self.env.cluster, CLASSES, forgiving_seconds=90)
        self.log: list[str] = []
        self.journals: list[Journal] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self._names = 0
        self._ids = 0
        self._allocatable = {node: dict(units) for node, units in NODES.items()}

    async def open(self) -> None:
        await self.env.open()
        for node, units in NODES.items():
            await self.ecosystem.add_node(node, units)
        await self.ecosystem.kubevirt({A: "10DE:2236", B: "10DE:27B8"})
        for name, resource in CLASSES.items():
            await self.ecosystem.gpu_class(name, resource)
        for name, quotas in BUDGETS.items():
            await self.ecosystem.tenant(name, quotas=quotas)
        await self.ecosystem.tenant("sub", parent="tenant-a", quotas={"gpu.cozystack.io/a10": 2})
        for _ in range(2):
            await self._add_replica(MemoryJournal(), f"r{len(self.journals)}")
        await self.env.later(3)

    async def _add_replica(self, journal: Journal, identity: str) -> None:
        if journal not in self.journals:
            self.journals.append(journal)
        await self.env.add_replica(journal, identity, new_id=self._new_id, snapshot_every=150, bind_seconds=4.0)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:08x}-sim"

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            await self.env.close()

    # Steps

    async def step(self) -> None:
        """One random thing happens, then everyone reacts, then everything is checked."""
        things = self.things()
        thing = self.random.choices([found for _, found in things], [weight for weight, _ in things])[0]
        await thing()
        await self.env.settle()
        self.check()

    def things(self) -> list[tuple[int, Callable[[], Awaitable[None]]]]:
        """What may happen, and how often in proportion."""
        return [
            (10, self.order),
            (12, self.start),
            (4, self.race),
            (6, self.stop),
            (3, self.finish),
            (4, self.delete_device),
            (3, self.raw_pod),
            (3, self.remove_pod),
            (3, self.shrink),
            (4, self.grow),
            (2, self.cordon),
            (2, self.silence),
            (5, self.wait),
            (2, self.kill_leader),
            (2, self.restart),
        ]

    def check(self) -> None:
        self.safety.check()
        for replica in self.env.replicas:
            if replica.failed is not None:
                raise AssertionError(f"a replica ended: {replica.failed!r}") from replica.failed

    def tell(self, text: str) -> None:
        self.log.append(f"{self.env.time.timer():8.2f} {text}")

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    async def attempt(self, text: str, action: Awaitable[Any]) -> None:
        try:
            await self.env.do(action)
        except ClusterError as error:
            self.tell(f"{text}: {error.message[:160]}")
        else:
            self.tell(f"{text}: yes")

    async def order(self) -> None:
        tenant, count = self.random.choice(TENANTS), self.random.choice((1, 1, 2))
        name, class_name = self._name("d"), self.random.choice(sorted(CLASSES))
        await self.attempt(
            f"order {tenant}/{name} {count} {class_name}", self.ecosystem.order(tenant, name, class_name, count)
        )

    def _references(self, tenant: str) -> list[Any]:
        ordered = [
            d["metadata"]["name"] for d in self.env.cluster.peek_all(DEVICE, tenant) if not d["metadata"].get("labels")
        ]
        chosen: list[Any] = self.random.sample(ordered, min(len(ordered), self.random.choice((0, 1, 1, 2))))
        if not chosen or self.random.random() < 0.4:
            class_name, count = self.random.choice(sorted(CLASSES)), self.random.choice((1, 1, 2))
            chosen.append({"className": class_name, "count": count})
        return chosen

    async def start(self) -> None:
        tenant = self.random.choice(TENANTS)
        name, references = self._name("vm"), self._references(tenant)
        dry = self.random.random() < 0.1
        await self.attempt(
            f"start {tenant}/{name} {references}{' (dry run)' if dry else ''}",
            self.ecosystem.vmi(tenant, name, references, dry_run=dry, spec=self.constraints()),
        )

    def constraints(self) -> dict[str, Any]:
        """What a VM asks of its node."""
        return {}

    async def race(self) -> None:
        """Two VMs of one tenant start with the same devices at once, or one VM is started twice."""
        tenant = self.random.choice(TENANTS)
        references = self._references(tenant)
        first = self._name("vm")
        second = first if self.random.random() < 0.3 else self._name("vm")
        outcomes = await self.env.do(
            asyncio.gather(
                self.ecosystem.vmi(tenant, first, references),
                self.ecosystem.vmi(tenant, second, references),
                return_exceptions=True,
            )
        )
        told = ["yes" if isinstance(outcome, dict) else str(outcome)[:120] for outcome in outcomes]
        self.tell(f"race {tenant}/{first}, {second} for {references}: {told}")
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ClusterError):
                raise outcome

    def _some_vmi(self) -> tuple[str, str] | None:
        found = [(v["metadata"]["namespace"], v["metadata"]["name"]) for v in self.env.cluster.peek_all(VMI)]
        return self.random.choice(found) if found else None

    async def stop(self) -> None:
        found = self._some_vmi()
        if found:
            await self.attempt(f"stop {found}", self.ecosystem.stop(*found))

    async def finish(self) -> None:
        found = self._some_vmi()
        if found:
            phase = self.random.choice(("Succeeded", "Failed"))
            await self.attempt(f"finish {found} {phase}", self.ecosystem.finish(*found, phase))

    async def delete_device(self) -> None:
        found = [
            d
            for d in self.env.cluster.peek_all(DEVICE)
            if not d["metadata"].get("labels") and not d["metadata"].get("deletionTimestamp")
        ]
        if not found:
            return
        device = self.random.choice(found)
        if status(device).get("attachment"):
            self.safety.excuse(status(device)["attachment"]["vmiName"])
        metadata = device["metadata"]
        await self.attempt(
            f"delete {metadata['namespace']}/{metadata['name']} ({status(device).get('phase')})",
            self.ecosystem.tenant_port.delete(DEVICE, metadata["namespace"], metadata["name"]),
        )

    async def raw_pod(self) -> None:
        tenant, resource = self.random.choice(TENANTS), self.random.choice((A, B))
        name = self._name("raw")
        await self.attempt(f"raw pod {tenant}/{name} {resource}", self.ecosystem.pod(tenant, name, {resource: 1}))

    async def remove_pod(self) -> None:
        found = [p["metadata"] for p in self.env.cluster.peek_all(POD) if p["metadata"]["name"].startswith("raw")]
        if found:
            pod = self.random.choice(found)
            await self.attempt(
                f"delete pod {pod['name']}", self.ecosystem.tenant_port.delete(POD, pod["namespace"], pod["name"])
            )

    async def shrink(self) -> None:
        node = self.random.choice(sorted(NODES))
        resource = self.random.choice(sorted(NODES[node]))
        units = max(0, self._allocatable[node][resource] - self.random.choice((1, 1, 4)))
        self._allocatable[node][resource] = units
        await self.attempt(f"{node} {resource} -> {units}", self.ecosystem.allocatable(node, {resource: units}))

    async def grow(self) -> None:
        node = self.random.choice(sorted(NODES))
        self._allocatable[node] = dict(NODES[node])
        await self.attempt(f"{node} whole again", self.ecosystem.allocatable(node, NODES[node]))

    async def cordon(self) -> None:
        node, on = self.random.choice(sorted(NODES)), self.random.random() < 0.5
        await self.attempt(f"cordon {node} {on}", self.ecosystem.cordon(node, on))

    async def silence(self) -> None:
        node = self.random.choice(sorted(NODES))
        await self.attempt(f"{node} silent", self.ecosystem.ready(node, "Unknown"))
        await self.env.later(self.random.choice((5, 60)))
        self.safety.check()
        await self.attempt(f"{node} back", self.ecosystem.ready(node, "True"))

    async def wait(self) -> None:
        await self.env.later(self.random.choice((1, 5, 25, 70)))

    async def kill_leader(self) -> None:
        """The leader dies somewhere between commit and write; another takes over."""
        leader = self.env.leader
        if leader is not None:
            self.tell(f"kill {leader.controller.identity}")
            await leader.kill()
            await self._replace(leader)

    async def restart(self) -> None:
        replica = self.random.choice(self.env.replicas)
        self.tell(f"restart {replica.controller.identity}")
        await self.env.do(replica.stop())
        await self._replace(replica)

    async def _replace(self, replica: Replica) -> None:
        """The same pod comes back on the same journal, or on an empty one."""
        self.env.replicas.remove(replica)
        await self.env.later(self.random.choice((0, 3, 20)))
        journal = replica.controller.journal if self.random.random() < 0.5 else MemoryJournal()
        await self._add_replica(journal, f"{replica.controller.identity}+")

    # Trouble

    def trouble(self, on: bool) -> None:
        """Let calls and watches of the binder fail at random."""
        self.env.cluster.faults = self.fault if on else None
        self.tell(f"trouble {on}")
        if not on:
            self.env.cluster.fault_injector.release_all()
            self.env.cluster.watches.heal()

    def _release_later(self) -> None:
        """An answer overtaken by the watch, by less than the binder's patience."""

        self.release_after(0.5)

    def release_after(self, seconds: float) -> None:
        """Let every held call go on."""

        async def release() -> None:
            await self.env.time.sleep(seconds)
            self.env.cluster.fault_injector.release_all()

        task = asyncio.ensure_future(release())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def fault(self, call: Call) -> Fault | None:
        if call.user != SERVICE_ACCOUNT or self.random.random() > 0.06:
            return None
        if call.verb == "event":
            return self.random.choice((Fault.DROPPED, Fault.EXPIRED)) if self.random.random() < 0.3 else None
        if call.verb == "watch":
            return self.random.choice((Fault.DROPPED, Fault.EXPIRED))
        of_the_binder = call.verb == "delete" or "phaseSince" in ((call.body or {}).get("status") or {})
        if of_the_binder and self.random.random() < 0.3:
            self._release_later()
            return Fault.DELAYED_ANSWER
        if call.verb in ("patch", "create", "delete"):
            return self.random.choice((Fault.CONFLICT, Fault.UNAVAILABLE, Fault.LOST_ANSWER))
        return self.random.choice((Fault.UNAVAILABLE, Fault.LOST_ANSWER))
