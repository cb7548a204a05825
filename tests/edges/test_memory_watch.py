"""Watches of the in-memory cluster: events, endings, failures (N7, C38, C39)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from reconciler.cluster.memory import Call, Fault, MemoryCluster
from reconciler.cluster.port import Expired, KindMissing, Rejected, Unavailable
from reconciler.core.model import wire
from reconciler.core.model.objects import NODE, SETTINGS
from reconciler.demo.virtual_time import VirtualTime
from tests.edges.memory_cluster import START_MS, Collected, named, read, settle


def labelled(name: str, value: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"l": value}}}


@pytest.fixture
def clock() -> VirtualTime:
    return VirtualTime(START_MS)


@pytest.fixture
def api(clock: VirtualTime) -> MemoryCluster:
    return MemoryCluster(clock.clock)


async def test_a_watch_sends_what_came_after_its_version(api: MemoryCluster) -> None:
    await api.create(NODE, "", named("n1"))
    start = api.resource_version
    await api.create(NODE, "", named("n2"))
    watch = Collected(api.watch(NODE, start, timeout_seconds=60))
    await settle()
    await api.patch(NODE, "", "n1", {"spec": {"unschedulable": True}})
    await api.create(SETTINGS, "default", named("other-kind"))
    await api.delete(NODE, "", "n2")
    await settle()
    assert watch.seen == [("ADDED", "n2"), ("MODIFIED", "n1"), ("DELETED", "n2")]
    versions = [int(line["object"]["metadata"]["resourceVersion"]) for line in watch.lines]
    assert versions == sorted(set(versions)), "a deletion has its own version"
    await watch.stop()


async def test_the_lines_are_what_the_product_decodes(api: MemoryCluster) -> None:
    lines = api.watch(NODE, api.resource_version, timeout_seconds=60)
    reading = asyncio.ensure_future(anext(lines))
    await settle()
    await api.create(NODE, "", named("n1", status={"allocatable": {"a/b": "2"}}))
    line = wire.decode_line(NODE, await reading)
    assert isinstance(line, wire.Changed) and line.object.name == "n1"
    await lines.aclose()
    listed = wire.decode_list(NODE, await api.list(NODE))
    assert [node.name for node in listed.objects] == ["n1"] and listed.resource_version == api.resource_version


async def test_a_selected_watch_sees_objects_come_into_view_and_leave_it(api: MemoryCluster) -> None:
    chosen = Collected(
        api.watch(SETTINGS, api.resource_version, namespace="default", label_selector="l=x", timeout_seconds=60)
    )
    single = Collected(api.watch(SETTINGS, api.resource_version, name="b", timeout_seconds=60))
    await settle()
    await api.create(SETTINGS, "default", labelled("a", "x"))
    await api.create(SETTINGS, "kube-system", labelled("a", "x"))
    await api.create(SETTINGS, "default", labelled("b", "y"))
    await api.patch(SETTINGS, "default", "b", {"metadata": {"labels": {"l": "x"}}})
    await api.patch(SETTINGS, "default", "a", {"metadata": {"labels": {"l": "y"}}})
    await settle()
    assert chosen.seen == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert single.seen == [("ADDED", "b"), ("MODIFIED", "b")]
    await chosen.stop()
    await single.stop()


async def test_the_server_ends_a_watch_in_time_with_a_bookmark(api: MemoryCluster, clock: VirtualTime) -> None:
    watch = Collected(api.watch(NODE, api.resource_version, timeout_seconds=120))
    await settle()
    await api.create(SETTINGS, "default", named("moves-the-version"))
    clock.skip(61)
    api.tick()
    await settle()
    assert watch.seen == [("BOOKMARK", api.resource_version)] and not watch.task.done()
    clock.skip(60)
    api.tick()
    await settle()
    assert watch.task.done() and watch.task.exception() is None
    assert len(watch.seen) == 2
    resumed = Collected(api.watch(NODE, watch.seen[-1][1], timeout_seconds=60))
    await settle()
    await api.create(NODE, "", named("n1"))
    await settle()
    assert resumed.seen == [("ADDED", "n1")]
    await resumed.stop()


async def test_a_version_older_than_the_window_is_expired_n7_c39(api: MemoryCluster) -> None:
    """N7, C39: the status form of 410."""
    old = api.resource_version
    await api.create(NODE, "", named("n1"))
    open_before = Collected(api.watch(NODE, old, timeout_seconds=60))
    await settle()
    api.compact()
    with pytest.raises(Expired, match="too old resource version"):
        await anext(api.watch(NODE, old, timeout_seconds=60))
    fresh = Collected(api.watch(NODE, api.resource_version, timeout_seconds=60))
    await settle()
    await api.create(NODE, "", named("n2"))
    await settle()
    assert fresh.seen == [("ADDED", "n2")]
    assert open_before.seen == [("ADDED", "n1"), ("ADDED", "n2")], "open streams go on"
    await fresh.stop()
    await open_before.stop()
    with pytest.raises(Rejected, match="must be a number"):
        await anext(api.watch(NODE, "None", timeout_seconds=60))


async def test_the_second_form_of_410_is_a_line_in_the_stream_n7_c39(api: MemoryCluster) -> None:
    """N7, C39: ERROR inside a 200 stream, then its end."""
    api.faults = lambda call: Fault.EXPIRED if call.verb == "event" and call.key.name == "n2" else None
    watch = Collected(api.watch(NODE, api.resource_version, timeout_seconds=60))
    await settle()
    await api.create(NODE, "", named("n1"))
    await api.create(NODE, "", named("n2"))
    await settle()
    assert [line["type"] for line in watch.lines] == ["ADDED", "ERROR"] and watch.task.done()
    error = wire.decode_line(NODE, b'{"type":"ERROR","object":%s}' % msgspec.json.encode(watch.lines[-1]["object"]))
    assert isinstance(error, wire.Failed) and error.code == 410


async def test_a_silent_watch_stays_open_past_its_time_until_healed_c38(api: MemoryCluster, clock: VirtualTime) -> None:
    """N7, C38: no event, no bookmark, no end; the client has to notice."""
    watch = Collected(api.watch(NODE, api.resource_version, timeout_seconds=60))
    await settle()
    api.watches.silence(NODE)
    await api.create(NODE, "", named("n1"))
    clock.skip(600)
    api.tick()
    await settle()
    assert watch.lines == [] and not watch.task.done()
    api.watches.heal()
    await settle()
    assert watch.seen[0] == ("ADDED", "n1")


async def test_watches_fail_as_the_hook_says(api: MemoryCluster) -> None:
    faults = {"watch": Fault.EXPIRED}
    api.faults = lambda call: faults.get(call.verb)
    with pytest.raises(Expired):
        await anext(api.watch(NODE, api.resource_version, timeout_seconds=60))
    faults["watch"] = Fault.DROPPED
    with pytest.raises(Unavailable):
        await anext(api.watch(NODE, api.resource_version, timeout_seconds=60))
    faults.clear()
    dropped = Collected(api.watch(NODE, api.resource_version, timeout_seconds=60))
    await settle()
    faults["event"] = Fault.DROPPED
    await api.create(NODE, "", named("n1"))
    await settle()
    assert isinstance(dropped.task.exception(), Unavailable) and dropped.lines == []
    assert api.watches.open == []


async def test_the_hook_can_silence_a_stream_before_an_event(api: MemoryCluster) -> None:
    silent = True

    def hook(call: Call) -> Fault | None:
        return Fault.SILENT if silent and call.verb == "event" else None

    api.faults = hook
    watch = Collected(api.watch(NODE, api.resource_version, timeout_seconds=60))
    await settle()
    await api.create(NODE, "", named("n1"))
    await settle()
    assert watch.lines == []
    silent = False
    api.watches.heal(NODE)
    await settle()
    assert watch.seen == [("ADDED", "n1")]
    await watch.stop()


async def test_watches_can_be_ended_dropped_and_lose_their_kind_n8(api: MemoryCluster) -> None:
    """N8: a kind that is uninstalled tells its objects' end, ends its watches and takes no new one."""
    await api.create(NODE, "", named("n1"))
    ended = Collected(api.watch(SETTINGS, api.resource_version, timeout_seconds=60))
    gone = Collected(api.watch(NODE, api.resource_version, timeout_seconds=60))
    await settle()
    api.close_watches(SETTINGS)
    api.uninstall_kind(NODE)
    await settle()
    assert ended.task.done() and ended.task.exception() is None
    assert gone.seen == [("DELETED", "n1")] and gone.task.done() and gone.task.exception() is None
    with pytest.raises(KindMissing):
        await anext(api.watch(NODE, api.resource_version, timeout_seconds=60))
    broken = Collected(api.watch(SETTINGS, api.resource_version, timeout_seconds=60))
    await settle()
    api.watches.drop()
    await settle()
    assert isinstance(broken.task.exception(), Unavailable)


async def test_a_watch_without_a_version_starts_with_what_is_there(api: MemoryCluster) -> None:
    await api.create(NODE, "", named("n1"))
    watch = Collected(api.watch(NODE, "0", timeout_seconds=60))
    await settle()
    assert watch.seen == [("ADDED", "n1")]
    assert read(await api.get(NODE, "", "n1")) == watch.lines[0]["object"]
    await watch.stop()
