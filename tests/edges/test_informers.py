"""Informers over HTTP and their cache."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from kubernetes.aio.client import Configuration

from journal.events import (
    ControllerStarted,
    Entry,
    Event,
    KindListed,
    ObjectDeleted,
    ObjectObserved,
    ObjectUnreadable,
    ReportSilenced,
)
from reconciler.cluster.cache import ObjectCache
from reconciler.cluster.credentials import Credentials
from reconciler.cluster.informer import ABSENCES, Informer
from reconciler.cluster.informers import InformerEnded, Informers, Timing
from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.port import Cluster, Unavailable
from reconciler.core.fold import fold
from reconciler.core.model import wire
from reconciler.core.model.objects import CLASS, DEVICE, GPU_NODE, KINDS, NODE, POD, RELEASE, SETTINGS, VMI, Key, Kind
from reconciler.core.state.placement_state import PlacementState
from reconciler.demo.virtual_time import VirtualTime
from tests.edges.fake_api import FakeApi, collection, refusal
from tests.edges.memory_cluster import START_MS

STALE_SECONDS = 120.0
LAST_SEEN = 1_700_000_000_000


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    api.install(*KINDS.values())
    await api.start()
    yield api
    await api.stop()


@pytest.fixture
async def cluster(api: FakeApi) -> AsyncIterator[KubeCluster]:
    async def nothing(configuration: Configuration) -> None:
        return None

    configuration = Configuration(host=api.url)
    cluster = KubeCluster(configuration, Credentials(configuration, nothing), watch_slack_seconds=0.1)
    yield cluster
    await cluster.close()


class Told:
    """The events emitted so far, and a wait for more."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.waits: list[float] = []
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    async def sleep(self, seconds: float) -> None:
        """Backoff without the wait; what was asked for is kept."""
        self.waits.append(seconds)
        await asyncio.sleep(0.001)

    async def until(self, holds: Callable[[list[Event]], Any]) -> None:
        async with asyncio.timeout(20):
            while not holds(self.events):
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.05)

    def summary(self) -> list[str]:
        return [summary(event) for event in self.events]


def summary(event: Event) -> str:
    match event:
        case ObjectObserved():
            return f"{event.source} {event.name} {event.uid}"
        case ObjectDeleted():
            return f"deleted {event.name} {event.uid}" if event.seen else f"missed {event.name} {event.uid}"
        case ObjectUnreadable():
            return f"unreadable {event.name} {event.error}"
        case KindListed():
            return f"missing {event.kind}" if event.missing else f"listed {event.kind}"
        case ReportSilenced():
            return f"silent {event.node}"
    return repr(event)


def timing(told: Told, *, watch_seconds: float = 10.0) -> Timing:
    time = VirtualTime(START_MS)
    return Timing(
        clock=time.clock,
        timer=asyncio.get_running_loop().time,
        sleep=told.sleep,
        jitter=lambda: 1.0,
        watch_seconds=watch_seconds,
    )


@contextlib.asynccontextmanager
async def following(
    cluster: Cluster, kind: Kind, told: Told, *, watch_seconds: float = 10.0
) -> AsyncIterator[Informer]:
    informer = Informer(
        kind, cluster, told, timing(told, watch_seconds=watch_seconds), report_stale_seconds=STALE_SECONDS
    )
    task = asyncio.create_task(informer.run())
    yield informer
    assert not task.done(), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def has(*wanted: str) -> Callable[[list[Event]], bool]:
    return lambda events: set(wanted) <= {summary(event) for event in events}


def settled(event: Event) -> bool:
    return isinstance(event, KindListed)


async def test_a_first_list_then_what_changes_and_nothing_for_what_the_model_does_not_read(
    cluster: KubeCluster, api: FakeApi
) -> None:
    """J3: labels of a pod's managed fields make no event."""
    await api.put(POD, "p1", "tenant-a", uid="u1", status={"phase": "Pending"})
    told = Told()
    async with following(cluster, POD, told) as informer:
        await told.until(has("listed Pod"))
        await api.put(POD, "p1", "tenant-a", status={"phase": "Pending", "message": "pulling"})
        await api.put(POD, "p1", "tenant-a", status={"phase": "Running"})
        await api.remove(POD, "p1", "tenant-a")
        await told.until(has("deleted p1 u1"))
        assert informer.synced
    assert told.summary() == ["list p1 u1", "listed Pod", "watch p1 u1", "deleted p1 u1"]


async def test_C38_a_watch_that_stays_open_and_silent_is_replaced(cluster: KubeCluster, api: FakeApi) -> None:
    api.mute.add(collection(NODE))
    told = Told()
    async with following(cluster, NODE, told, watch_seconds=0.1) as informer:
        await told.until(has("listed Node"))
        await api.put(NODE, "n2", uid="u2")
        await told.until(has("list n2 u2"))
        assert informer.restarts
        api.mute.clear()
        await told.until(lambda events: settled(events[-1]))
        await api.put(NODE, "n3", uid="u3")
        await told.until(lambda events: any(getattr(event, "name", "") == "n3" for event in events))
        assert not informer.problem


async def test_C39_N7_an_expired_version_in_both_forms_leads_to_a_fresh_list(
    cluster: KubeCluster, api: FakeApi
) -> None:
    await api.put(DEVICE, "d1", "tenant-a", uid="u1", spec={"className": "a"})
    await api.put(NODE, "n1", uid="un")
    told = Told()
    async with following(cluster, DEVICE, told) as informer:
        await told.until(has("listed GPUDevice"))
        await api.remove(DEVICE, "d1", "tenant-a", told=False)
        await api.put(DEVICE, "d2", "tenant-a", uid="u2", told=False, spec={"className": "a"})
        await api.say(DEVICE, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})
        await told.until(has("missed d1 u1", "list d2 u2"))
        restarts = informer.restarts
        await api.remove(DEVICE, "d2", "tenant-a", told=False)
        await api.say(DEVICE, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5"}}})
        await told.until(lambda events: informer._version == "5")
        api.forget()
        await api.cut()
        await told.until(has("missed d2 u2"))
        assert informer.restarts > restarts
    assert all(wait >= 0.25 for wait in told.waits), "410 must not be answered without a pause"
    assert told.summary()[:5] == [
        "list d1 u1",
        "listed GPUDevice",
        "missed d1 u1",
        "list d2 u2",
        "listed GPUDevice",
    ]
    missed = told.events[2]
    assert isinstance(missed, ObjectDeleted)
    assert missed.last_seen == VirtualTime(START_MS).clock()


@pytest.mark.parametrize(
    "line",
    [
        {"type": "ERROR", "object": {}},
        {"type": "ERROR", "object": None},
        {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is away"}},
        {"type": "NEWS", "object": {"metadata": {}}},
        [],
    ],
)
async def test_C39_a_line_that_says_nothing_useful_ends_the_watch_and_nothing_else(
    cluster: KubeCluster, api: FakeApi, line: Any
) -> None:
    told = Told()
    async with following(cluster, NODE, told) as informer:
        await told.until(has("listed Node"))
        await api.say(NODE, line)
        await told.until(lambda events: informer.restarts)
        await api.put(NODE, "n1", uid="u1")
        await told.until(lambda events: any(getattr(event, "name", "") == "n1" for event in events))


async def test_R10_a_new_object_under_an_old_name_ends_the_old_one_first(cluster: KubeCluster, api: FakeApi) -> None:
    await api.put(DEVICE, "d", "tenant-a", uid="old", spec={"className": "a"})
    told = Told()
    async with following(cluster, DEVICE, told):
        await told.until(has("listed GPUDevice"))
        await api.put(DEVICE, "d", "tenant-a", uid="new", spec={"className": "a"})
        await told.until(has("watch d new"))
    assert told.summary()[-2:] == ["missed d old", "watch d new"]


async def test_R10_a_broken_object_is_set_aside_once_and_read_when_it_heals(cluster: KubeCluster, api: FakeApi) -> None:
    """C42: the object that would kill a careless loop."""
    await api.put(DEVICE, "bad", "tenant-a", uid="u1", spec={"className": "a", "count": "many"})
    await api.put(DEVICE, "good", "tenant-a", uid="u2", spec={"className": "a"})
    told = Told()
    async with following(cluster, DEVICE, told):
        await told.until(has("listed GPUDevice", "list good u2"))
        await api.put(
            DEVICE, "bad", "tenant-a", spec={"className": "a", "count": "many"}, metadata={"labels": {"a": "b"}}
        )
        await api.put(DEVICE, "bad", "tenant-a", spec={"className": "a", "count": 2})
        await told.until(has("watch bad u1"))
    broken = [event for event in told.events if isinstance(event, ObjectUnreadable)]
    assert len(broken) == 1
    assert "count" in broken[0].error
    assert (broken[0].namespace, broken[0].name, broken[0].uid) == ("tenant-a", "bad", "u1")


async def test_N8_a_kind_that_is_not_installed_is_told_once_and_picked_up(cluster: KubeCluster, api: FakeApi) -> None:
    api.uninstall(VMI)
    told = Told()
    async with following(cluster, VMI, told) as informer:
        await told.until(has("missing VirtualMachineInstance"))
        assert informer.synced
        assert informer.restarts >= ABSENCES - 1
        asked = len(api.requests)
        await api.asked(asked + 3)
        api.install(VMI)
        await api.put(VMI, "vm", "tenant-a", uid="u1")
        await told.until(has("listed VirtualMachineInstance"))
        assert not informer.missing
    assert told.summary() == [
        "missing VirtualMachineInstance",
        "list vm u1",
        "listed VirtualMachineInstance",
    ]
    assert told.waits == sorted(told.waits)


async def test_R3_one_answer_that_a_kind_is_missing_is_not_believed(cluster: KubeCluster, api: FakeApi) -> None:
    await api.put(RELEASE, "tenant-a", "tenant-root", uid="u1")
    api.next.extend(refusal(404, message="404 page not found") for _ in range(ABSENCES - 1))
    told = Told()
    async with following(cluster, RELEASE, told):
        await told.until(has("listed HelmRelease"))
    assert told.summary() == ["list tenant-a u1", "listed HelmRelease"]


async def test_N8_our_own_kinds_are_waited_for(cluster: KubeCluster, api: FakeApi) -> None:
    api.uninstall(CLASS)
    told = Told()
    async with following(cluster, CLASS, told) as informer:
        await api.asked(ABSENCES * 3)
        assert not informer.synced
        assert "not installed" in informer.problem
        api.install(CLASS)
        await told.until(has("listed GPUClass"))
    assert told.summary() == ["listed GPUClass"]


async def test_a_version_the_server_cannot_serve_is_given_up_for_a_list(cluster: KubeCluster, api: FakeApi) -> None:
    """A lower version is never a reason to stop for good."""
    await api.put(NODE, "n1", uid="u1", spec={"unschedulable": True})
    told = Told()
    async with following(cluster, NODE, told):
        await told.until(has("listed Node"))
        await api.asked(2)
        api.objects[collection(NODE)].clear()
        api.history[collection(NODE)].clear()
        api.version = 3
        await api.put(NODE, "n1", uid="u1", told=False)
        api.next.extend(refusal(504, "Timeout", "Too large resource version") for _ in range(2))
        await api.cut()
        await told.until(lambda events: [summary(event) for event in events].count("list n1 u1") == 2)


async def test_C44_a_refused_token_is_survived(cluster: KubeCluster, api: FakeApi) -> None:
    api.tokens = {"none of ours"}
    told = Told()
    async with following(cluster, NODE, told) as informer:
        await told.until(lambda events: informer.restarts > 2)
        assert "Unauthorized" in informer.problem
        api.tokens = None
        await told.until(has("listed Node"))


async def test_a_server_that_asks_for_patience_is_given_it(cluster: KubeCluster, api: FakeApi) -> None:
    api.next.append(refusal(429, "TooManyRequests", "slow down", {"Retry-After": "9"}))
    told = Told()
    async with following(cluster, NODE, told):
        await told.until(has("listed Node"))
    assert told.waits[0] == 9.0


async def test_B6_an_object_read_again_is_told_though_nothing_changed(cluster: KubeCluster, api: FakeApi) -> None:
    await api.put(DEVICE, "d", "tenant-a", uid="u1", spec={"className": "a"})
    told = Told()
    async with following(cluster, DEVICE, told) as informer:
        await told.until(has("listed GPUDevice"))
        await informer.reread("tenant-a", "d")
        await api.remove(DEVICE, "d", "tenant-a", told=False)
        await informer.reread("tenant-a", "d")
        await informer.reread("tenant-a", "d")
    assert told.summary() == ["list d u1", "listed GPUDevice", "read d u1", "deleted d u1"]


def informers(cluster: Cluster, told: Told, timing: Timing) -> Informers:
    return Informers(cluster, told, timing, settings_namespace="here", report_stale_ms=120_000)


async def test_R9_K4_R2_all_kinds_are_listed_and_only_what_is_needed_of_them(
    cluster: KubeCluster, api: FakeApi
) -> None:
    told, stop = Told(), asyncio.Event()
    every = informers(cluster, told, timing(told))
    assert not every.synced
    running = asyncio.create_task(every.run(stop))
    await told.until(lambda events: every.synced)
    stop.set()
    await running
    assert sorted(event.kind for event in told.events if isinstance(event, KindListed)) == sorted(KINDS)
    asked = {request.path: query for request, query in zip(api.requests, api.queries, strict=True)}
    assert asked["/api/v1/namespaces/here/configmaps"]["fieldSelector"] == "metadata.name=gpu-settings"
    assert asked[collection(RELEASE)]["labelSelector"] == "apps.cozystack.io/application.kind=Tenant"
    assert collection(SETTINGS) not in asked


async def test_C38_a_watch_task_that_dies_ends_all_of_them(cluster: KubeCluster, api: FakeApi) -> None:
    class Dying:
        def __getattr__(self, name: str) -> Any:
            return getattr(cluster, name)

        def watch(self, kind: Kind, resource_version: str, **more: Any) -> AsyncIterator[bytes]:
            if kind is POD:
                raise ZeroDivisionError("a bug")
            return cluster.watch(kind, resource_version, **more)

    told = Told()
    with pytest.raises(InformerEnded, match=r"Pod.*a bug"):
        async with asyncio.timeout(20):
            await informers(Dying(), told, timing(told)).run(asyncio.Event())


async def test_N7_liveness_names_the_kind_that_is_not_heard_of(cluster: KubeCluster, api: FakeApi) -> None:
    time, told = VirtualTime(START_MS), Told()
    every = informers(cluster, told, Timing(clock=time.clock, timer=time.timer, sleep=told.sleep))
    running = asyncio.create_task(every.run(asyncio.Event()))
    await told.until(lambda events: every.synced)
    assert every.unhealthy(time.timer()) == []
    time.skip(301)
    for kind in KINDS.values():
        if kind is not NODE:
            name, namespace = ("gpu-settings", "here") if kind is SETTINGS else ("x", "tenant-a" * kind.namespaced)
            await api.put(kind, name, namespace)
    await told.until(lambda events: len(every.unhealthy(time.timer())) == 1)
    assert every.unhealthy(time.timer()) == ["Node: silent for 301 s"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_B6_a_reread_waits_for_an_answer(cluster: KubeCluster, api: FakeApi) -> None:
    await api.put(DEVICE, "d", "tenant-a", uid="u1", spec={"className": "a"})
    told = Told()
    every = informers(cluster, told, timing(told))
    api.next.extend(refusal(500, "InternalError", "etcd") for _ in range(3))
    await every.reread("GPUDevice", "tenant-a", "d")
    assert told.summary() == ["read d u1"]
    assert len(told.waits) == 3
    api.uninstall(DEVICE)
    await every.reread("GPUDevice", "tenant-a", "d")


async def test_U2_J3_a_restart_tells_only_what_changed_meanwhile(cluster: KubeCluster, api: FakeApi) -> None:
    for name in ("gone", "kept", "moved"):
        await api.put(DEVICE, name, "tenant-a", uid=f"u-{name}", spec={"className": "a"})
    await api.put(DEVICE, "broken", "tenant-a", uid="u-broken", spec={"className": "a", "count": -1})
    state, told = PlacementState(), Told()
    async with following(cluster, DEVICE, told):
        await told.until(has("listed GPUDevice"))
    for seq, event in enumerate(told.events, 1):
        fold(state, Entry(seq=seq, batch=1, at=LAST_SEEN, event=event))
    await api.remove(DEVICE, "gone", "tenant-a")
    await api.put(DEVICE, "moved", "tenant-a", spec={"className": "a"}, metadata={"generation": 2})
    fold(state, Entry(seq=100, batch=2, at=LAST_SEEN + 5, event=ControllerStarted("me", "1")))

    told, stop = Told(), asyncio.Event()
    every = informers(cluster, told, timing(told))
    every.seed(state)
    running = asyncio.create_task(every.run(stop))
    await told.until(lambda events: every.synced)
    stop.set()
    await running
    found = [event for event in told.events if getattr(event, "kind", "") == DEVICE.name]
    assert [summary(event) for event in found] == ["missed gone u-gone", "list moved u-moved", "listed GPUDevice"]
    assert isinstance(found[0], ObjectDeleted)
    assert found[0].last_seen == LAST_SEEN + 5


# What is news, without HTTP


def device(name: str = "d", uid: str = "u1", version: str = "10", **spec: Any) -> bytes:
    metadata = {"name": name, "namespace": "tenant-a", "uid": uid, "resourceVersion": version}
    return msgspec.json.encode({"metadata": metadata, "spec": {"className": "a", **spec}})


def line(type: str, body: bytes) -> Any:
    return wire.decode_line(DEVICE, b'{"type":"%s","object":%s}' % (type.encode(), body))


def listing(version: str, *bodies: bytes) -> wire.Listed:
    return wire.decode_list(
        DEVICE, b'{"metadata":{"resourceVersion":"%s"},"items":[%s]}' % (version.encode(), b",".join(bodies))
    )


def cache(kind: Kind = DEVICE) -> tuple[ObjectCache, list[Event]]:
    told: list[Event] = []
    return ObjectCache(kind, told.append, report_stale_seconds=STALE_SECONDS), told


def test_B6_a_watch_that_lags_behind_a_read_takes_nothing_back() -> None:
    seen, told = cache()
    seen.list_begins()
    seen.listed(listing("10", device(version="10")), 0, 0)
    address = ("tenant-a", "d")
    seen.read(address, wire.decode_object(DEVICE, device(version="12", count=2)), 0, 0)
    seen.watched(line("MODIFIED", device(version="11")), 0, 0)
    seen.read(address, wire.decode_object(DEVICE, device(version="11")), 0, 0)
    assert [msgspec.json.decode(event.object).get("count", 1) for event in told] == [1, 2, 2]  # type: ignore[attr-defined]
    seen.watched(line("MODIFIED", device(version="13")), 0, 0)
    assert [summary(event) for event in told] == ["list d u1", "read d u1", "read d u1", "watch d u1"]


def test_R10_what_a_read_found_gone_does_not_come_back_from_a_lagging_watch_or_list() -> None:
    seen, told = cache()
    seen.list_begins()
    seen.listed(listing("10", device()), 0, 0)
    seen.list_begins()
    seen.read(("tenant-a", "d"), None, 0, 0)
    seen.watched(line("MODIFIED", device(version="11", count=2)), 0, 0)
    seen.listed(listing("11", device(version="11", count=2)), 0, 0)
    seen.watched(line("DELETED", device(version="12")), 0, 0)
    seen.watched(line("ADDED", device(uid="u2", version="13")), 0, 0)
    assert [summary(event) for event in told] == ["list d u1", "deleted d u1", "watch d u2"]


def test_B6_a_list_overtaken_by_a_read_loses_nothing() -> None:
    seen, told = cache()
    seen.list_begins()
    seen.read(("tenant-a", "d"), wire.decode_object(DEVICE, device(version="12", count=2)), 0, 0)
    seen.read(("tenant-a", "e"), wire.decode_object(DEVICE, device("e", "u2", "13")), 0, 0)
    seen.listed(listing("11", device(version="11")), 0, 0)
    assert [summary(event) for event in told] == ["read d u1", "read e u2"]
    seen.list_begins()
    seen.read(("tenant-a", "e"), wire.decode_object(DEVICE, device("e", "u2", "13")), 0, 0)
    seen.listed(listing("14", device(version="14", count=3)), 0, 0)
    assert [summary(event) for event in told[2:]] == ["read e u2", "missed e u2", "list d u1"]


def test_J5_a_list_beside_the_watch_adds_what_it_knows_and_revives_nothing() -> None:
    seen, told = cache()
    seen.watched(line("ADDED", device(version="5")), 0, 0)
    seen.watched(line("ADDED", device("e", "u2", "6")), 0, 0)
    seen.list_begins()
    with seen.listing_alongside() as removed:
        seen.watched(line("DELETED", device(version="12")), 0, 0)
        seen.watched(line("MODIFIED", device("e", "u2", "13", count=3)), 0, 0)
        beside = [device(version="5"), device("e", "u2", "10", count=2), device("f", "u3", "11")]
        seen.caught_up(listing("11", *beside), removed, 0, 0)
    assert [summary(event) for event in told[2:]] == ["deleted d u1", "watch e u2", "watch f u3"]
    seen.listed(listing("9", device("e", "u2", "9", count=3)), 0, 0)
    assert len(told) == 5, "the list that began earlier takes nothing back"


async def test_J5_a_new_leader_catches_up_on_a_watch_that_lags(cluster: KubeCluster, api: FakeApi) -> None:
    told = Told()
    async with following(cluster, DEVICE, told) as informer:
        await told.until(has("listed GPUDevice"))
        await api.put(DEVICE, "d", "tenant-a", uid="u1", told=False, spec={"className": "a"})
        await informer.catch_up()
        assert told.summary()[-1] == "watch d u1"
        api.next.append(refusal(200, message="no list"))
        with pytest.raises(Unavailable, match="cannot be read"):
            await informer.catch_up()


def test_R10_a_late_delete_of_the_old_object_changes_nothing() -> None:
    seen, told = cache()
    seen.watched(line("ADDED", device(uid="new")), 0, 0)
    seen.watched(line("DELETED", device(uid="old", version="11")), 0, 0)
    assert [summary(event) for event in told] == ["watch d new"]


def test_R10_an_object_that_becomes_unreadable_keeps_its_identity() -> None:
    seen, told = cache()
    seen.watched(line("ADDED", device()), 0, 0)
    nameless = b'{"metadata":{"name":"d","namespace":"tenant-a","uid":7,"resourceVersion":"11"}}'
    seen.watched(line("MODIFIED", nameless), 0, 0)
    assert isinstance(told[1], ObjectUnreadable)
    assert told[1].uid == "u1"
    seen.watched(line("DELETED", device(version="12")), 0, 0)
    assert summary(told[2]) == "deleted d u1"


def test_J5_a_consistent_list_shows_that_versions_went_back() -> None:
    seen, told = cache()
    seen.list_begins()
    seen.listed(listing("20", device(version="15")), 0.0, 0)
    seen.list_begins()
    assert seen.went_back(listing("20", device(version="15")), seen.highest) is None
    assert seen.went_back(listing("19", device(version="15")), seen.highest) == ("20", "19")
    assert seen.went_back(listing("30", device(version="14")), seen.highest) == ("15", "14"), "a known uid"
    assert seen.went_back(listing("30", device(version="14", uid="u2")), seen.highest) is None, "another object"
    seen.read(("tenant-a", "d"), wire.decode_object(DEVICE, device(version="40")), 0.0, 0)
    assert seen.went_back(listing("30", device(version="25")), "20") is None, "a read overtook the list"
    seen.start_anew()
    told.clear()
    seen.list_begins()
    seen.listed(listing("10", device(version="9")), 0.0, 0)
    assert [summary(event) for event in told] == ["list d u1"]
    seen.watched(line("MODIFIED", device(version="11")), 0.0, 0)
    assert seen.highest == "11"


def report(at: str, name: str = "n1", **function: Any) -> Any:
    functions = [{"id": "0000:3b:00.0", "kind": "Physical", "resourceName": "nvidia.com/A", "healthy": True} | function]
    body = {
        "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": at[-3:-1]},
        "status": {"reportedAt": at, "functions": functions},
    }
    return wire.decode_line(GPU_NODE, msgspec.json.encode({"type": "MODIFIED", "object": body}))


def test_R5_a_report_falls_silent_by_our_own_clock_and_its_return_is_told() -> None:
    """J3: reports that only say "still here" make no events; the clocks of nodes do not matter."""
    seen, told = cache(GPU_NODE)
    seen.watched(report("2020-01-01T00:00:10Z"), 0.0, 0)
    seen.watched(report("2020-01-01T00:00:20Z"), 100.0, 0)
    seen.silence(219.0)
    assert [summary(event) for event in told] == ["watch n1 u-n1"]
    seen.watched(report("2020-01-01T00:00:20Z"), 219.0, 0)
    seen.silence(220.0)
    seen.silence(221.0)
    seen.watched(report("2020-01-01T00:00:20Z"), 222.0, 0)
    assert [summary(event) for event in told] == ["watch n1 u-n1", "silent n1"]
    seen.watched(report("2020-01-01T00:00:30Z"), 223.0, 0)
    seen.silence(224.0)
    seen.silence(343.0)
    assert [summary(event) for event in told[2:]] == ["watch n1 u-n1", "silent n1"]


def test_R5_a_silent_node_stays_silent_over_a_restart() -> None:
    seen, told = cache(GPU_NODE)
    old = report("2020-01-01T00:00:10Z").object
    other = report("2020-01-01T00:00:10Z", "n2").object
    seen.seed([old, other], [], ["n1"])
    seen.list_begins()
    seen.listed(wire.Listed("50", [old, other], []), 1.0, 0)
    seen.silence(120.0)
    assert told == []
    seen.silence(121.0)
    assert [summary(event) for event in told] == ["silent n2"]
    seen.watched(report("2020-01-01T00:00:20Z"), 130.0, 0)
    assert summary(told[-1]) == "watch n1 u-n1"


def test_R5_a_report_found_at_a_start_is_judged_by_its_own_time_within_the_clocks_margin() -> None:
    told: list[Event] = []
    seen = ObjectCache(GPU_NODE, told.append, report_stale_seconds=STALE_SECONDS, report_margin_seconds=60.0)
    found = [report("2020-01-01T00:00:10Z", name).object for name in ("n1", "n2")]
    seen.list_begins()
    seen.listed(wire.Listed("50", found, []), 0.0, 0, found[0].reported_at + 179_000)
    assert [summary(event) for event in told] == ["list n1 u-n1", "list n2 u-n2"]
    seen.watched(report("2020-01-01T00:00:40Z"), 0.5, 0)
    seen.watched(report("2020-01-01T00:01:10Z"), 0.6, 0)
    assert summary(told[-1]) == "watch n1 u-n1" and len(told) == 3, "the first change is told, the next is not (J3)"
    seen.silence(1.0)
    assert [summary(event) for event in told[3:]] == ["silent n2"]


def test_R5_a_report_found_stale_is_silent_before_the_list_is_complete() -> None:
    told: list[Event] = []
    seen = ObjectCache(GPU_NODE, told.append, report_stale_seconds=STALE_SECONDS, report_margin_seconds=60.0)
    old = report("2020-01-01T00:00:10Z").object
    seen.list_begins()
    seen.listed(wire.Listed("50", [old], []), 0.0, 0, old.reported_at + 3_600_000)
    assert [summary(event) for event in told] == ["list n1 u-n1", "silent n1"]
    ahead = report("2020-01-01T05:00:10Z", "n2").object
    seen.list_begins()
    seen.listed(wire.Listed("51", [old, ahead], []), 1.0, 0, old.reported_at + 3_601_000)
    seen.silence(120.0)
    assert [summary(event) for event in told[2:]] == ["list n2 u-n2"], "a clock that is ahead makes no report older"


def test_R5_a_report_that_is_deleted_or_broken_is_not_waited_for() -> None:
    seen, told = cache(GPU_NODE)
    seen.watched(report("2020-01-01T00:00:10Z"), 0.0, 0)
    seen.watched(report("2020-01-01T00:00:20Z", healthy="yes"), 1.0, 0)
    seen.watched(report("2020-01-01T00:00:30Z", "n2"), 2.0, 0)
    seen.watched(wire.Removed(Key(GPU_NODE.name, "", "n2"), "u-n2"), 3.0, 0)
    seen.silence(1_000.0)
    assert not any(isinstance(event, ReportSilenced) for event in told)
