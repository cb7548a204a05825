"""Forged reviews, from a pod's point of view, against webhooks that know the API server by its token (W7)."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from reconciler.cluster.memory.manifests import vmi_body
from reconciler.cluster.port import Unavailable
from tests.realserver.controlplane import CALLER_TOKEN, ControlPlane
from tests.realserver.world import CLASS_NAME, World, story


def forged(world: World, name: str) -> dict[str, Any]:
    """A review of the tenant's VMI that no API server sent: one held device and a template."""
    body = vmi_body(name, ["d1", {"className": CLASS_NAME, "count": 1}])
    body["metadata"]["namespace"] = world.tenant
    request = {
        "uid": "forged",
        "operation": "CREATE",
        "namespace": world.tenant,
        "name": name,
        "userInfo": {"username": "system:serviceaccount:kubevirt:kubevirt-controller"},
        "object": body,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def post(world: World, review: dict[str, Any], token: str = "") -> tuple[int, str]:
    trust = ssl.create_default_context(cafile=str(world.plane.ca_path))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{world.binder.url}/admit/machines?timeout=10s"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=review, headers=headers, ssl=trust) as answer,
    ):
        return answer.status, await answer.text()


def strangers(metrics: str) -> float:
    (line,) = [line for line in metrics.splitlines() if line.startswith("gpu_binder_webhook_strangers_total ")]
    return float(line.split()[1])


@pytest.mark.parametrize("token", ["", "guessed"])
async def test_w7_a_forged_review_changes_nothing_where_callers_are_authenticated(
    control_plane: ControlPlane, tmp_path: Path, token: str
) -> None:
    """W7: 401 without a word, no write, counted; orders and starts through the API server work as ever."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"older\n{CALLER_TOKEN}\n")
    flags = ("--webhook-auth=Require", f"--webhook-token-file={tokens}")
    async with story(control_plane, tmp_path, flags, a=4) as world:
        await world.held("d1")
        before = await world.devices()
        assert await post(world, forged(world, "ghost"), token) == (401, "")
        assert await world.devices() == before
        assert strangers(await world.binder.metrics()) == 1
        await world.ecosystem.vmi(world.tenant, "vm", ["d1"])
        await world.running("vm")
        assert strangers(await world.binder.metrics()) == 1


async def test_w7_report_serves_and_counts_and_a_wrong_token_is_seen_before_it_refuses(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """W7: with a token that the API server does not have, Report lets every request through and counts it; the same
    under Require refuses, which is why Report comes first."""
    tokens = tmp_path / "tokens"
    tokens.write_text("another\n")
    flags = ("--webhook-auth=Report", f"--webhook-token-file={tokens}")
    async with story(control_plane, tmp_path, flags, a=4) as world:
        await world.held("d1")
        assert strangers(await world.binder.metrics()) >= 1
    flags = ("--webhook-auth=Require", f"--webhook-token-file={tokens}")
    async with story(control_plane, tmp_path / "required", flags, a=4) as world:
        with pytest.raises(Unavailable, match="failed calling webhook"):
            await world.ecosystem.order(world.tenant, "d2", CLASS_NAME, 1)
        tokens.write_text(CALLER_TOKEN)

        async def admitted() -> bool:
            try:
                await world.ecosystem.order(world.tenant, "d2", CLASS_NAME, 1)
            except Unavailable:
                return False
            return True

        await world.ecosystem.until(admitted, "the new token is read")
