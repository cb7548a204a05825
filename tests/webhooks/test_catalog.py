"""The catalog answers with admission's eyes, to callers who may read it (C1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.cluster.memory import MemoryCluster
from reconciler.core.admission import catalog, checks
from reconciler.core.model.objects import ACCESS_REVIEW, TOKEN_REVIEW
from reconciler.core.model.vocabulary import Mode, Reason
from tests.core.world import NS, R, World
from webhooks.catalog import PATH, Catalog, answer
from webhooks.devices import DeviceWebhook
from webhooks.review import Denied, Request


@st.composite
def worlds(draw: st.DrawFn) -> World:
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    world = World().ready(*((f"n{index}", size) for index, size in enumerate(sizes)))
    if draw(st.booleans()):
        world.quotas("a", {R: draw(st.integers(0, 8)), "gpu.cozystack.io/a10": draw(st.integers(0, 8))})
    maximum = draw(st.none() | st.integers(1, 4))
    world.gpu_class("small", max_count=maximum)
    world.gpu_class("v", mode=Mode.VGPU)
    for index, count in enumerate(draw(st.lists(st.integers(1, 4), max_size=4))):
        world.order(f"d{index}", count=count)
    return world


@settings(max_examples=60, deadline=None)
@given(world=worlds())
async def test_c1_what_is_offered_is_accepted_and_one_more_is_refused_for_the_same_reason(world: World) -> None:
    def check(namespace: str, class_name: str, count: int) -> checks.Refusal | None:
        return checks.check_order(world.state, namespace, class_name, count)

    webhook = DeviceWebhook(world.state, check)
    for offer in catalog.offers(world.state, NS):
        if offer.orderable:
            await webhook(order(offer.class_name, offer.orderable), 5.0)
        with pytest.raises(Denied) as denied:
            await webhook(order(offer.class_name, offer.orderable + 1), 5.0)
        assert denied.value.reason == offer.limit.reason
        assert denied.value.message == offer.limit.message


def order(class_name: str, count: int) -> Request:
    body = {"metadata": {"name": "x", "namespace": NS}, "spec": {"className": class_name, "count": count}}
    return Request(uid="u", operation="CREATE", namespace=NS, object=msgspec.Raw(msgspec.json.encode(body)))


def test_c1_devices_that_can_be_referred_to() -> None:
    world = World().ready(("n1", 4))
    world.order("mine")
    world.order("busy")
    world.order("lost")
    world.start("vm", "busy")
    world.order("others", ns="tenant-b")
    found = answer(world.state, NS)["devices"]
    assert [(option.value, option.description) for option in found] == [
        ("lost", "Held, free"),
        ("mine", "Held, free"),
        ("busy", "Bound, attached to vm"),
    ]


@pytest.fixture
async def client() -> AsyncIterator[TestClient[Any, Any]]:
    """A cluster in which the token `good` is alice's, who may read tenant-a."""
    cluster = MemoryCluster(lambda: 0)

    def authenticate(body: dict[str, Any]) -> dict[str, Any]:
        good = body["spec"]["token"] == "good"
        return {**body, "status": {"authenticated": good, "user": {"username": "alice", "groups": ["tenants"]}}}

    def authorize(body: dict[str, Any]) -> dict[str, Any]:
        spec = body["spec"]
        assert spec["user"] == "alice" and spec["groups"] == ["tenants"]
        return {**body, "status": {"allowed": spec["resourceAttributes"]["namespace"] == NS}}

    cluster.answers[TOKEN_REVIEW.name] = authenticate
    cluster.answers[ACCESS_REVIEW.name] = authorize
    app = web.Application()
    app.router.add_get(PATH, Catalog(World().ready(("n1", 2)).state, cluster).handle)
    async with TestClient(TestServer(app)) as found:
        yield found


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        (f"/catalog/{NS}", "Bearer good", 200),
        (f"/catalog/{NS}", "Bearer bad", 401),
        (f"/catalog/{NS}", "", 401),
        (f"/catalog/{NS}", "Basic good", 401),
        ("/catalog/tenant-b", "Bearer good", 403),
        ("/catalog/NO", "Bearer good", 400),
    ],
)
async def test_c1_only_who_may_read_is_answered(
    client: TestClient[Any, Any], path: str, authorization: str, status: int
) -> None:
    async with client.get(path, headers={"Authorization": authorization} if authorization else {}) as got:
        assert got.status == status
        body = await got.json()
    if status == 200:
        assert body["classes"] == [
            {
                "value": "a10",
                "label": "a10",
                "description": f"2 can be ordered now: {body['limits']['a10']['reason']}: "
                f"{body['limits']['a10']['message']}",
            }
        ]
        assert body["limits"]["a10"]["reason"] == Reason.NO_FREE_UNITS
    else:
        assert body["error"]
