"""W4: a tenant's GPU budgets are checked where they are written, and only when they change."""

import pytest

from reconciler.core.model.vocabulary import TENANT_KIND_LABEL, Reason
from reconciler.core.tenancy.tenants import Budgets, class_key, raw_key
from tests.webhooks.fakes import A100, World, review
from webhooks.review import ALLOWED, Denied

PARENT = "tenant-acme"
CLASS = "gpu.cozystack.io/a100"


@pytest.fixture
def world():
    world = World()
    world.view.charges.add_tenant("tenant-root", None)
    world.view.charges.add_tenant(PARENT, "tenant-root")
    world.view.charges.set_budgets(PARENT, Budgets({class_key("a100"): 4}))
    return world


def release(quotas, *, tenant=True, values=True):
    labels = {TENANT_KIND_LABEL: "Tenant"} if tenant else {}
    body = {"metadata": {"name": "tenant-dev", "namespace": PARENT, "labels": labels}, "spec": {}}
    if values:
        body["spec"]["values"] = {"host": "x", "resourceQuotas": quotas}
    return body


async def judge(world, quotas, old=None, **more):
    operation = "CREATE" if old is None else "UPDATE"
    return await world.tenants(review(release(quotas), old=old, operation=operation, namespace=PARENT, **more), 9.5)


async def refused(world, quotas, old=None):
    with pytest.raises(Denied) as caught:
        await judge(world, quotas, old)
    return caught.value


async def test_w4_a_child_may_have_what_its_parent_has_left(world):
    assert await judge(world, {CLASS: 4, "cpu": "10"}) == ALLOWED
    found = await refused(world, {CLASS: "5"})
    assert found.reason is Reason.BUDGET_EXCEEDED
    assert PARENT in found.message


async def test_w4_c13_other_forms_of_a_key_are_the_same_budget(world):
    world.view.charges.set_budgets(PARENT, Budgets({raw_key(A100): 1}))
    assert (await refused(world, {f"requests.{A100}": 2})).reason is Reason.BUDGET_EXCEEDED


@pytest.mark.parametrize("value", ["many", -1, [], {}, True, ""])
async def test_w4_r3_budgets_that_cannot_be_read_are_refused_at_the_source(world, value):
    found = await refused(world, {CLASS: value})
    assert found.reason is Reason.BUDGET_UNREADABLE
    assert CLASS in found.message


@pytest.mark.parametrize("quotas", ["x", [], 7])
async def test_w4_r3_quotas_that_are_no_map_are_refused(world, quotas):
    assert (await refused(world, quotas)).reason is Reason.BUDGET_UNREADABLE


async def test_w4_n3_nothing_else_of_a_tenant_is_looked_at(world):
    world.view.charges.set_budgets(PARENT, Budgets({class_key("a100"): 1}))
    over = {CLASS: 9, "cpu": 1}
    assert await judge(world, over | {"cpu": 2}, release(over)) == ALLOWED
    assert await judge(world, {CLASS: "broken", "cpu": 2}, release({CLASS: "broken"})) == ALLOWED


async def test_w4_an_update_is_judged_by_what_it_adds(world):
    world.view.charges.add_tenant("tenant-acme-dev", PARENT)
    world.view.charges.set_budgets("tenant-acme-dev", Budgets({class_key("a100"): 4}))
    old = release({CLASS: 4})
    assert await judge(world, {CLASS: 2}, old) == ALLOWED
    assert await judge(world, {}, old) == ALLOWED
    assert (await refused(world, {CLASS: 5}, old)).reason is Reason.BUDGET_EXCEEDED


async def test_w4_c13_a_key_that_limits_nothing_is_told(world):
    answer = await judge(world, {"gpu.cozystack.io/A100": 1})
    assert len(answer.warnings) == 1
    assert "gpu.cozystack.io/A100" in answer.warnings[0]


async def test_w4_a_release_that_is_no_tenant_is_none_of_ours(world):
    body = release({CLASS: 99}, tenant=False)
    assert await world.tenants(review(body, namespace=PARENT), 9.5) == ALLOWED


async def test_w4_a_release_that_becomes_a_tenant_is_judged_whole(world):
    old = release({CLASS: 99}, tenant=False)
    assert (await refused(world, {CLASS: 99}, old)).reason is Reason.BUDGET_EXCEEDED


async def test_w4_an_unreadable_budget_above_is_named(world):
    world.view.charges.set_budgets(PARENT, Budgets(unreadable={class_key("a100"): "is 'many'"}))
    found = await refused(world, {CLASS: 1})
    assert (found.reason, PARENT in found.message) == (Reason.BUDGET_UNREADABLE, True)


async def test_w4_a_release_without_values_has_no_budgets(world):
    body = release({}, values=False)
    assert await world.tenants(review(body, namespace=PARENT), 9.5) == ALLOWED
