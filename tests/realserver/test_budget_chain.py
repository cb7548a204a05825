"""A tenant whose chain of releases is broken, on a real API server (R4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cluster.port import Rejected
from tests.realserver.controlplane import ControlPlane
from tests.realserver.world import CLASS_NAME, GPU, story


async def test_r4_a_tenant_below_a_missing_release_gets_nothing(control_plane: ControlPlane, tmp_path: Path) -> None:
    """R4, W4: a release in a namespace of which no release is known. Its GPU budget is refused, and so is an order
    there; both name the missing release, and are accepted once it is there."""
    async with story(control_plane, tmp_path, a=2) as world:
        above, named = f"tenant-gone{world.number}", f"tenant-root/tenant-gone{world.number}"
        with pytest.raises(Rejected, match=f"BudgetUnreadable.*{named}"):
            await world.ecosystem.tenant("z", parent=above, quotas={GPU: 1})
        below = await world.ecosystem.tenant("z", parent=above)

        async def refused() -> bool:
            try:
                await world.ecosystem.order(below, "d1", CLASS_NAME)
            except Rejected as error:
                assert "BudgetUnreadable" in error.message and named in error.message
                return True
            return False

        await world.ecosystem.until(refused, "the order is refused")
        await world.ecosystem.tenant(f"gone{world.number}")

        async def accepted() -> bool:
            await world.ecosystem.order(below, "d2", CLASS_NAME)
            return True

        await world.ecosystem.until(accepted, "the order is accepted")

        async def held() -> bool:
            return await world.phase("d2", below) == "Held"

        await world.ecosystem.until(held, "the order is held")
