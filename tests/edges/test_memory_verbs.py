"""The in-memory cluster serves reads and writes like an API server (B6, R10, N8, O1, O2)."""

from __future__ import annotations

import pytest

from reconciler.cluster.memory import MemoryCluster
from reconciler.cluster.memory.json_objects import merge_patch
from reconciler.cluster.port import AlreadyExists, Conflict, KindMissing, NotFound, Preconditions, Rejected
from reconciler.core.model.objects import ACCESS_REVIEW, CLASS, DEVICE, NAMESPACE, NODE, POD, SETTINGS, VMI
from tests.edges.memory_cluster import cluster, device, named, read, version


@pytest.fixture
async def api() -> MemoryCluster:
    made = cluster()
    await made.create(NAMESPACE, "", named("tenant-a"))
    return made


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_the_examples_of_rfc_7386(target: object, patch: object, merged: object) -> None:
    assert merge_patch(target, patch) == merged


async def test_a_created_object_gets_what_only_the_server_gives(api: MemoryCluster) -> None:
    made = read(await api.create(DEVICE, "tenant-a", {**device("d1"), "status": {"phase": "Bound"}}))
    metadata = made["metadata"]
    assert metadata["uid"] and metadata["generation"] == 1
    assert metadata["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert metadata["resourceVersion"] == api.resource_version
    assert made["apiVersion"] == "gpu.cozystack.io/v1alpha1" and made["kind"] == "GPUDevice"
    assert made["spec"] == {"className": "a100", "count": 1}, "the schema's default"
    assert "status" not in made, "the main resource does not write a status"


async def test_two_runs_give_the_same_uids_names_and_versions() -> None:
    outcomes = []
    for _ in range(2):
        api = cluster()
        await api.create(POD, "default", {"metadata": {"generateName": "p-"}})
        await api.create(NODE, "", named("n1"))
        outcomes.append((await api.list(POD), await api.list(NODE)))
    assert outcomes[0] == outcomes[1]


async def test_generated_names_differ_and_keep_their_base(api: MemoryCluster) -> None:
    names = {
        read(await api.create(POD, "tenant-a", {"metadata": {"generateName": "p-"}}))["metadata"]["name"]
        for _ in range(20)
    }
    assert len(names) == 20 and all(name.startswith("p-") and len(name) == 7 for name in names)


async def test_a_taken_name_a_missing_object_and_a_missing_namespace_are_told_apart(api: MemoryCluster) -> None:
    await api.create(DEVICE, "tenant-a", device("d1"))
    with pytest.raises(AlreadyExists, match=r'gpudevices\.gpu\.cozystack\.io "d1" already exists'):
        await api.create(DEVICE, "tenant-a", device("d1"))
    with pytest.raises(NotFound, match='"d2" not found'):
        await api.get(DEVICE, "tenant-a", "d2")
    with pytest.raises(NotFound, match='namespaces "tenant-b" not found'):
        await api.create(DEVICE, "tenant-b", device("d1"))
    with pytest.raises(Rejected, match="name or generateName"):
        await api.create(DEVICE, "tenant-a", {"metadata": {}, "spec": {"className": "a"}})


async def test_a_write_on_an_old_version_or_another_uid_conflicts_b6(api: MemoryCluster) -> None:
    """B6, R10: the precondition is the version the decision was made on, and the very object."""
    first = read(await api.create(DEVICE, "tenant-a", device("d1")))
    second = read(await api.patch(DEVICE, "tenant-a", "d1", {"status": {"phase": "Held"}}, subresource="status"))
    stale = {"metadata": {"resourceVersion": version(first)}, "status": {"phase": "Bound"}}
    with pytest.raises(Conflict, match="the object has been modified"):
        await api.patch(DEVICE, "tenant-a", "d1", stale, subresource="status")
    fresh = {"metadata": {"resourceVersion": version(second)}, "status": {"phase": "Bound"}}
    third = read(await api.patch(DEVICE, "tenant-a", "d1", fresh, subresource="status"))
    assert third["status"] == {"phase": "Bound"}
    with pytest.raises(Conflict, match="UID in precondition"):
        await api.patch(DEVICE, "tenant-a", "d1", {"metadata": {"uid": "other", "labels": {"a": "b"}}})
    with pytest.raises(Rejected, match="must be specified for an update"):
        await api.patch(DEVICE, "tenant-a", "d1", {"metadata": {"resourceVersion": ""}})
    with pytest.raises(Conflict):
        await api.delete(DEVICE, "tenant-a", "d1", preconditions=Preconditions(uid="other"))
    with pytest.raises(Conflict):
        await api.delete(DEVICE, "tenant-a", "d1", preconditions=Preconditions(resource_version=version(first)))


async def test_status_and_the_rest_are_written_apart(api: MemoryCluster) -> None:
    made = read(await api.create(DEVICE, "tenant-a", device("d1")))
    both = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Held"}}
    main = read(await api.patch(DEVICE, "tenant-a", "d1", both))
    assert main["metadata"]["labels"] == {"a": "b"} and "status" not in main
    status = read(
        await api.patch(DEVICE, "tenant-a", "d1", {"metadata": {"labels": {"a": "c"}}, **both}, subresource="status")
    )
    assert status["metadata"]["labels"] == {"a": "b"} and status["status"] == {"phase": "Held"}
    assert status["metadata"]["generation"] == made["metadata"]["generation"], "only a spec change counts"
    with pytest.raises(NotFound):
        await api.patch(SETTINGS, "default", "x", {"status": {}}, subresource="status")


async def test_the_generation_grows_with_the_spec_only(api: MemoryCluster) -> None:
    await api.create(VMI, "tenant-a", named("v1", spec={"domain": {}}))
    changed = read(await api.patch(VMI, "tenant-a", "v1", {"spec": {"domain": {"cpu": {"cores": 2}}}}))
    assert changed["metadata"]["generation"] == 2
    labelled = read(await api.patch(VMI, "tenant-a", "v1", {"metadata": {"labels": {"a": "b"}}}))
    assert labelled["metadata"]["generation"] == 2


async def test_a_patch_that_changes_nothing_makes_no_version_and_is_marked_in_the_ledger(
    api: MemoryCluster,
) -> None:
    await api.create(DEVICE, "tenant-a", device("d1"))
    held = {"status": {"phase": "Held"}}
    binder = api.as_user("binder")
    await binder.patch(DEVICE, "tenant-a", "d1", held, subresource="status")
    before = api.resource_version
    await binder.patch(DEVICE, "tenant-a", "d1", held, subresource="status")
    assert api.resource_version == before
    mine = [entry for entry in api.writes if entry.user == "binder"]
    assert [(entry.verb, entry.subresource, entry.applied) for entry in mine] == [
        ("patch", "status", True),
        ("patch", "status", False),
    ]
    assert mine[0].body == held and mine[0].version == before


async def test_what_a_caller_gives_or_gets_is_not_the_stored_object(api: MemoryCluster) -> None:
    body = device("d1")
    await api.create(DEVICE, "tenant-a", body)
    body["spec"]["className"] = "changed"
    seen = api.peek(DEVICE, "tenant-a", "d1")
    assert seen is not None
    seen["spec"]["className"] = "changed"
    assert read(await api.get(DEVICE, "tenant-a", "d1"))["spec"]["className"] == "a100"


async def test_a_finalizer_keeps_a_deleted_object_until_it_is_taken_away(api: MemoryCluster) -> None:
    body = device("d1")
    body["metadata"]["finalizers"] = ["x/one"]
    await api.create(DEVICE, "tenant-a", body)
    await api.delete(DEVICE, "tenant-a", "d1")
    marked = read(await api.get(DEVICE, "tenant-a", "d1"))["metadata"]
    assert marked["deletionTimestamp"] and marked["generation"] == 2
    with pytest.raises(Rejected, match="no new finalizers can be added"):
        await api.patch(DEVICE, "tenant-a", "d1", {"metadata": {"finalizers": ["x/one", "x/two"]}})
    await api.delete(DEVICE, "tenant-a", "d1")
    assert version(read(await api.get(DEVICE, "tenant-a", "d1"))) == marked["resourceVersion"], "deleted once"
    await api.patch(DEVICE, "tenant-a", "d1", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await api.get(DEVICE, "tenant-a", "d1")


async def test_a_pod_on_a_node_goes_when_its_kubelet_says_so(api: MemoryCluster) -> None:
    await api.create(POD, "tenant-a", named("waiting", spec={}))
    await api.create(POD, "tenant-a", named("running", spec={"nodeName": "n1"}))
    await api.delete(POD, "tenant-a", "waiting")
    await api.delete(POD, "tenant-a", "running")
    left = read(await api.list(POD))["items"]
    assert [pod["metadata"]["name"] for pod in left] == ["running"]
    assert left[0]["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:50Z", "30 s of grace"
    await api.delete(POD, "tenant-a", "running", grace_seconds=0)
    assert read(await api.list(POD))["items"] == []


async def test_what_lost_its_owner_is_collected_and_what_kept_one_stays(api: MemoryCluster) -> None:
    owner = read(await api.create(VMI, "tenant-a", named("v1", spec={})))["metadata"]["uid"]
    other = read(await api.create(VMI, "tenant-a", named("v2", spec={})))["metadata"]["uid"]
    for name, uids in (("d1", [owner]), ("d2", [owner, other]), ("d3", [])):
        body = device(name)
        body["metadata"]["ownerReferences"] = [{"kind": "VirtualMachineInstance", "uid": uid} for uid in uids]
        await api.create(DEVICE, "tenant-a", body)
    assert not api.collect()
    await api.delete(VMI, "tenant-a", "v1")
    assert api.peek(DEVICE, "tenant-a", "d1"), "garbage is collected in the background"
    assert api.collect()
    assert [found["metadata"]["name"] for found in api.peek_all(DEVICE)] == ["d2", "d3"]


async def test_a_namespace_takes_its_content_along_and_nothing_new_comes_in_c47(api: MemoryCluster) -> None:
    body = device("d1")
    body["metadata"]["finalizers"] = ["x/one"]
    await api.create(DEVICE, "tenant-a", body)
    await api.create(DEVICE, "tenant-a", device("d2"))
    await api.delete(NAMESPACE, "", "tenant-a")
    with pytest.raises(Rejected, match="because it is being terminated"):
        await api.create(DEVICE, "tenant-a", device("d3"))
    while api.collect():
        pass
    assert [found["metadata"]["name"] for found in api.peek_all(DEVICE)] == ["d1"]
    assert api.peek(NAMESPACE, "", "tenant-a"), "it waits for the finalizer"
    await api.patch(DEVICE, "tenant-a", "d1", {"metadata": {"finalizers": []}})
    while api.collect():
        pass
    assert api.peek(NAMESPACE, "", "tenant-a") is None


async def test_lists_are_narrowed_and_in_the_order_of_the_server(api: MemoryCluster) -> None:
    for namespace, name, label in (("tenant-a", "b", "x"), ("default", "c", "x"), ("tenant-a", "a", "y")):
        await api.create(SETTINGS, namespace, {"metadata": {"name": name, "labels": {"l": label}}, "data": {"k": "v"}})

    async def names(**selection: str) -> list[str]:
        document = read(await api.list(SETTINGS, **selection))
        assert document["metadata"]["resourceVersion"] == api.resource_version
        return [item["metadata"]["name"] for item in document["items"]]

    assert await names() == ["c", "a", "b"]
    assert await names(namespace="tenant-a") == ["a", "b"]
    assert await names(namespace="tenant-a", name="b") == ["b"]
    assert await names(label_selector="l=x") == ["c", "b"]
    assert await names(label_selector="l!=x") == ["a"]
    assert await names(label_selector="l,l==x") == ["c", "b"]
    assert await names(label_selector="!l") == []
    with pytest.raises(Rejected, match="unable to parse label selector"):
        await names(label_selector="l in (x)")


async def test_a_kind_that_is_not_installed_is_missing_until_it_is_n8(api: MemoryCluster) -> None:
    """N8: foreign kinds may come and go."""
    await api.create(VMI, "tenant-a", named("v1", spec={}))
    api.uninstall_kind(VMI)
    for call in (
        api.list(VMI),
        api.get(VMI, "tenant-a", "v1"),
        api.create(VMI, "tenant-a", named("v2")),
        api.patch(VMI, "tenant-a", "v1", {}),
        api.delete(VMI, "tenant-a", "v1"),
    ):
        with pytest.raises(KindMissing):
            await call
    api.install_kind(VMI)
    assert read(await api.list(VMI))["items"] == [], "its objects went with it"


@pytest.mark.parametrize(
    ("kind", "spec", "complaint"),
    [
        (DEVICE, {}, "spec.className: Required value"),
        (DEVICE, {"className": ""}, "spec.className: Invalid value"),
        (DEVICE, {"className": "a", "count": 0}, "greater than or equal to 1"),
        (DEVICE, {"className": "a", "count": 1025}, "less than or equal to 1024"),
        (DEVICE, {"className": "a", "count": "2"}, "must be of type integer"),
        (CLASS, {"resourceName": "gpu", "mode": "VGPU"}, "must be an extended resource"),
        (CLASS, {"resourceName": "a/b", "mode": "Shared"}, 'supported values: "Passthrough", "VGPU"'),
        (CLASS, {"resourceName": "a/b", "mode": "VGPU", "maxCount": 0}, "spec.maxCount"),
    ],
)
async def test_our_kinds_have_bounds_o1_o2(
    api: MemoryCluster, kind: object, spec: dict[str, object], complaint: str
) -> None:
    """O1, O2."""
    with pytest.raises(Rejected, match="is invalid") as refused:
        await api.create(kind, "tenant-a" if kind is DEVICE else "", named("x", spec=spec))  # type: ignore[arg-type]
    assert complaint in refused.value.message


async def test_our_kinds_have_immutable_fields_o1_o2(api: MemoryCluster) -> None:
    """O1, O2."""
    await api.create(DEVICE, "tenant-a", device("d1"))
    await api.create(CLASS, "", named("c1", spec={"resourceName": "a/b", "mode": "VGPU"}))
    for spec in ({"className": "other"}, {"count": 2}):
        with pytest.raises(Rejected, match="immutable"):
            await api.patch(DEVICE, "tenant-a", "d1", {"spec": spec})
    for spec in ({"resourceName": "a/c"}, {"mode": "Passthrough"}):
        with pytest.raises(Rejected, match="immutable"):
            await api.patch(CLASS, "", "c1", {"spec": spec})
    await api.patch(CLASS, "", "c1", {"spec": {"maxCount": 4}})


async def test_a_review_is_answered_and_never_stored(api: MemoryCluster) -> None:
    api.answers[ACCESS_REVIEW.name] = lambda body: {**body, "status": {"allowed": body["spec"]["user"] == "ann"}}
    made = read(await api.create(ACCESS_REVIEW, "", {"spec": {"user": "ann"}}))
    assert made["status"] == {"allowed": True}
    assert read(await api.list(ACCESS_REVIEW))["items"] == []
