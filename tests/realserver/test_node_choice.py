"""The node is chosen for the launcher that KubeVirt will make of the manifest, on a real API server (P2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reconciler.cluster.memory.json_objects import Document
from tests.realserver.controlplane import ControlPlane
from tests.realserver.world import GPU, story

GUEST = {"memory": {"guest": "4Gi"}, "devices": {}}


@pytest.mark.parametrize(
    ("labels", "domain"),
    [
        ({"cpumanager": "true"}, {"cpu": {"dedicatedCpuPlacement": True, "cores": 2}}),
        ({"cpu-model.node.kubevirt.io/EPYC": "true"}, {"cpu": {"model": "EPYC"}}),
    ],
    ids=["dedicated CPUs", "CPU model"],
)
async def test_p2_the_one_node_with_kubevirts_label_is_chosen(
    control_plane: ControlPlane, tmp_path: Path, labels: dict[str, str], domain: dict[str, Any]
) -> None:
    """The other node is tighter and would be taken, and the launcher would wait there for ever."""
    async with story(control_plane, tmp_path, a=1) as world:
        await world.ecosystem.add_node(world.node("b"), {GPU: 4}, labels=labels)
        await world.held("d1")
        await world.ecosystem.vmi(world.tenant, "vm", ["d1"], spec={"domain": GUEST | domain})
        assert (await world.running("vm"))["status"]["nodeName"] == world.node("b")


@pytest.mark.parametrize(
    "domain",
    [
        {"memory": {"guest": "20Gi"}, "resources": {"requests": {"memory": "2Gi"}}},
        {"memory": {"guest": "20Gi", "hugepages": {"pageSize": "2Mi"}}},
    ],
    ids=["a smaller request", "hugepages"],
)
async def test_p2_memory_that_kubevirt_does_not_request_is_not_missed(
    control_plane: ControlPlane, tmp_path: Path, domain: Document
) -> None:
    """A guest of 20 GiB binds on a node of 10 GiB where KubeVirt asks for less of its memory."""
    async with story(control_plane, tmp_path) as world:
        await world.ecosystem.add_node(world.node("a"), {GPU: 1}, memory="10Gi")
        await world.held("d1")
        await world.ecosystem.vmi(world.tenant, "vm", ["d1"], spec={"domain": GUEST | domain})
        await world.becomes("d1", "Bound")
