"""A start that a validating step after ours refuses, on a real API server (B4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cluster.port import Rejected
from tests.realserver.controlplane import ControlPlane
from tests.realserver.world import CLASS_NAME, story

NO_VOLUME = {"domain": {"memory": {"guest": "4Gi"}, "devices": {"disks": [{"name": "root"}]}}}


async def test_b4_a_refused_start_gives_way_to_its_correction(control_plane: ControlPlane, tmp_path: Path) -> None:
    """virt-api refuses a VMI after our webhook has bound its devices. Its owner corrects it, and it refers to other
    devices: it starts within the webhook's timeout, long before the minute after which the binder gives them back."""
    async with story(control_plane, tmp_path, a=4) as world:
        await world.held("d1")
        await world.held("d2")
        with pytest.raises(Rejected, match="'root' not found"):
            await world.ecosystem.vmi(world.tenant, "vm", ["d1", {"className": CLASS_NAME, "count": 1}], spec=NO_VOLUME)
        assert await world.phase("d1") == "Bound"
        with pytest.raises(Rejected, match="earlier start"):
            await world.ecosystem.vmi(world.tenant, "vm", ["d2"])

        async def starts() -> bool:
            try:
                await world.ecosystem.vmi(world.tenant, "vm", ["d2"])
            except Rejected as error:
                assert "DeviceAttached" in error.message
                return False
            return True

        await world.ecosystem.until(starts, "the corrected VM starts", 30)
        await world.running("vm")
        assert [await world.phase("d1"), await world.phase("d2")] == ["Held", "Bound"]
        assert {d["metadata"]["name"] for d in await world.devices()} == {"d1", "d2"}
