"""Usage against a second-by-second reference model, from a leader's journal and from a follower's (U1, U1b, U2,
C50)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import events
from journal.events import Entry, Event
from reconciler.core import snapshot
from reconciler.core.fold import adds_nothing, fold
from reconciler.core.metering.usage_records import Record, UsageFold
from reconciler.core.model.objects import (
    DEVICE,
    KINDS,
    NODE,
    POD,
    VMI,
    Constraints,
    Device,
    Kind,
    Node,
    Object,
    Pod,
    Vmi,
)
from reconciler.core.state.placement_state import PlacementState
from tests.core.twins.usage import Twin
from tests.core.world import NS, R, World

SETTLE = 60_000
LEADERS = (
    events.Decided,
    events.WriteSucceeded,
    events.WriteConflicted,
    events.WriteFoundGone,
    events.WriteRejected,
    events.WriteDropped,
    events.LeadershipAcquired,
    events.LeadershipLost,
)


class Story(World):
    """A world that records what a follower would have observed and what the API held in every second."""

    def __init__(self, **options: Any) -> None:
        self.told: list[tuple[int, Event]] = []
        self.twin = Twin()
        super().__init__(**options)

    def tell(self, event: Event) -> None:
        self.told.append((self.at, event))
        super().tell(event)

    def put(self, kind: Kind, item: Object, source: str = "watch") -> Object:
        if isinstance(item, Vmi):
            self.twin.listed(item)
            self.twin.came(item, self.objects)
        return super().put(kind, item, source)

    def wait(self, seconds: int) -> None:
        for passed in range(seconds):
            self.twin.sample(self.at + passed * 1000, self.objects)
        self.later(seconds)

    def follower(self, down: tuple[int, int] = (0, 0)) -> list[Entry]:
        """The journal of a replica that saw the same and decided nothing. `down`: while it was, by what had been
        told (from, to); at its return it lists everything anew."""
        state = PlacementState()
        entries: list[Entry] = []
        there: dict[tuple[str, str, str], events.ObjectObserved] = {}

        def write(at: int, event: Event) -> None:
            if isinstance(event, LEADERS) or (isinstance(event, events.ObjectObserved) and adds_nothing(state, event)):
                return
            entry = Entry(state.seq + 1, state.seq + 1, at, event)
            fold(state, entry)
            entries.append(entry)

        for number, (at, event) in enumerate(self.told):
            if isinstance(event, events.ObjectObserved):
                there[(event.kind, event.namespace, event.name)] = event
            elif isinstance(event, events.ObjectDeleted):
                there.pop((event.kind, event.namespace, event.name), None)
            if not down[0] <= number < down[1]:
                write(at, event)
            elif number == down[1] - 1:
                for back in _returned(state, there):
                    write(at, back)
        return entries


def _returned(state: PlacementState, there: dict[tuple[str, str, str], events.ObjectObserved]) -> list[Event]:
    """What a replica observes on return: deletions and objects, kind by kind."""
    told: list[Event] = [events.ControllerStarted("binder-1", "test")]
    for kind in KINDS:
        for namespace, name in sorted(state.objects[kind]):
            known = state.objects[kind][(namespace, name)]
            now = there.get((kind, namespace, name))
            if now is None or now.uid != known.uid:
                told.append(events.ObjectDeleted(kind, namespace, name, known.uid, seen=False, last_seen=state.now))
        for key in sorted(key for key in there if key[0] == kind):
            told.append(msgspec.structs.replace(there[key], source="list"))
        told.append(events.KindListed(kind))
    return told


def records(entries: list[Entry], now: int, state: PlacementState | None = None) -> list[Record]:
    """All records of a journal, sorted, with open ones cut at `now`."""
    usage = UsageFold("c1")
    state = state or PlacementState()
    found: list[Record] = []
    for entry in entries:
        fold(state, entry)
        found += usage.step(state, entry)
    found += usage.open(state, now)
    return sorted(found, key=lambda one: (one.start, one.uid, one.resource_name, one.end))


def used(found: list[Record], start: int, end: int) -> Counter[tuple[str, str, str]]:
    """Unit-seconds of records within a window."""
    total: Counter[tuple[str, str, str]] = Counter()
    for one in found:
        milliseconds = max(0, min(one.end, end) - max(one.start, start)) * one.units
        assert milliseconds % 1000 == 0
        if milliseconds:
            total[(one.uid, one.resource_name, str(one.state))] += milliseconds // 1000
    return total


def check_no_overlap(found: list[Record]) -> None:
    """No interval overlaps another of its subject, none is empty, none is duplicated (U2)."""
    ends: dict[tuple[str, str], int] = {}
    for one in found:
        assert one.start < one.end, one
        assert one.start >= ends.get((one.uid, one.resource_name), 0), one
        ends[(one.uid, one.resource_name)] = one.end
    ids = [one.id for one in found]
    assert len(ids) == len(set(ids))


class RandomStory:
    """Performs random actions, each by its name in `do`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = Story(settle=SETTLE).ready(("n1", 4), ("n2", 3))
        assert isinstance(self.world, Story)
        self.made = 0

    def name(self, what: str) -> str:
        self.made += 1
        return f"{what}{self.made}"

    def objects(self, kind: type) -> list[Any]:
        return [one for one in self.world.objects.values() if isinstance(one, kind)]

    def pick(self, items: list[Any]) -> Any:
        return self.random.choice(sorted(items, key=lambda one: one.name)) if items else None

    def step(self) -> None:
        actions = [
            self.order,
            self.order,
            self.start,
            self.start,
            self.stop,
            self.finish,
            self.raw,
            self.forge,
            self.second,
            self.late,
            self.end_pod,
            self.shrink,
            self.grow,
            self.delete,
            self.refuse,
        ]
        self.random.choice(actions)()
        self.world.wait(self.random.choice([0, 0, 1, 2, 7, 30, 61, 90]))

    def order(self) -> None:
        self.world.order(self.name("d"), count=self.random.choice([1, 1, 2]))

    def start(self) -> None:
        device = self.pick([d for d in self.objects(Device) if d.phase == "Held" and d.deleting is None])
        if device is None:
            return
        vmi = self.name("vm")
        self.world.ask(vmi, device.name)
        placed = self.world.device(device.name).placement
        if placed is None:
            return
        self.world.vmi(vmi)
        extra = self.random.choice([0, 0, 1])
        pod = self.world.pod(f"virt-launcher-{vmi}", placed.node, device.count + extra, vmi_name=vmi, launcher=True)
        self.world.wait(self.random.choice([0, 1, 5]))
        if (VMI.name, NS, vmi) in self.world.objects:
            self.world.change(VMI, NS, vmi, active_pods={pod.uid: placed.node}, phase="Running", node=placed.node)

    def late(self) -> None:
        """A launcher whose VMI lists it only after the settling time (U1b)."""
        vmi = self.name("late")
        self.world.vmi(vmi)
        pod = self.world.pod(f"virt-launcher-{vmi}", "n1", 1, vmi_name=vmi, launcher=True)
        self.world.wait(self.random.choice([10, 70]))
        if self.random.random() < 0.5:
            self.world.change(VMI, NS, vmi, active_pods={pod.uid: "n1"}, phase="Running", node="n1")

    def stop(self) -> None:
        """The VMI goes, its launcher before it, with it, or long after it."""
        vmi = self.pick(self.objects(Vmi))
        if vmi is None:
            return
        pods = [pod for pod in self.objects(Pod) if pod.uid in vmi.active_pods]
        first = self.random.random() < 0.5
        for pod in pods if first else []:
            self.world.change(POD, NS, pod.name, phase="Succeeded", finished=self.world.at)
        self.world.gone(VMI, NS, vmi.name)
        self.world.wait(self.random.choice([0, 3, 100]))
        for pod in pods:
            self.world.gone(POD, NS, pod.name)

    def finish(self) -> None:
        """A shutdown from the guest: the VMI ends and stays (C50)."""
        vmi = self.pick([vmi for vmi in self.objects(Vmi) if vmi.phase == "Running"])
        if vmi is None:
            return
        for pod in [pod for pod in self.objects(Pod) if pod.uid in vmi.active_pods]:
            self.world.change(POD, NS, pod.name, phase="Succeeded", finished=self.world.at)
        self.world.change(VMI, NS, vmi.name, phase="Succeeded")

    def raw(self) -> None:
        self.world.pod(self.name("raw"), self.random.choice(["n1", "n2", ""]), self.random.choice([1, 2]))

    def forge(self) -> None:
        vmi = self.pick(self.objects(Vmi))
        if vmi is not None:
            self.world.pod(self.name("forged"), "n2", 1, vmi_name=vmi.name, vmi_uid=vmi.uid, launcher=True)

    def second(self) -> None:
        """One more pod that the VMI lists, on any node: a migration target, or one that only says so (R8)."""
        vmi = self.pick([vmi for vmi in self.objects(Vmi) if vmi.active_pods and not vmi.final])
        if vmi is None:
            return
        node, units = self.random.choice(["n1", "n2"]), self.random.choice([1, 2])
        pod = self.world.pod(self.name("second"), node, units, vmi_name=vmi.name, vmi_uid=vmi.uid, launcher=True)
        self.world.wait(self.random.choice([0, 1, 5]))
        now = self.world.objects[(VMI.name, NS, vmi.name)]
        assert isinstance(now, Vmi)
        self.world.change(VMI, NS, vmi.name, active_pods={**now.active_pods, pod.uid: node})

    def end_pod(self) -> None:
        pod = self.pick([pod for pod in self.objects(Pod) if pod.phase == "Running"])
        if pod is None:
            return
        if self.random.random() < 0.5:
            self.world.change(POD, NS, pod.name, phase="Failed", finished=self.world.at)
        else:
            self.world.gone(POD, NS, pod.name)

    def shrink(self) -> None:
        node = self.pick(self.objects(Node))
        self.world.change(NODE, "", node.name, allocatable={R: self.random.choice([0, 1])})

    def grow(self) -> None:
        node = self.pick(self.objects(Node))
        self.world.change(NODE, "", node.name, allocatable={R: 4})

    def delete(self) -> None:
        device = self.pick([d for d in self.objects(Device) if d.deleting is None])
        if device is not None:
            self.world.change(DEVICE, NS, device.name, deleting=self.world.at)

    def refuse(self) -> None:
        """A start that no node can take."""
        device = self.pick([d for d in self.objects(Device) if d.phase == "Held" and d.deleting is None])
        if device is not None:
            self.world.ask(self.name("vm"), device.name, constraints=Constraints({"zone": "nowhere"}))

    def lag(self) -> None:
        """The binder's writes are under way while the world moves on; some of them conflict."""
        self.world.refuse_writes = True
        for _ in range(self.random.choice([1, 2, 3])):
            self.step()
        self.world.refuse_writes = False
        late, self.world.held_writes = self.world.held_writes, []
        for identity, decision, index in late:
            self.world.land(identity, decision, index)
        self.world.run()


def play(seed: int, steps: int, *, lagging: bool = False) -> Story:
    actions = RandomStory(seed)
    for _ in range(steps):
        actions.step()
        if lagging:
            actions.lag()
    actions.world.wait(1)
    return actions.world


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40), data=st.data())
@settings(max_examples=120, deadline=None)
def test_u2_unit_seconds_in_equal_unit_seconds_out_for_any_window(seed: int, steps: int, data: Any) -> None:
    """U1, U1b, U2: the records sum to the twin's seconds, in total and within any window."""
    world = play(seed, steps)
    found = records(world.entries, world.at)
    check_no_overlap(found)
    first = 1_000_000
    assert used(found, first, world.at) == world.twin.used(SETTLE, first, world.at)
    seconds = (world.at - first) // 1000
    start = first + data.draw(st.integers(0, seconds)) * 1000
    end = start + data.draw(st.integers(0, seconds)) * 1000
    assert used(found, start, min(end, world.at)) == world.twin.used(SETTLE, start, min(end, world.at))


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_u1_leader_and_follower_export_the_same_bytes(seed: int, steps: int) -> None:
    """U1: ids and times come from the objects, so who decided does not show."""
    world = play(seed, steps)
    follower = world.follower()
    assert not any(isinstance(entry.event, LEADERS) for entry in follower)
    leaders = msgspec.json.encode(records(world.entries, world.at))
    assert leaders == msgspec.json.encode(records(follower, world.at))


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 15))
@settings(max_examples=80, deadline=None)
def test_u1_an_assumed_write_is_no_use_before_its_outcome(seed: int, steps: int) -> None:
    """U1, J4: writes that land late or conflict leave leader's and follower's records the same."""
    world = play(seed, steps, lagging=True)
    found = records(world.entries, world.at)
    check_no_overlap(found)
    assert msgspec.json.encode(found) == msgspec.json.encode(records(world.follower(), world.at))


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 30), cut=st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_j6_a_journal_pruned_at_a_snapshot_goes_on_with_the_same_records(seed: int, steps: int, cut: float) -> None:
    """J6, U2: what closes after the snapshot, and what is open, is the same from the whole journal."""
    world = play(seed, steps)
    at = int(len(world.entries) * cut)
    state = PlacementState()
    before = UsageFold("c1")
    early: list[Record] = []
    for entry in world.entries[:at]:
        fold(state, entry)
        early += before.step(state, entry)
    restored = snapshot.restore(snapshot.export(state))
    late = records(world.entries[at:], world.at, restored)
    whole = records(world.entries, world.at)
    together = sorted([*early, *late], key=lambda one: (one.start, one.uid, one.resource_name, one.end))
    assert together == whole


def test_u1_a_step_without_its_fold_is_told() -> None:
    """A step beside a state that has not seen the entry would bill the wrong moment."""
    world = Story().ready(("n1", 1))
    with pytest.raises(ValueError, match="has not been folded"):
        list(UsageFold("c1").step(PlacementState(), world.entries[-1]))
