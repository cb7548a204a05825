"""The admission chain of the in-memory cluster: order, reinvocation, dry run, denials (B4, B5, C16, C21)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from reconciler.cluster.memory import MemoryCluster, Webhook
from reconciler.cluster.port import AlreadyExists, Conflict, NotFound, Rejected
from reconciler.core.model.objects import DEVICE, POD, SETTINGS, VMI
from tests.edges.memory_cluster import cluster, device, named, read

Review = dict[str, Any]


@pytest.fixture
def api() -> MemoryCluster:
    return cluster()


class Hook:
    """A webhook that keeps what it was asked and answers with a patch made from the object."""

    def __init__(self, patch: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self._patch = patch

    async def __call__(self, review: Review) -> Review:
        request = review["request"]
        self.requests.append(request)
        response = {"uid": request["uid"], "allowed": True}
        if self._patch is not None:
            encoded = base64.b64encode(msgspec.json.encode(self._patch(request["object"]))).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def labels(**added: str) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """A patch that adds the labels that are not there yet."""

    def patch(document: dict[str, Any]) -> list[dict[str, Any]]:
        present = document["metadata"].get("labels") or {}
        if added.items() <= present.items():
            return []
        return [{"op": "add", "path": "/metadata/labels", "value": {**present, **added}}]

    return patch


def denying(status: dict[str, Any]) -> Callable[[Review], Any]:
    async def call(review: Review) -> Review:
        return {"response": {"uid": review["request"]["uid"], "allowed": False, "status": status}}

    return call


def mutating(name: str, call: Any, **rest: Any) -> Webhook:
    return Webhook(name, call, rest.pop("kinds", (VMI.name,)), mutating=True, **rest)


async def test_a_webhook_is_called_again_when_a_later_one_changed_the_object_b4_c21(api: MemoryCluster) -> None:
    """B4, C21: another review uid, no object uid, and the second call sees the first one's patch."""
    ours, later = Hook(labels(ours="1")), Hook(labels(later="1"))
    api.admission.register(mutating("b-later", later))
    api.admission.register(mutating("a-ours", ours, reinvocation=True))
    made = read(await api.create(VMI, "default", named("v1", spec={})))
    assert made["metadata"]["labels"] == {"ours": "1", "later": "1"}
    first, second = ours.requests
    assert first["uid"] != second["uid"]
    assert "uid" not in first["object"]["metadata"] and "uid" not in second["object"]["metadata"]
    assert second["object"]["metadata"]["labels"] == {"ours": "1", "later": "1"}
    assert len(later.requests) == 1, "it did not ask for it"


async def test_nobody_is_called_again_for_a_change_that_is_none_or_ones_own_b4(api: MemoryCluster) -> None:
    """B4: reinvocation is for changes made after a webhook."""
    early, ours, idle = Hook(labels(early="1")), Hook(labels(ours="1")), Hook(lambda _: [])
    for name, hook in (("a", early), ("b", ours), ("c", idle)):
        api.admission.register(mutating(name, hook, reinvocation=name != "a"))
    await api.create(VMI, "default", named("v1", spec={}))
    assert [len(hook.requests) for hook in (early, ours, idle)] == [1, 1, 1]


async def test_reinvocation_happens_once_whatever_it_changes_b4(api: MemoryCluster) -> None:
    """B4: two webhooks that always change the object do not go on for ever."""

    def counting(label: str) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
        return lambda document: labels(**{label: str(len(str(document)))})(document)

    one, two = Hook(counting("one")), Hook(counting("two"))
    api.admission.register(mutating("a", one, reinvocation=True))
    api.admission.register(mutating("b", two, reinvocation=True))
    await api.create(VMI, "default", named("v1", spec={}))
    assert [len(one.requests), len(two.requests)] == [2, 1]


async def test_a_webhook_skipped_at_first_is_not_called_in_the_second_round_b4(api: MemoryCluster) -> None:
    """B4: a label that appears on the way does not bring in a webhook that was passed over."""
    selective, later = Hook(), Hook(labels(chosen="yes"))
    api.admission.register(mutating("a", selective, reinvocation=True, object_selector={"chosen": "yes"}))
    api.admission.register(mutating("b", later))
    await api.create(VMI, "default", named("v1", spec={}))
    assert selective.requests == []
    await api.create(VMI, "default", {"metadata": {"name": "v2", "labels": {"chosen": "yes"}}, "spec": {}})
    assert len(selective.requests) == 1


async def test_the_review_is_what_the_api_server_sends(api: MemoryCluster) -> None:
    hook = Hook()
    api.admission.register(Webhook("w", hook, (VMI.name,), ("CREATE", "UPDATE", "DELETE")))
    alice = api.as_user("alice", ("tenant-a-admins",))
    await alice.create(VMI, "default", {"metadata": {"generateName": "v-"}, "spec": {}})
    name = api.peek_all(VMI)[0]["metadata"]["name"]
    await alice.patch(VMI, "default", name, {"metadata": {"labels": {"a": "b"}}})
    await alice.delete(VMI, "default", name)
    create, update, delete = hook.requests
    kind = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachineInstance"}
    assert create["kind"] == create["requestKind"] == kind
    assert create["resource"]["resource"] == "virtualmachineinstances"
    assert create["userInfo"] == {
        "username": "alice",
        "groups": ["tenant-a-admins", "system:authenticated"],
    }
    assert (create["operation"], create["namespace"], create["dryRun"]) == ("CREATE", "default", False)
    assert create.get("name", "") == "" and create["oldObject"] is None
    assert create["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
    assert update["name"] == name and "labels" not in update["oldObject"]["metadata"]
    assert update["object"]["metadata"]["labels"] == {"a": "b"}
    assert delete["object"] is None and delete["oldObject"]["metadata"]["name"] == name


async def test_a_mutating_webhook_sees_no_generated_name_a_validating_one_does_b4(api: MemoryCluster) -> None:
    """B4: with generateName there is no name while mutating webhooks run."""
    early, late = Hook(), Hook()
    api.admission.register(mutating("m", early))
    api.admission.register(Webhook("v", late, (VMI.name,)))
    await api.create(VMI, "default", {"metadata": {"generateName": "v-"}, "spec": {}})
    assert "name" not in early.requests[0]["object"]["metadata"]
    assert late.requests[0]["object"]["metadata"]["name"].startswith("v-")
    assert late.requests[0]["object"]["metadata"]["uid"]


async def test_a_dry_run_asks_everyone_and_leaves_no_trace_b5_c16(api: MemoryCluster) -> None:
    """B5, C16c."""
    mutator, validator = Hook(labels(ours="1")), Hook()
    api.admission.register(mutating("m", mutator))
    api.admission.register(Webhook("v", validator, (VMI.name,)))
    before, ledger = api.resource_version, api.writes
    would = read(await api.create(VMI, "default", named("v1", spec={}), dry_run=True))
    assert would["metadata"]["labels"] == {"ours": "1"} and would["metadata"]["uid"]
    assert mutator.requests[0]["dryRun"] is True and validator.requests[0]["dryRun"] is True
    assert api.resource_version == before and api.writes == ledger and api.peek_all(VMI) == []
    await api.create(VMI, "default", named("v1", spec={}))
    with pytest.raises(AlreadyExists):
        await api.create(VMI, "default", named("v1", spec={}), dry_run=True)


async def test_webhooks_are_asked_before_the_name_is_found_taken_c16(api: MemoryCluster) -> None:
    """C16a: the final answer is 409, after the mutating webhook has done its work."""
    hook = Hook()
    api.admission.register(mutating("m", hook))
    await api.create(VMI, "default", named("v1", spec={}))
    with pytest.raises(AlreadyExists):
        await api.create(VMI, "default", named("v1", spec={}))
    assert len(hook.requests) == 2
    with pytest.raises(NotFound, match="namespaces"):
        await api.create(VMI, "nowhere", named("v1", spec={}))
    assert len(hook.requests) == 2, "a missing namespace is found first"


async def test_a_denial_names_the_webhook_and_nothing_is_stored_c16(api: MemoryCluster) -> None:
    """C16b: a later validating webhook refuses what a mutating one has worked on."""
    mutator = Hook(labels(ours="1"))
    api.admission.register(mutating("m", mutator))
    for status, said in (
        ({"message": "NoFreeUnits: 2 short", "code": 403}, "denied the request: NoFreeUnits: 2 short"),
        ({"reason": "Forbidden"}, "denied the request: Forbidden"),
        ({}, "denied the request without explanation"),
    ):
        api.admission.register(Webhook("v.example", denying(status), (VMI.name,)))
        with pytest.raises(Rejected) as refused:
            await api.create(VMI, "default", named("v1", spec={}))
        assert refused.value.message == f'admission webhook "v.example" {said}'
    assert api.peek_all(VMI) == [] and len(mutator.requests) == 3


async def test_a_schema_error_comes_after_mutation_and_before_validation(api: MemoryCluster) -> None:
    fixing = Hook(lambda _: [{"op": "replace", "path": "/spec/count", "value": 1}])
    validator = Hook()
    api.admission.register(mutating("m", fixing, kinds=(DEVICE.name,)))
    api.admission.register(Webhook("v", validator, (DEVICE.name,)))
    assert read(await api.create(DEVICE, "default", device("d1", count=0)))["spec"]["count"] == 1
    api.admission.unregister("m")
    with pytest.raises(Rejected, match="is invalid"):
        await api.create(DEVICE, "default", device("d2", count=0))
    assert len(validator.requests) == 1


async def raising(_: Review) -> Review:
    raise ConnectionRefusedError("no endpoints")


async def hanging(_: Review) -> Review:
    await asyncio.Event().wait()
    return {}


async def stranger(_: Review) -> Review:
    return {"response": {"uid": "another", "allowed": True}}


async def nonsense(_: Review) -> Review:
    return []  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (raising, "no endpoints"),
        (hanging, "context deadline exceeded"),
        (stranger, "expected response.uid"),
        (nonsense, "expected response.uid"),
        (Hook(lambda _: [{"op": "remove", "path": "/spec/none"}]), "its patch cannot be applied"),
        (Hook(lambda _: [{"op": "test", "path": "/spec", "value": 1}]), "its patch cannot be applied"),
        (Hook(lambda _: {"op": "add"}), "its patch cannot be applied"),  # type: ignore[arg-type,return-value]
    ],
)
async def test_a_webhook_that_fails_refuses_the_request_or_fails_open(api: MemoryCluster, call: Any, why: str) -> None:
    api.admission.register(mutating("m", call, timeout_ms=10))
    with pytest.raises(Rejected, match='failed calling webhook "m"') as refused:
        await api.create(VMI, "default", named("v1", spec={}))
    assert why in refused.value.message
    api.admission.register(mutating("m", call, timeout_ms=10, fail_closed=False))
    await api.create(VMI, "default", named("v1", spec={}))


async def test_only_the_wanted_kinds_operations_and_labels_are_reviewed(api: MemoryCluster) -> None:
    hook = Hook()
    api.admission.register(Webhook("v", hook, (SETTINGS.name,), ("UPDATE",), object_selector={"watched": "yes"}))
    await api.create(SETTINGS, "default", {"metadata": {"name": "a", "labels": {"watched": "yes"}}})
    await api.create(SETTINGS, "default", named("b"))
    await api.patch(SETTINGS, "default", "b", {"data": {"k": "v"}})
    assert hook.requests == []
    await api.patch(SETTINGS, "default", "a", {"metadata": {"labels": None}})
    assert len(hook.requests) == 1, "the old object carried the label"


async def test_a_status_write_is_not_reviewed(api: MemoryCluster) -> None:
    hook = Hook()
    api.admission.register(Webhook("v", hook, (POD.name,), ("CREATE", "UPDATE")))
    await api.create(POD, "default", named("p", spec={}))
    await api.patch(POD, "default", "p", {"status": {"phase": "Running"}}, subresource="status")
    assert len(hook.requests) == 1


async def test_a_webhook_cannot_touch_what_is_the_servers(api: MemoryCluster) -> None:
    forging = Hook(
        lambda _: [
            {"op": "add", "path": "/metadata/uid", "value": "forged"},
            {"op": "add", "path": "/status", "value": {"phase": "Bound"}},
        ]
    )
    api.admission.register(mutating("m", forging, kinds=(DEVICE.name,), operations=("CREATE", "UPDATE")))
    made = read(await api.create(DEVICE, "default", device("d1")))
    assert made["metadata"]["uid"] != "forged" and "status" not in made
    patched = read(await api.patch(DEVICE, "default", "d1", {"metadata": {"labels": {"a": "b"}}}))
    assert patched["metadata"]["uid"] == made["metadata"]["uid"] and "status" not in patched


async def test_an_object_that_changes_while_admission_thinks_is_read_again_b6(api: MemoryCluster) -> None:
    """B6: without a precondition the server tries again on what is there now; with one it is a conflict."""
    made = read(await api.create(SETTINGS, "default", named("a", data={"k": "1"})))
    calls = 0

    async def interfering(review: Review) -> Review:
        nonlocal calls
        calls += 1
        if calls in (1, 3):
            api.admission.unregister("i")
            await api.patch(SETTINGS, "default", "a", {"data": {"other": str(calls)}})
            api.admission.register(webhook)
        return {"response": {"uid": review["request"]["uid"], "allowed": True}}

    webhook = Webhook("i", interfering, (SETTINGS.name,), ("UPDATE",))
    api.admission.register(webhook)
    merged = read(await api.patch(SETTINGS, "default", "a", {"data": {"k": "2"}}))
    assert merged["data"] == {"k": "2", "other": "1"} and calls == 2
    precondition = {"resourceVersion": merged["metadata"]["resourceVersion"]}
    with pytest.raises(Conflict):
        await api.patch(SETTINGS, "default", "a", {"metadata": precondition, "data": {"k": "3"}})
    assert api.peek(SETTINGS, "default", "a")["data"] == {"k": "2", "other": "3"}  # type: ignore[index]
    assert made["metadata"]["uid"] == merged["metadata"]["uid"]
