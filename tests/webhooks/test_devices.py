"""W1, K2: orders and who may write what on them."""

import copy

import pytest

from reconciler.core.admission.checks import Refusal
from reconciler.core.model.objects import Namespace
from reconciler.core.model.vocabulary import DEVICE_FINALIZER, EPOCH_ANNOTATION, TEMPLATE_LABEL, Reason
from tests.webhooks.fakes import NS, WRITER, World, device_body, review
from webhooks.review import ALLOWED, Denied


@pytest.fixture
def world():
    return World()


def order(**metadata):
    body = device_body("d1")
    del body["status"]
    body["metadata"] = {"name": "d1", "namespace": NS} | metadata
    return body


async def denied(world, body, **more):
    with pytest.raises(Denied) as caught:
        await world.devices(review(body, **more), 9.5)
    return caught.value


async def test_w1_an_order_the_checks_let_pass_is_allowed(world):
    assert await world.devices(review(order()), 9.5) == ALLOWED


async def test_w1_p1_an_order_is_refused_with_the_checks_reason(world):
    world.order_refusal = Refusal(reason=Reason.NO_FREE_UNITS, message="1 asked, 0 free", missing=1)
    found = await denied(world, order())
    assert (found.reason, found.message, found.code) == (Reason.NO_FREE_UNITS, "1 asked, 0 free", 403)


async def test_w1_a_template_of_ours_is_judged_with_its_start_and_not_here(world):
    world.order_refusal = Refusal(reason=Reason.BUDGET_EXCEEDED, message="would be charged twice")
    body = order(labels={TEMPLATE_LABEL: "true"}, finalizers=[DEVICE_FINALIZER])
    assert await world.devices(review(body, user=WRITER), 9.5) == ALLOWED


async def test_w1_our_own_user_is_judged_like_everybody_without_the_mark(world):
    world.order_refusal = Refusal(reason=Reason.BUDGET_EXCEEDED, message="x")
    assert (await denied(world, order(), user=WRITER)).reason is Reason.BUDGET_EXCEEDED


@pytest.mark.parametrize("value", ["true", "false", ""])
async def test_k2_nobody_else_sets_the_template_mark(world, value):
    found = await denied(world, order(labels={TEMPLATE_LABEL: value}))
    assert found.reason is Reason.TEMPLATE_MARK_RESERVED


async def test_k2_no_writer_configured_means_nobody_and_not_the_anonymous(world):
    world.view.settings = type(world.view.settings)(writer="")
    found = await denied(world, order(labels={TEMPLATE_LABEL: "true"}), user="")
    assert found.reason is Reason.TEMPLATE_MARK_RESERVED


async def test_w1_what_only_the_binder_writes_is_refused_in_an_order(world):
    found = await denied(world, order(annotations={EPOCH_ANNOTATION: "7"}))
    assert (found.reason, EPOCH_ANNOTATION in found.message) == (Reason.RESERVED_FIELD, True)
    found = await denied(world, order() | {"status": {"phase": "Held"}})
    assert found.reason is Reason.RESERVED_FIELD


async def test_w1_a_finalizer_of_ours_in_an_exported_order_is_harmless(world):
    assert await world.devices(review(order(finalizers=[DEVICE_FINALIZER])), 9.5) == ALLOWED


async def test_w1_a_namespace_that_ends_takes_no_orders(world):
    world.view.namespaces[NS] = Namespace(name=NS, uid="u", deleting=1)
    assert (await denied(world, order())).reason is Reason.NAMESPACE_TERMINATING


@pytest.mark.parametrize(
    "spec", [{}, {"className": ""}, {"className": "a", "count": 0}, {"className": "a", "count": -3}, "x", None]
)
async def test_w1_w5_an_order_of_another_shape_is_refused(world, spec):
    assert (await denied(world, order() | {"spec": spec})).reason is Reason.MALFORMED_REVIEW


def _changed(path, value):
    body = device_body("d1")
    target = body
    for part in path[:-1]:
        target = target.setdefault(part, {})
    target[path[-1]] = value
    return body


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("spec", "className"), "l4", Reason.IMMUTABLE_FIELD),
        (("spec", "count"), 2, Reason.IMMUTABLE_FIELD),
        (("metadata", "labels"), {TEMPLATE_LABEL: "true"}, Reason.TEMPLATE_MARK_RESERVED),
        (("metadata", "annotations"), {EPOCH_ANNOTATION: "1"}, Reason.RESERVED_FIELD),
        (("metadata", "finalizers"), [], Reason.RESERVED_FIELD),
    ],
)
async def test_w1_updates_that_are_refused(world, path, value, reason):
    found = await denied(world, _changed(path, value), old=device_body("d1"), operation="UPDATE")
    assert found.reason is reason


async def test_k2_the_template_mark_is_neither_changed_nor_removed(world):
    marked = _changed(("metadata", "labels"), {TEMPLATE_LABEL: "true"})
    for after in (device_body("d1"), _changed(("metadata", "labels"), {TEMPLATE_LABEL: "no"})):
        found = await denied(world, after, old=marked, operation="UPDATE")
        assert found.reason is Reason.TEMPLATE_MARK_RESERVED


async def test_w1_the_binder_finalizes_fences_and_may_not_change_an_order(world):
    fenced = _changed(("metadata", "annotations"), {EPOCH_ANNOTATION: "1"})
    fenced["metadata"]["finalizers"] = []
    ok = review(fenced, old=device_body("d1"), operation="UPDATE", user=WRITER)
    assert await world.devices(ok, 9.5) == ALLOWED
    found = await denied(world, _changed(("spec", "count"), 2), old=device_body("d1"), operation="UPDATE", user=WRITER)
    assert found.reason is Reason.IMMUTABLE_FIELD


async def test_w1_other_labels_and_a_default_count_written_out_pass(world):
    old = device_body("d1")
    new = copy.deepcopy(old)
    del old["spec"]["count"]
    new["metadata"]["labels"] = {"team": "a"}
    assert await world.devices(review(new, old=old, operation="UPDATE"), 9.5) == ALLOWED


async def test_w1_a_deletion_is_never_refused(world):
    assert await world.devices(review(None, operation="DELETE"), 9.5) == ALLOWED
