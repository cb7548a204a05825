"""Runs a scenario file: commands on an environment and the lines they print.

A file is read by people who know GPUs and not Python: a line that begins with `$` is a command, the lines below it up
to the next blank one are what it prints; everything else is prose. Names are `tenant/name` without the `tenant-`
prefix.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Awaitable, Callable

from journal.store import MemoryJournal
from reconciler.cluster.port import ClusterError
from reconciler.core.model.device_state import address
from reconciler.core.model.objects import DEVICE, POD, VMI, Function
from reconciler.core.model.vocabulary import FunctionKind
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.tenancy.charges import ChargeTree
from reconciler.debugging import explain, replay, replicas
from reconciler.demo.embedded import Replica
from reconciler.demo.environment import Environment

GPU = "example.com/gpu"


class Scenario:
    """One environment and the commands on it. Every command returns the lines it prints."""

    def __init__(self) -> None:
        self.env = Environment()
        self.ecosystem = self.env.ecosystem
        self.journal = MemoryJournal()
        self._ids = itertools.count(1)
        self._replicas = itertools.count()
        self._permitted: dict[str, str] = {}
        self.replica: Replica | None = None
        self._open = False
        self.commands: dict[str, Callable[..., Awaitable[list[str]]]] = {
            name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")
        }

    @property
    def state(self) -> PlacementState:
        assert self.replica is not None, "say `$ binder` first"
        found: PlacementState = self.replica.state
        return found

    async def run(self, line: str) -> list[str]:
        """One command. A refusal is output, not an error."""
        if not self._open:
            self._open = True
            await self.env.open()
        name, *arguments = shlex.split(line)
        plain = [argument for argument in arguments if "=" not in argument]
        options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
        try:
            printed = await self.commands[name](*plain, **({"options": options} if options else {}))
        except ClusterError as error:
            printed = [error.message.partition("denied the request: ")[2] or error.message]
        await self.env.settle()
        return printed

    async def close(self) -> None:
        await self.env.close()
        found = replay.verify(self.journal)
        assert found.difference is None, found.difference

    # The hoster's side

    async def do_binder(self) -> list[str]:
        """The controller starts, on the journal it left."""
        await self.ecosystem.kubevirt(self._permitted)
        self.replica = await self.env.add_replica(
            self.journal, f"binder-{next(self._replicas)}", new_id=lambda: f"request-{next(self._ids)}"
        )
        await self.env.later(3)
        return []

    async def do_kill(self) -> list[str]:
        assert self.replica is not None
        await self.replica.kill()
        self.env.replicas.remove(self.replica)
        return []

    async def do_node(self, name: str, units: str, resource: str = GPU) -> list[str]:
        self._permitted.setdefault(resource, "10DE:20B0")
        await self.ecosystem.add_node(name, {resource: int(units)})
        return []

    async def do_class(self, name: str, resource: str = GPU, options: dict[str, str] | None = None) -> list[str]:
        self._permitted.setdefault(resource, "10DE:20B0")
        found = options or {}
        most = int(found["max"]) if "max" in found else None
        await self.ecosystem.gpu_class(name, resource, found.get("mode", "Passthrough"), max_count=most)
        return []

    async def do_permit(self, *resources: str) -> list[str]:
        await self.ecosystem.kubevirt(dict.fromkeys(resources, "10DE:20B0"))
        return []

    async def do_tenant(self, name: str, options: dict[str, str] | None = None) -> list[str]:
        """`a`, or `a/b` for a tenant below `tenant-a`; budgets as key=value, `entitled=true` for vGPUs."""
        parent, _, short = name.rpartition("/")
        quotas = dict(options or {})
        entitled = quotas.pop("entitled", None)
        await self.ecosystem.tenant(
            short,
            parent=f"tenant-{parent}" if parent else "tenant-root",
            quotas=quotas,
            entitled=None if entitled is None else entitled == "true",
        )
        return []

    async def do_allocatable(self, node: str, units: str, resource: str = GPU) -> list[str]:
        await self.ecosystem.allocatable(node, {resource: int(units)})
        return []

    async def do_report(self, node: str, *cards: str) -> list[str]:
        """Each card by its stable name; `card!` is broken."""
        await self.ecosystem.report(
            node,
            [
                Function(
                    id=f"0000:{index:02x}:00.0",
                    stable_id=card.rstrip("!"),
                    kind=FunctionKind.PHYSICAL.value,
                    resource_name=GPU,
                    healthy=not card.endswith("!"),
                )
                for index, card in enumerate(cards)
            ],
        )
        return []

    async def do_cordon(self, node: str, on: str = "yes") -> list[str]:
        await self.ecosystem.cordon(node, on == "yes")
        return []

    async def do_ready(self, node: str, status: str) -> list[str]:
        await self.ecosystem.ready(node, status)
        return []

    async def do_wait(self, seconds: str) -> list[str]:
        await self.env.later(float(seconds))
        return []

    # The tenant's side

    async def do_order(self, name: str, class_name: str, units: str = "1") -> list[str]:
        namespace, _, short = name.rpartition("/")
        await self.env.do(self.ecosystem.order(f"tenant-{namespace}", short, class_name, int(units)))
        await self.env.settle()
        return [self._device(f"tenant-{namespace}", short)]

    async def do_start(self, name: str, *references: str, options: dict[str, str] | None = None) -> list[str]:
        """References: a device's name, or `2xclass` for a template."""
        namespace, _, short = name.rpartition("/")
        found: list[object] = []
        for reference in references:
            count, times, class_name = reference.partition("x")
            templated = bool(times) and count.isdigit()
            found.append({"className": class_name, "count": int(count)} if templated else reference)
        dry = (options or {}).get("dry") == "yes"
        await self.env.do(
            self.ecosystem.vmi(f"tenant-{namespace}", short, found, dry_run=dry)  # type: ignore[arg-type]
        )
        await self.env.settle()
        vmi = self.env.cluster.peek(VMI, f"tenant-{namespace}", short)
        if vmi is None:
            return ["would start"]
        status, entries = vmi.get("status") or {}, vmi["spec"]["domain"]["devices"].get("gpus", [])
        return [f"{short}: {status.get('phase')} on {status.get('nodeName')}, {len(entries)} gpus"]

    async def do_stop(self, name: str) -> list[str]:
        namespace, _, short = name.rpartition("/")
        await self.env.do(self.ecosystem.stop(f"tenant-{namespace}", short))
        return []

    async def do_finish(self, name: str, phase: str) -> list[str]:
        namespace, _, short = name.rpartition("/")
        await self.env.do(self.ecosystem.finish(f"tenant-{namespace}", short, phase))
        return []

    async def do_delete(self, name: str) -> list[str]:
        namespace, _, short = name.rpartition("/")
        await self.env.do(self.ecosystem.tenant_port.delete(DEVICE, f"tenant-{namespace}", short))
        await self.env.settle()
        device = self.env.cluster.peek(DEVICE, f"tenant-{namespace}", short)
        return ["gone" if device is None else self._device(f"tenant-{namespace}", short)]

    async def do_pod(self, name: str, node: str, units: str) -> list[str]:
        """A pod that asks for the resource by name."""
        namespace, _, short = name.rpartition("/")
        await self.ecosystem.pod(f"tenant-{namespace}", short, {GPU: int(units)}, node)
        return []

    # Looking

    async def do_devices(self) -> list[str]:
        return [self._device(*address(device)) for device in self.state.all_devices()]

    async def do_nodes(self) -> list[str]:
        return [
            f"{node}: served {units.served}, placed {units.placed}, raw {units.raw}, free {units.free}"
            for node in sorted(self.state.accounts)
            for _, units in sorted(self.state.accounts[node].items())
        ]

    async def do_budgets(self) -> list[str]:
        charges: ChargeTree = self.state.charges
        return [
            f"{tenant}: {key} {charges.charge(tenant, key)} of {charges.budgets(tenant).limits[key]}"
            for tenant in charges.tenants()
            for key in sorted(charges.budgets(tenant).limits)
        ]

    async def do_launchers(self) -> list[str]:
        found = []
        for pod in self.env.cluster.peek_all(POD):
            if pod["metadata"]["name"].startswith("virt-launcher"):
                terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                pinned = [field["values"] for term in terms["nodeSelectorTerms"] for field in term["matchFields"]]
                found.append(f"{pod['metadata']['namespace']}: pinned to {pinned}, on {pod['spec'].get('nodeName')}")
        return found

    async def do_explain(self, what: str, name: str) -> list[str]:
        namespace, _, short = name.rpartition("/")
        kind = replicas.SUBJECT_KINDS[what]
        _, last = replicas.history([self.journal], kind, f"tenant-{namespace}", short)[-1]
        found = explain.explain(self.journal, last.seq)
        told = [f"{found.by} {found.action}" + (f" {found.reason}" if found.reason else "")]
        told += [f"  {v.node}: {'fits, leaves ' + str(v.left) if v.fits else v.why}" for v in found.nodes]
        told += [f"  {b.key} of {b.tenant}: {b.charge} of {b.budget}" for b in found.budgets if b.budget is not None]
        return told

    def _device(self, namespace: str, name: str) -> str:
        device = self.state.device(namespace, name)
        if device is None:
            return f"{namespace}/{name}: gone"
        text = f"{namespace}/{name}: {device.phase or 'New'}"
        if device.placement is not None:
            text += f" on {device.placement.node}"
        if device.attachment is not None:
            text += f" for {device.attachment.vmi_name}"
        waiting = next((c for c in device.conditions if c.status != "True"), None)
        return text + (f" ({waiting.reason}: {waiting.message})" if waiting is not None else "")
