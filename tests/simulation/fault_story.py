"""A story with harder faults: a paused leader alongside a new one, writes that land late, clock jumps, deleted nodes
and tenants, changed tables and budgets, zone constraints.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

from journal.store import Journal
from reconciler.cluster.memory import Call, Fault, MemoryCluster
from reconciler.cluster.port import ClusterError
from reconciler.core.model.objects import DEVICE, GPU_NODE, NAMESPACE, NODE, Function
from reconciler.demo.embedded import SERVICE_ACCOUNT, Replica, register
from tests.simulation.safety import status
from tests.simulation.stopping import Gate, GatedCluster
from tests.simulation.story import BUDGETS, NODES, TENANTS, A, B, Story

ZONES = {"n1": "east", "n2": "west", "n3": "east"}
ZONE = "topology.kubernetes.io/zone"
TABLE = {A: "10DE:2236", B: "10DE:27B8"}


class FaultStory(Story):
    """Replicas stand behind gates."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.random = random.Random(f"harsh {seed}")
        self._gates: dict[int, Gate] = {}

    async def open(self) -> None:
        await super().open()
        for node, zone in ZONES.items():
            await self.ecosystem.cluster.patch(NODE, "", node, {"metadata": {"labels": {ZONE: zone}}})

    async def _add_replica(self, journal: Journal, identity: str) -> None:
        if journal not in self.journals:
            self.journals.append(journal)
        env = self.env
        gate = Gate(env.time)
        replica = Replica(
            cast(MemoryCluster, GatedCluster(env.cluster, gate)),
            journal,
            env.settings,
            identity=identity,
            timing=gate.timing,
            new_id=self._new_id,
            snapshot_every=150,
            bind_seconds=4.0,
        )
        self._gates[id(replica)] = gate
        env.replicas.append(replica)
        replica.start()
        await env.until(lambda: replica.controller.synced or replica.failed is not None)
        register(env.cluster, replica)
        await env.settle()

    def things(self) -> list[tuple[int, Callable[[], Awaitable[None]]]]:
        return [
            *super().things(),
            (16, self.order),
            (16, self.start),
            (4, self.stop_leader),
            (3, self.go_on),
            (2, self.jump),
            (2, self.remove_node),
            (3, self.add_nodes),
            (1, self.remove_namespace),
            (2, self.change_table),
            (2, self.change_budget),
            (3, self.report),
        ]

    def constraints(self) -> dict[str, Any]:
        zone = self.random.choice(("", "", "east", "west", "moon"))
        return {"nodeSelector": {ZONE: zone}} if zone else {}

    # A stopped leader

    def _gate(self, replica: Replica) -> Gate:
        return self._gates[id(replica)]

    async def stop_leader(self) -> None:
        """Its process stands still; the webhooks of another replica serve on, and it takes over."""
        leader = self.env.leader
        others = [r for r in self.env.replicas if r is not leader and r.running and not self._gate(r).stopped]
        if leader is None or self._gate(leader).stopped or not others:
            return
        register(self.env.cluster, others[0])
        starts = [self._start_now() for _ in range(self.random.choice((0, 2, 4)))]
        for _ in range(self.random.randrange(120)):
            await asyncio.sleep(0)
        sleeps = self.random.random() < 0.3
        self._gate(leader).stop(sleeps_through=sleeps)
        self.tell(f"stop {leader.controller.identity}{' and its timer' if sleeps else ''}")
        outcomes = await self.env.do(asyncio.gather(*starts, return_exceptions=True))
        self.tell(f"meanwhile {len(outcomes)} starts: {[str(found)[:90] for found in outcomes]}")
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ClusterError):
                raise outcome
        await self.env.later(self.random.choice((1, 5, 20, 30)))

    def _start_now(self) -> asyncio.Future[str]:
        """A start under way."""
        tenant = self.random.choice(TENANTS)
        name, references = self._name("vm"), self._references(tenant)

        async def start() -> str:
            await self.ecosystem.vmi(tenant, name, references, spec=self.constraints())
            return f"{tenant}/{name} {references}: yes"

        return asyncio.ensure_future(start())

    async def go_on(self) -> None:
        for replica in self.env.replicas:
            if self._gate(replica).stopped:
                self.tell(f"{replica.controller.identity} goes on")
                self._gate(replica).go_on()
        await self.env.settle()
        self.safety.check()

    async def kill_leader(self) -> None:
        await self.go_on()
        await super().kill_leader()

    async def restart(self) -> None:
        await self.go_on()
        await super().restart()

    async def jump(self) -> None:
        """One replica's wall clock is wrong for a while."""
        replica = self.random.choice(self.env.replicas)
        skew = self.random.choice((0, 0, 0, 3_600_000, -3_600_000, 45_000, -45_000))
        self._gate(replica).skew = skew
        self.tell(f"the clock of {replica.controller.identity} is ahead by {skew} ms")

    # What else changes

    async def remove_node(self) -> None:
        node = self.random.choice(sorted(NODES))
        await self.attempt(f"node {node} is removed", self.ecosystem.cluster.delete(NODE, "", node))
        await self.env.later(self.random.choice((1, 30, 60)))

    async def add_nodes(self) -> None:
        for node, units in NODES.items():
            if self.ecosystem.cluster.peek(NODE, "", node) is None:
                self._allocatable[node] = dict(units)
                await self.attempt(
                    f"node {node} is back", self.ecosystem.add_node(node, units, labels={ZONE: ZONES[node]})
                )

    async def remove_namespace(self) -> None:
        """A tenant goes with everything it has, and comes again."""
        for device in self.env.cluster.peek_all(DEVICE, "tenant-b"):
            if status(device).get("attachment"):
                self.safety.excuse(status(device)["attachment"]["vmiName"])
        await self.attempt("namespace tenant-b is removed", self.ecosystem.cluster.delete(NAMESPACE, "", "tenant-b"))
        await self.env.later(120)
        if self.ecosystem.cluster.peek(NAMESPACE, "", "tenant-b") is None:
            await self.attempt("tenant-b again", self.ecosystem.tenant("b", quotas=BUDGETS["b"]))

    async def report(self) -> None:
        """The agent of n3 sees some of its four cards, some of them unhealthy; another one may have taken the place
        of a card that left. A report that is not renewed falls silent."""
        cards = self.random.choice((4, 4, 4, 3, 2, 5))
        sick = self.random.choice((0, 0, 0, 1))
        functions = [
            Function(
                id=f"0000:{index + 1:02x}:00.0",
                stable_id=f"u{index}",
                resource_name=B,
                healthy=index >= sick,
                message="" if index >= sick else "not bound to vfio",
            )
            for index in self.random.sample(range(5), cards)
        ]
        await self.attempt(f"n3 reports {cards} cards, {sick} sick", self.ecosystem.report("n3", functions))

    async def change_table(self) -> None:
        table = self.random.choice((TABLE, TABLE, {A: TABLE[A]}, {}))
        await self.attempt(f"KubeVirt permits {sorted(table)}", self.ecosystem.kubevirt(table))

    async def change_budget(self) -> None:
        units = self.random.choice((0, 2, 4, 6, 8))
        quotas = {"gpu.cozystack.io/a10": units}
        await self.attempt(f"tenant-a may use {units}", self.ecosystem.tenant("a", quotas=quotas))

    def fault(self, call: Call) -> Fault | None:
        binds = call.user == SERVICE_ACCOUNT and "phaseSince" in ((call.body or {}).get("status") or {})
        if binds and self.random.random() < 0.03:
            self.release_after(self.random.choice((1.0, 10.0, 40.0)))
            return Fault.DELAYED
        return super().fault(call)

    async def calm(self) -> None:
        """Everything as it should be, before all has to settle."""
        await self.go_on()
        for replica in self.env.replicas:
            self._gate(replica).skew = 0
        await self.add_nodes()
        await self.ecosystem.kubevirt(TABLE)
        if self.ecosystem.cluster.peek(GPU_NODE, "", "n3") is not None:
            await self.ecosystem.cluster.delete(GPU_NODE, "", "n3")
