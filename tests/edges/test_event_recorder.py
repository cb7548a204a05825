"""Kubernetes Events on the affected objects, once each, without holding up the loop (N4, C13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from journal import events
from journal.store import MemoryJournal
from reconciler.cluster.memory import Call, Fault
from reconciler.cluster.memory.manifests import vmi_body
from reconciler.cluster.memory.tenant_actions import document
from reconciler.cluster.port import ClusterError, Rejected
from reconciler.core.model.objects import CLASS, DEVICE, EVENT, NODE, RELEASE, VM, VMI, Device
from reconciler.core.model.wire_base import to_ms
from reconciler.core.state.decisions import Action
from reconciler.demo.environment import Environment
from reconciler.runtime.observability.event_messages import NORMAL, WARNING, Notice, Regarding, of_decision
from reconciler.runtime.observability.event_recorder import MAX_NOTE_BYTES, MAX_QUEUED, EventRecorder
from tests.core.world import NS as WORLD_NS
from tests.core.world import World

A10 = "nvidia.com/GA102GL_A10"
NS = "tenant-acme"


class Told:
    """One replica with its event recorder."""

    def __init__(self) -> None:
        self.env = Environment()
        self.ecosystem = self.env.ecosystem
        self.event_recorder = EventRecorder(
            self.env.cluster.as_user("announcer"),
            identity="r0",
            clock=self.env.time.clock,
            sleep=self.env.time.sleep,
        )
        self.replica: Any = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, quotas: dict[str, Any] | None = None) -> None:
        """One node with two units, a class, a tenant, a leader."""
        await self.env.open()
        await self.ecosystem.add_node("n1", {A10: 2})
        await self.ecosystem.kubevirt({A10: "10DE:2236"})
        await self.ecosystem.gpu_class("a10", A10)
        await self.ecosystem.tenant("acme", quotas=quotas or {})
        self.replica = await self.env.add_replica(MemoryJournal(), "r0", observers=(self.event_recorder,))
        self._task = asyncio.ensure_future(self.event_recorder.run())
        await self.env.later(3)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await self.env.close()

    def events(self, kind: str = "", name: str = "") -> list[dict[str, Any]]:
        """The Events there are, by time of creation, on a kind and a name."""
        found = [
            event
            for event in self.env.cluster.peek_all(EVENT)
            if kind in ("", event["regarding"]["kind"]) and name in ("", event["regarding"]["name"])
        ]
        return sorted(found, key=lambda event: (event["eventTime"], int(event["metadata"]["resourceVersion"])))

    def reasons(self, kind: str, name: str) -> list[tuple[str, str]]:
        return [(event["type"], event["reason"]) for event in self.events(kind, name)]


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    made = Told()
    yield made
    await made.close()


async def test_N4_a_device_tells_its_life_and_its_machine_shares_what_concerns_it(told: Told) -> None:
    await told.open()
    await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    await told.env.do(told.ecosystem.vmi(NS, "vm", ["one"]))
    await told.env.later(2)
    await told.env.do(told.ecosystem.allocatable("n1", {A10: 0}))
    await told.env.later(90)
    await told.env.do(told.ecosystem.allocatable("n1", {A10: 2}))
    await told.env.later(5)
    await told.env.do(told.ecosystem.finish(NS, "vm"))
    await told.env.later(5)
    assert told.reasons(DEVICE.name, "one") == [
        (NORMAL, "Held"), (NORMAL, "Bound"), (WARNING, "Lost"), (NORMAL, "Restored"), (NORMAL, "Released"),
    ]  # fmt: skip
    assert told.reasons(VMI.name, "vm") == [(NORMAL, "Bound"), (WARNING, "Lost"), (NORMAL, "Restored")]
    assert "device one" in told.events(VMI.name, "vm")[1]["note"]


async def machine(told: Told, name: str, devices: list[str]) -> dict[str, Any]:
    """A VirtualMachine, whose VMI its controller then creates; the VirtualMachine."""
    cluster = told.env.cluster
    vm = cluster.peek(VM, NS, name) or document(await cluster.create(VM, NS, {"metadata": {"name": name}}))
    body = vmi_body(name, devices)
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": VM.api_version, "kind": VM.name, "name": name, "uid": vm["metadata"]["uid"], "controller": True}
    ]
    await told.env.do(told.ecosystem.tenant_port.create(VMI, NS, body))
    return vm


async def test_N4_the_virtual_machine_gets_what_its_instance_gets(told: Told) -> None:
    """Tenants look at `kubectl describe vm`."""
    await told.open()
    await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    vm = await machine(told, "vm", ["one"])
    await told.env.later(2)
    await told.env.do(told.ecosystem.allocatable("n1", {A10: 0}))
    await told.env.later(90)
    await told.env.do(told.ecosystem.allocatable("n1", {A10: 2}))
    await told.env.later(5)
    assert told.reasons(VM.name, "vm") == [(NORMAL, "Bound"), (WARNING, "Lost"), (NORMAL, "Restored")]
    assert told.reasons(VM.name, "vm") == told.reasons(VMI.name, "vm")
    assert {event["regarding"]["uid"] for event in told.events(VM.name, "vm")} == {vm["metadata"]["uid"]}
    assert {event["regarding"]["apiVersion"] for event in told.events(VM.name, "vm")} == {"kubevirt.io/v1"}


async def test_N4_a_start_refused_at_creation_is_told_on_the_virtual_machine(told: Told) -> None:
    """There is no VMI to tell it on; what is journaled again a minute later is counted."""
    await told.open()
    await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    for _ in range(2):
        with pytest.raises(Rejected):
            await machine(told, "vm", ["one", "none"])
        await told.env.later(61)
    (event,) = told.events(VM.name, "vm")
    vm = told.env.cluster.peek(VM, NS, "vm")
    assert vm is not None and event["regarding"]["uid"] == vm["metadata"]["uid"]
    assert (event["type"], event["reason"], event["action"]) == (WARNING, "UnknownDevice", "Refuse")
    assert "none" in event["note"] and event["series"]["count"] == 2


async def test_N4_a_start_the_binder_refuses_is_told_once_on_the_virtual_machine(told: Told) -> None:
    """Its webhook tells it; the decision's own Event is on the device."""
    await told.open()
    await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    told.replica.admission.binding._check_start = lambda *of: None
    await told.env.cluster.patch(NODE, "", "n1", {"spec": {"unschedulable": True}})
    await told.env.later(2)
    with pytest.raises(Rejected):
        await machine(told, "vm", ["one"])
    await told.env.later(15)
    assert [kind for kind, _ in told.reasons(DEVICE.name, "one")] == [NORMAL, WARNING]
    (event,) = told.events(VM.name, "vm")
    assert event["reason"] == told.reasons(DEVICE.name, "one")[1][1]


async def test_N4_a_machine_without_an_owner_tells_no_virtual_machine(told: Told) -> None:
    await told.open()
    await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    await told.env.do(told.ecosystem.vmi(NS, "vm", ["one"]))
    with pytest.raises(Rejected):
        await told.env.do(told.ecosystem.vmi(NS, "other", ["none"]))
    await told.env.later(3)
    assert told.events(VM.name) == []


async def test_N4_an_event_is_one_that_the_api_server_takes_and_kubectl_lists_with_its_object(told: Told) -> None:
    await told.open()
    await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    await told.env.do(told.ecosystem.vmi(NS, "vm", ["one"]))
    await told.env.later(3)
    device = told.env.cluster.peek(DEVICE, NS, "one")
    vmi = told.env.cluster.peek(VMI, NS, "vm")
    assert device is not None and vmi is not None
    held = told.events(DEVICE.name, "one")[0]
    assert held["metadata"]["namespace"] == NS
    assert held["regarding"] == {
        "apiVersion": "gpu.cozystack.io/v1alpha1",
        "kind": "GPUDevice",
        "namespace": NS,
        "name": "one",
        "uid": device["metadata"]["uid"],
    }
    assert (held["action"], held["reportingController"], held["reportingInstance"]) == (
        "Hold",
        "gpu.cozystack.io/binder",
        "r0",
    )
    assert to_ms(held["eventTime"]) and held["eventTime"].endswith("Z") and len(held["eventTime"]) == 27
    (bound,) = told.events(VMI.name, "vm")
    assert bound["regarding"]["uid"] == vmi["metadata"]["uid"], "known only after the VMI was created"
    assert "node n1" in bound["note"]


async def test_N4_an_order_left_pending_says_why(told: Told) -> None:
    await told.open()
    told.env.cluster.admission.unregister("devices.gpu-binder")
    for name in ("one", "two", "three"):
        await told.env.do(told.ecosystem.order(NS, name, "a10"))
    await told.env.later(2)
    (refused,) = told.events(DEVICE.name, "three")
    assert (refused["type"], refused["reason"], refused["action"]) == (WARNING, "NoFreeUnits", "RefuseOrder")


def test_N4_a_refused_start_is_told_on_its_device_and_on_the_machine_that_will_not_be() -> None:
    world = World().ready(("n1", 2))
    world.order("one")
    world.put(DEVICE, Device(name="made", namespace=WORLD_NS, uid="", class_name="a10", template=True))
    world.change(NODE, "", "n1", unschedulable=True)
    world.ask("vm", "one", "made")
    refusal = next(found for found in world.decisions if found.action is Action.REFUSE_BIND)
    found = list(of_decision(events.Entry(1, 1, world.at, events.TimeReached()), refusal))
    assert [(one.regarding.kind, one.regarding.name, one.type) for one in found] == [
        (DEVICE, "one", WARNING),
        (VMI, "vm", WARNING),
    ], "a template device goes with the refusal, so nobody would read what is told on it"
    assert {one.reason for one in found} == {refusal.reason} and refusal.reason


async def test_N4_a_class_tells_when_its_conditions_change(told: Told) -> None:
    await told.open()
    assert (NORMAL, "Listed") in told.reasons(CLASS.name, "a10")
    before = len(told.events(CLASS.name, "a10"))
    await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    await told.env.later(3)
    assert len(told.events(CLASS.name, "a10")) == before, "numbers alone are no news"
    await told.ecosystem.kubevirt({"nvidia.com/other": "10DE:9999"})
    await told.env.later(3)
    news = told.events(CLASS.name, "a10")[before:]
    assert (WARNING, "NotListed") in [(event["type"], event["reason"]) for event in news]
    assert {event["metadata"]["namespace"] for event in news} == {"default"}


async def test_C13_a_budget_key_that_bounds_nothing_is_told_on_the_release_once_until_it_changes(told: Told) -> None:
    await told.open({"cpu": "10", "services.loadbalancers": "5", A10: "2", "nvidia.com/ga102gl_a10": "1"})
    (event,) = told.events(RELEASE.name)
    assert (event["type"], event["reason"]) == (WARNING, "UnmatchedBudgetKey")
    assert event["regarding"]["name"] == "tenant-acme" and event["regarding"]["namespace"] == "tenant-root"
    assert "'nvidia.com/ga102gl_a10'" in event["note"] and "limits nothing" in event["note"]
    await told.env.do(told.ecosystem.gpu_class("other", "nvidia.com/other"))
    await told.env.later(3)
    assert len(told.events(RELEASE.name)) == 1, "a look that finds the same tells nothing"
    told.env.cluster.admission.unregister("tenants.gpu-binder")
    await told.env.do(told.ecosystem.tenant("acme", quotas={A10: "lots"}))
    await told.env.later(3)
    assert [event["reason"] for event in told.events(RELEASE.name)] == ["UnmatchedBudgetKey", "UnreadableBudget"]
    assert "'lots'" in told.events(RELEASE.name)[1]["note"]


async def test_R10_an_object_set_aside_says_so_on_itself(told: Told) -> None:
    await told.open()
    told.replica.controller.loop.submit(
        events.ObjectUnreadable(DEVICE.name, NS, "odd", "u9", "77", "spec.className is missing")
    )
    await told.env.later(3)
    (event,) = told.events(DEVICE.name, "odd")
    assert event["reason"] == "Unreadable" and "spec.className is missing" in event["note"]
    assert event["regarding"]["uid"] == "u9"


async def test_only_the_leader_announces() -> None:
    """N4: every replica folds, one decides and tells."""
    told = Told()
    await told.open({"nvidia.com/ga102gl_a10": "1"})
    follower = EventRecorder(
        told.env.cluster.as_user("follower"), identity="r1", clock=told.env.time.clock, sleep=told.env.time.sleep
    )
    await told.env.add_replica(MemoryJournal(), "r1", observers=(follower,))
    sending = asyncio.ensure_future(follower.run())
    await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    await told.env.later(5)
    assert {event["reportingInstance"] for event in told.events()} == {"r0"}
    sending.cancel()
    await told.close()


# One notice after another


NOTICE = Notice(Regarding(DEVICE, "default", "one", "u1"), WARNING, "RefuseOrder", "NoFreeUnits", "none are free")


async def send(told: Told, *notices: Notice) -> None:
    for notice in notices:
        told.event_recorder._put(notice, told.env.time.clock())
    await told.event_recorder.flush()


async def test_N4_what_repeats_within_the_window_is_counted_in_one_event(told: Told) -> None:
    await send(told, NOTICE, NOTICE)
    await told.env.time.advance(60, lambda: None)
    await send(told, NOTICE)
    (event,) = told.events()
    assert event["series"]["count"] == 3
    assert to_ms(event["series"]["lastObservedTime"]) - to_ms(event["eventTime"]) == 60_000
    await told.env.time.advance(700, lambda: None)
    await send(told, NOTICE)
    assert [event.get("series") is None for event in told.events()] == [False, True]


async def test_N4_another_object_under_the_same_name_has_events_of_its_own(told: Told) -> None:
    other = Notice(Regarding(DEVICE, "default", "one", "u2"), NOTICE.type, NOTICE.action, NOTICE.reason, NOTICE.note)
    await send(told, NOTICE, other)
    assert sorted(event["regarding"]["uid"] for event in told.events()) == ["u1", "u2"]


async def test_an_event_that_has_expired_is_begun_anew(told: Told) -> None:
    """N4: the API server forgets Events after an hour."""
    await send(told, NOTICE)
    (event,) = told.events()
    await told.env.cluster.delete(EVENT, "default", event["metadata"]["name"])
    await told.env.time.advance(1, lambda: None)
    await send(told, NOTICE)
    assert len(told.events()) == 1


async def test_a_lost_answer_makes_no_second_event(told: Told) -> None:
    """N4, B6"""
    lost: list[Call] = []

    def first_create(call: Call) -> Fault | None:
        if call.verb == "create" and not lost:
            lost.append(call)
            return Fault.LOST_ANSWER
        return None

    told.env.cluster.faults = first_create
    await send(told, NOTICE)
    await send(told, NOTICE)
    assert len(told.events()) == 1 and lost


async def test_failures_lose_events_and_nothing_else(told: Told) -> None:
    """N4: the binder does not wait for what only tells."""
    told.env.cluster.faults = lambda call: Fault.UNAVAILABLE if call.kind == EVENT.name else None
    await told.open()
    device = await told.env.do(told.ecosystem.order(NS, "one", "a10"))
    await told.env.later(30)
    assert device and told.replica.running
    assert told.replica.state.device(NS, "one").phase == "Held"
    told.env.cluster.faults = None
    await told.env.do(told.ecosystem.order(NS, "two", "a10"))
    await told.env.later(3)
    assert told.reasons(DEVICE.name, "two") == [(NORMAL, "Held")]
    assert told.events(DEVICE.name, "one") == []


async def test_the_queue_is_bounded_and_keeps_the_newest(told: Told) -> None:
    """N4"""
    for number in range(MAX_QUEUED + 10):
        about = Regarding(DEVICE, "default", f"d{number}", "u")
        told.event_recorder._put(Notice(about, NORMAL, "Hold", "Held", "held"), 0)
    await told.event_recorder.flush()
    names = {event["regarding"]["name"] for event in told.events()}
    assert len(names) == MAX_QUEUED and f"d{MAX_QUEUED + 9}" in names and "d9" not in names


async def test_a_long_note_is_cut_between_characters(told: Told) -> None:
    """N4: the API server takes 1,024 bytes."""
    await send(told, Notice(NOTICE.regarding, WARNING, "Read", "Unreadable", "ü" * 2_000))
    (event,) = told.events()
    assert len(event["note"].encode()) <= MAX_NOTE_BYTES and event["note"].endswith("ü…")


async def test_a_machine_that_never_appears_is_told_of_without_its_uid(told: Told) -> None:
    """N4: the notice waits for the VMI, not for ever."""
    about = Notice(Regarding(VMI, "default", "vm"), NORMAL, "Bind", "Bound", "1 units on node n1")
    await send(told, about)
    assert told.events() == []
    await told.env.time.advance(11, lambda: None)
    await told.event_recorder.flush()
    (event,) = told.events()
    assert "uid" not in event["regarding"]


async def test_a_namespace_that_is_gone_stops_nothing(told: Told) -> None:
    """C47"""
    gone = Notice(Regarding(DEVICE, "tenant-gone", "one", "u1"), WARNING, "Lose", "Lost", "lost")
    await send(told, gone, NOTICE)
    assert [event["regarding"]["namespace"] for event in told.events()] == ["default"]
    with pytest.raises(ClusterError):
        await told.env.cluster.create(EVENT, "tenant-gone", {"metadata": {"name": "x"}})
