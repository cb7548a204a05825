"""The budget gate and the catalog on a real API server: changes of GPU budgets are judged where they are written, and
the catalog answers with admission's eyes to who may read it (W4, C1, R3, R4)."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from reconciler.cluster.port import Rejected
from tests.realserver.controlplane import ControlPlane
from tests.realserver.world import CLASS_NAME, GPU, World, story

KEY = f"gpu.cozystack.io/{CLASS_NAME}"


async def test_w4_a_child_gets_no_more_than_its_parent_has_left(control_plane: ControlPlane, tmp_path: Path) -> None:
    async with story(control_plane, tmp_path, a=8) as world:
        parent = f"s{world.number}"
        await world.ecosystem.tenant(parent, quotas={KEY: "4", "cpu": "10"})

        async def known() -> bool:
            found = await catalog(world, control_plane.token("admin"), world.tenant)
            return bool(found["limits"][CLASS_NAME]["orderable"] == 4)

        await world.ecosystem.until(known, "the parent's budget is known")
        await world.held("mine")
        await world.ecosystem.tenant("child", parent=world.tenant, quotas={KEY: 3})
        with pytest.raises(Rejected, match=r"BudgetExceeded.*budget of 4"):
            await world.ecosystem.tenant("second", parent=world.tenant, quotas={KEY: 1})
        with pytest.raises(Rejected, match="BudgetUnreadable"):
            await world.ecosystem.tenant("third", parent=world.tenant, quotas={KEY: "lots"})
        with pytest.raises(Rejected, match="BudgetUnreadable"):
            await world.ecosystem.tenant("fourth", parent=world.tenant, quotas={GPU: -1})
        await world.ecosystem.tenant("child", parent=world.tenant, quotas={KEY: 3, "cpu": "40"})
        await world.ecosystem.tenant("child", parent=world.tenant, quotas={KEY: 1})
        await world.ecosystem.tenant("second", parent=world.tenant, quotas={KEY: 2})


async def test_c1_the_catalog_says_what_admission_says(control_plane: ControlPlane, tmp_path: Path) -> None:
    async with story(control_plane, tmp_path, a=4, b=2) as world:
        await world.held("d1")
        found = await catalog(world, control_plane.token("tenant"), world.tenant)
        limit = found["limits"][CLASS_NAME]
        assert [device["value"] for device in found["devices"]] == ["d1"]
        await world.ecosystem.order(world.tenant, "largest", CLASS_NAME, limit["orderable"])
        await world.becomes("largest", "Held")
        found = await catalog(world, control_plane.token("tenant"), world.tenant)
        limit = found["limits"][CLASS_NAME]
        with pytest.raises(Rejected) as refused:
            await world.ecosystem.order(world.tenant, "more", CLASS_NAME, limit["orderable"] + 1)
        assert f"{limit['reason']}: {limit['message']}" in refused.value.message
        assert await status(world, "no-such-token", world.tenant) == 401
        control_plane.kubectl("create", "serviceaccount", "stranger", "-n", world.tenant)
        stranger = control_plane.service_account_token(world.tenant, "stranger")
        assert await status(world, stranger, world.tenant) == 403


async def _get(world: World, token: str, namespace: str) -> tuple[int, Any]:
    context = ssl.create_default_context(cafile=str(world.plane.ca_path))
    url = f"{world.binder.url}/catalog/{namespace}"
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=context) as answer:
        return answer.status, await answer.json()


async def catalog(world: World, token: str, namespace: str) -> Any:
    code, body = await _get(world, token, namespace)
    assert code == 200, body
    return body


async def status(world: World, token: str, namespace: str) -> int:
    return (await _get(world, token, namespace))[0]
