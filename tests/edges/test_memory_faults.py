"""Fault injection into the in-memory cluster follows the hook, deterministically (B6, J5)."""

from __future__ import annotations

import asyncio

import pytest

from reconciler.cluster.memory import Call, Fault, MemoryCluster
from reconciler.cluster.port import Conflict, Unavailable
from reconciler.core.model.objects import DEVICE, Key
from tests.edges.memory_cluster import cluster, device, read, settle


@pytest.fixture
async def api() -> MemoryCluster:
    made = cluster()
    await made.create(DEVICE, "default", device("d1"))
    return made


def phase(api: MemoryCluster) -> object:
    document = api.peek(DEVICE, "default", "d1")
    assert document is not None
    return document.get("status", {}).get("phase")


def hold(api: MemoryCluster) -> asyncio.Task[bytes]:
    patch = {"status": {"phase": "Held"}}
    return asyncio.ensure_future(api.patch(DEVICE, "default", "d1", patch, subresource="status"))


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (Fault.CONFLICT, Conflict, None),
        (Fault.UNAVAILABLE, Unavailable, None),
        (Fault.LOST_ANSWER, Unavailable, "Held"),
    ],
)
async def test_a_write_fails_before_or_after_it_was_done(
    api: MemoryCluster, fault: Fault, error: type[Exception], applied: object
) -> None:
    api.faults = lambda call: fault if call.verb == "patch" else None
    with pytest.raises(error):
        await hold(api)
    assert phase(api) == applied
    assert [entry.applied for entry in api.writes[1:]] == ([True] if applied else [])


async def test_an_answer_that_is_an_error_can_be_lost_too(api: MemoryCluster) -> None:
    api.faults = lambda call: Fault.LOST_ANSWER
    with pytest.raises(Unavailable):
        await api.create(DEVICE, "default", device("d1"))


async def test_a_delayed_write_is_done_when_it_is_released(api: MemoryCluster) -> None:
    api.faults = lambda call: Fault.DELAYED if call.verb == "patch" else None
    write = hold(api)
    await settle()
    assert phase(api) is None and not write.done()
    (held,) = api.held
    assert held.call.key == Key("GPUDevice", "default", "d1")
    held.release()
    assert read(await write)["status"] == {"phase": "Held"} and api.held == ()


async def test_a_delayed_answer_is_of_a_write_that_is_done(api: MemoryCluster) -> None:
    api.faults = lambda call: Fault.DELAYED_ANSWER if call.verb == "patch" else None
    write = hold(api)
    await settle()
    assert phase(api) == "Held" and not write.done()
    api.fault_injector.release_all()
    await write


async def test_a_caller_that_gives_up_leaves_no_held_call(api: MemoryCluster) -> None:
    api.faults = lambda call: Fault.DELAYED
    write = hold(api)
    await settle()
    write.cancel()
    await asyncio.wait([write])
    assert api.held == () and phase(api) is None


async def test_the_hook_is_told_who_does_what(api: MemoryCluster) -> None:
    calls: list[Call] = []

    def hook(call: Call) -> None:
        calls.append(call)

    api.faults = hook
    binder = api.as_user("binder")
    await binder.list(DEVICE, namespace="default")
    await binder.get(DEVICE, "default", "d1")
    await binder.patch(DEVICE, "default", "d1", {"status": {"phase": "Held"}}, subresource="status")
    await binder.create(DEVICE, "default", device("d2"))
    await binder.delete(DEVICE, "default", "d2")
    assert [(call.verb, call.key.name, call.subresource) for call in calls] == [
        ("list", "", ""),
        ("get", "d1", ""),
        ("patch", "d1", "status"),
        ("create", "d2", ""),
        ("delete", "d2", ""),
    ]
    assert {call.user for call in calls} == {"binder"} and calls[2].body == {"status": {"phase": "Held"}}
    assert [entry.user for entry in api.writes if entry.user == "binder"] == ["binder"] * 3
