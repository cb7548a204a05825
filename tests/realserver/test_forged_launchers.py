"""Pods that say they are launchers of somebody's VM, on a real API server (R7, R8)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml

from reconciler.cluster.memory.kubevirt import launcher
from reconciler.core.model.objects import DEVICE, POD, VMI
from tests.realserver.controlplane import ControlPlane
from tests.realserver.test_stories import verified
from tests.realserver.world import CLASS_NAME, GPU, World, story


async def listed(world: World, vmi: str, pods: int) -> None:
    async def lists() -> bool:
        found = await world.ecosystem.get(VMI, world.tenant, vmi)
        return found is not None and len((found.get("status") or {}).get("activePods") or {}) == pods

    await world.ecosystem.until(lists, f"{vmi} lists {pods} pods")


def forged(vmi: dict[str, Any], node: str) -> dict[str, Any]:
    """A pod with the labels, the annotation and the owner of a launcher, already on a node."""
    pod = launcher(vmi)
    pod["metadata"]["labels"].pop("gpu.cozystack.io/devices")
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}}}
    pod["spec"] = {"nodeName": node, "containers": [container], "automountServiceAccountToken": False}
    return pod


async def test_r8_forged_launchers_are_charged_and_leave_no_budget(control_plane: ControlPlane, tmp_path: Path) -> None:
    """R8: a budget of 3 units and a running VM of one. Three forged pods are listed beside its launcher; each is
    charged, so the next order is refused until they are gone."""
    async with story(control_plane, tmp_path, a=9) as world:
        await world.ecosystem.tenant(f"s{world.number}", quotas={GPU: 3})
        await world.held("d1")
        await world.ecosystem.vmi(world.tenant, "vm", ["d1"])
        vmi = await world.running("vm")
        pods = [
            await world.ecosystem.tenant_port.create(POD, world.tenant, forged(vmi, world.node("a"))) for _ in range(3)
        ]
        await listed(world, "vm", 4)

        order = {
            "apiVersion": DEVICE.api_version,
            "kind": DEVICE.name,
            "metadata": {"name": "d2", "namespace": world.tenant},
            "spec": {"className": CLASS_NAME},
        }

        async def refusal() -> str:
            done = await asyncio.to_thread(
                control_plane.kubectl,
                *("create", "--dry-run=server", "-f", "-"),
                user="tenant",
                stdin=yaml.safe_dump(order),
                check=False,
            )
            return str(done.stderr)

        told = await world.ecosystem.until(refusal, "the order is refused")
        assert "BudgetExceeded" in told and "a budget of 3" in told

        for pod in pods:
            name = yaml.safe_load(pod)["metadata"]["name"]
            arguments = ("delete", "pod", name, "-n", world.tenant, "--grace-period=1")
            await asyncio.to_thread(control_plane.kubectl, *arguments, user="tenant")
        await listed(world, "vm", 1)
        await world.held("d2")
        await world.binder.stop()
        verified(world.binder.journal)
