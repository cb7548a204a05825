"""The fold against a naive reference model after any sequence of events, independent of arrival order, restarts and
hash seeds.

Two kinds of worlds: `Facts` holds objects in arbitrary states without a leader; in `Story` a leader's decisions move
the devices, with writes that land late or conflict.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import events
from journal.events import Entry
from reconciler.core import snapshot
from reconciler.core.decide import decide
from reconciler.core.fold import fold
from reconciler.core.model.device_state import pending_order
from reconciler.core.model.objects import (
    DEVICE,
    GPU_NODE,
    KINDS,
    NODE,
    POD,
    RELEASE,
    VMI,
    Attachment,
    Constraints,
    Device,
    Function,
    GpuNode,
    Kind,
    Node,
    Object,
    Placement,
    Pod,
    Release,
    Vmi,
)
from reconciler.core.model.vocabulary import CLASS_BUDGET_PREFIX, DEVICE_FINALIZER, SCHEDULABLE_LABEL
from reconciler.core.state.decisions import Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.tenancy.tenants import BudgetKey, class_key, raw_key
from tests.core.twins import charges as charge_twin
from tests.core.twins.capacity import Twin
from tests.core.world import R, World

T, RAW, OTHER = "nvidia.com/TU104", "nvidia.com/RAW", "example.com/nic"
NAMES = (R, T, RAW)
CLASSES = {"a10": R, "a10-too": R, "t4": T}
NODES = ("n0", "n1", "n2")
SPACES = ("tenant-a", "tenant-a-b", "tenant-c")
RELEASES = {"tenant-a": ("tenant-root", "tenant-a"), "tenant-a-b": ("tenant-a", "tenant-b")}
KEYS: tuple[BudgetKey, ...] = (*(class_key(name) for name in CLASSES), *(raw_key(name) for name in NAMES))
Step = tuple[Any, ...]


def prepared(world: World) -> World:
    for name, resource in CLASSES.items():
        world.gpu_class(name, resource)
    world.kubevirt(*NAMES)
    world.put(RELEASE, Release(name="tenant-root", namespace="tenant-root", uid=""))
    for owned in RELEASES:
        release(world, owned, {})
    return world


def release(world: World, owned: str, quotas: dict[str, int]) -> None:
    namespace, name = RELEASES[owned]
    world.put(RELEASE, Release(name=name, namespace=namespace, uid="", quotas=quotas))


def functions(counts: dict[str, int], ill: int) -> tuple[Function, ...]:
    """`counts` cards of each name, the first `ill` of each unhealthy."""
    return tuple(
        Function(id=f"0000:{16 * place + index:02x}:00.0", resource_name=name, healthy=index >= ill)
        for place, (name, count) in enumerate(sorted(counts.items()))
        for index in range(count)
    )


# What has to be so


class Checked:
    """Compares a state with the twin; remembers which names each agent spoke of."""

    def __init__(self) -> None:
        self.spoken: dict[str, set[str]] = {}

    def note(self, node: str, report: GpuNode | None) -> None:
        if report is None:
            self.spoken.pop(node, None)
        else:
            self.spoken.setdefault(node, set()).update(found.resource_name for found in report.functions)

    def compare(self, state: PlacementState, objects: list[Object]) -> None:
        twin = Twin(objects, NAMES, self.spoken, state.silent, state.vanished)
        for name in NAMES:
            self._units(state, twin, name)
        self._classes(state, twin)
        self._charges(state, twin)
        self._waiting(state, twin)

    def _units(self, state: PlacementState, twin: Twin, name: str) -> None:
        """R5, R8, R9."""
        free = {}
        for node in NODES:
            ours, sums = state.units_on(node, name), twin.sums(node, name)
            assert (ours.placed, ours.raw, ours.requests, ours.absent, ours.free) == sums[1:], (node, name)
            known = name in state.accounts.get(node, {})
            assert ours.served == sums.served if known else not sums.served, (node, name)
            free[node] = sums.free
        assert state.free_units(name) == twin.free_units(name)
        assert state.held(name) == twin.held_units(name)
        largest = max(free.values())
        assert state.free.largest(name)[1] == largest
        if largest:
            assert state.free.largest(name)[0] == min(node for node in NODES if free[node] == largest)
        levels = [units for units in free.values() if units]
        assert state.free.histogram(name) == {level: levels.count(level) for level in levels}

    def _classes(self, state: PlacementState, twin: Twin) -> None:
        """The running sums behind the published numbers (O1)."""
        for class_name, name in CLASSES.items():
            devices = [device for device in twin.devices if device.class_name == class_name]
            assert state.devices.bound[class_name] == sum(d.count for d in devices if twin.on_node(d))
            assert state.devices.held(class_name) == sum(d.count for d in devices if twin.held(d))
            sums = [twin.sums(node, name) for node in NODES]
            assert state.totals_of(name).served == sum(found.served or 0 for found in sums)
            assert state.totals_of(name).raw == sum(found.raw for found in sums)
            silent = [node for node in state.totals_of(name).nodes if state.known_served(node, name) is None]
            assert list(state.totals_of(name).silent) == silent

    def _charges(self, state: PlacementState, twin: Twin) -> None:
        """R4."""
        facts = charge_twin.Facts()
        for (kind, namespace, name), found in self._releases(state).items():
            assert kind == RELEASE.name
            facts.releases[(namespace, name)] = {key: found[str(key)] for key in KEYS if str(key) in found}
        for space in SPACES:
            used: dict[Any, int] = {class_key(name): twin.used_of_class(space, name) for name in CLASSES}
            used |= {raw_key(name): twin.used_of_name(space, name) for name in NAMES}
            facts.usage[space] = {key: units for key, units in used.items() if units}
        for space in (*SPACES, "tenant-root"):
            for key in KEYS:
                assert state.charges.charge(space, key) == facts.charge(space, key), (space, key)

    def _releases(self, state: PlacementState) -> dict[tuple[str, str, str], dict[str, int]]:
        return {
            (RELEASE.name, found.namespace, found.name): found.quotas  # type: ignore[attr-defined]
            for found in state.objects[RELEASE.name].values()
            if found.name != "tenant-root"
        }

    def _waiting(self, state: PlacementState, twin: Twin) -> None:
        """P1b."""
        for class_name in CLASSES:
            waits = [d for d in twin.devices if d.class_name == class_name and pending_order(d)]
            tickets = sorted((device.created, device.uid) for device in waits)
            assert list(state.devices.waiting.of_class(class_name)) == tickets
            for most in (1, 2, 9):
                groups = sorted((space, *orders) for space, orders in state.devices.waiting.groups(class_name, most))
                alike = {(device.count, device.namespace) for device in waits if device.count <= most}
                assert groups == sorted(
                    (
                        space,
                        *sorted((d.created, d.uid) for d in waits if (d.count, d.namespace) == (count, space)),
                    )
                    for count, space in alike
                )


# Facts: any object in any state


def amounts(most: int) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(st.sampled_from((*NAMES, OTHER)), st.integers(0, most), max_size=3)


places = st.sampled_from(SPACES)
nodes = st.sampled_from(NODES)
phases = st.sampled_from(["", "Pending", "Held", "Attached", "Bound", "Lost", "Releasing"])
vmi_names = st.sampled_from(["v0", "v1"])
pod_numbers = st.integers(0, 5)
"""A pod's number says its name and uid."""

FACTS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(
            st.just("node"),
            nodes,
            st.booleans(),
            st.none() | amounts(6),
            st.sampled_from([*[{SCHEDULABLE_LABEL: "true"}] * 4, {SCHEDULABLE_LABEL: "false"}, {}]),
        ),
        st.tuples(st.just("report"), nodes, st.fixed_dictionaries({R: st.integers(0, 5)}), st.integers(0, 2)),
        st.tuples(st.just("silence"), nodes),
        st.tuples(
            st.just("device"),
            places,
            st.integers(0, 4),
            st.sampled_from(sorted(CLASSES)),
            st.integers(1, 3),
            phases,
            st.none() | vmi_names,
            st.none() | nodes,
        ),
        st.tuples(
            st.just("pod"),
            places,
            pod_numbers,
            st.sampled_from(["", *NODES]),
            st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
            amounts(3),
            vmi_names,
        ),
        st.tuples(st.just("vmi"), places, vmi_names, st.sets(pod_numbers), st.sampled_from(["Running", "Failed"])),
        st.tuples(
            st.just("quotas"), st.sampled_from(sorted(RELEASES)), st.sets(st.sampled_from(KEYS)), st.integers(0, 5)
        ),
        st.tuples(st.just("gone"), st.integers(0, 30)),
    ),
    max_size=40,
)


def pod_uid(namespace: str, number: int) -> str:
    return f"pod-{namespace}-{number}"


def observe(world: World, step: Step, checked: Checked) -> None:
    """One step of `FACTS`."""
    match step:
        case ("node", name, ready, allocatable, labels):
            world.put(NODE, Node(name=name, uid="", ready=ready, allocatable=allocatable, labels=labels))
        case ("report", name, counts, ill):
            report = GpuNode(name=name, uid="", functions=functions(counts, ill), reported_at=world.at)
            world.put(GPU_NODE, report)
            checked.note(name, report)
        case ("silence", name):
            world.tell(events.ReportSilenced(name))
        case ("device", namespace, number, class_name, count, phase, vmi, node):
            device = Device(
                name=f"d{number}",
                namespace=namespace,
                uid="",
                class_name=class_name,
                count=count,
                phase=phase,
                attachment=Attachment(vmi, "r", world.at) if vmi else None,
                placement=Placement(node, count, world.at) if node else None,
            )
            world.put(DEVICE, device)
        case ("pod", namespace, number, node, phase, requests, vmi):
            uid = pod_uid(namespace, number)
            pod = Pod(name=f"p{number}", namespace=namespace, uid=uid, node=node, phase=phase, requests=requests)
            world.put(POD, msgspec.structs.replace(pod, vmi_name=vmi))
        case ("vmi", namespace, name, pods, phase):
            active = {pod_uid(namespace, number): "" for number in pods}
            world.put(VMI, Vmi(name=name, namespace=namespace, uid="", active_pods=active, phase=phase))
        case ("quotas", owned, keys, budget):
            release(world, owned, {str(key): budget for key in keys})
        case ("gone", number):
            removable = sorted(key for key in world.objects if KINDS[key[0]] in (NODE, GPU_NODE, DEVICE, POD, VMI))
            if removable:
                kind, namespace, name = removable[number % len(removable)]
                if kind == GPU_NODE.name:
                    checked.note(name, None)
                world.gone(KINDS[kind], namespace, name)


@settings(max_examples=150, deadline=None)
@given(FACTS, st.booleans())
def test_r5_r8_r9_r4_any_sequence_of_events_leaves_what_the_twin_counts(steps: list[Step], listed: bool) -> None:
    """Before the first lists are complete and after."""
    world, checked = prepared(World()), Checked()
    if listed:
        world.sync(lead=False)
    for step in steps:
        observe(world, step, checked)
        checked.compare(world.state, list(world.objects.values()))
    world.sync(lead=False)
    checked.compare(world.state, list(world.objects.values()))
    checked.compare(snapshot.restore(snapshot.export(world.state)), list(world.objects.values()))


def test_r10_a_pod_that_names_another_vmi_later_and_goes_stops_nothing() -> None:
    """Whoever may edit a pod may edit the annotation that names its VMI."""
    world = prepared(World())
    world.sync()
    for vmi in ("v1", "v0"):
        world.put(POD, Pod(name="p", namespace=SPACES[0], uid="p", requests={R: 1}, vmi_name=vmi))
    world.gone(POD, SPACES[0], "p")
    world.order("d", ns=SPACES[0])
    for vmi in ("v1", "v0"):
        world.vmi(vmi, SPACES[0])


def arrive(objects: list[tuple[Kind, Object]], order: random.Random) -> tuple[dict[str, Any], list[bytes]]:
    """The facts after a first list in a given order, and a leader's decisions then and later."""
    world = World()
    world.objects = {(kind.name, item.namespace, item.name): item for kind, item in objects}
    world.version = len(objects) + 100
    told: list[events.Event] = [world.observation(kind, item, "list") for kind, item in objects]
    order.shuffle(told)
    kinds = sorted(KINDS)
    order.shuffle(kinds)
    for kind in kinds:
        for event in told:
            if isinstance(event, events.ObjectObserved) and event.kind == kind:
                world.tell(event)
        world.tell(events.KindListed(kind))
    facts = msgspec.json.decode(snapshot.export(world.state))
    del facts["deadlines"]  # a class is looked at again a second after a change, and there were others
    world.tell(events.LeadershipAcquired("binder-0", 1))
    world.run()
    for seconds in (1, 5, 61):
        world.later(seconds)
    return facts, [msgspec.json.encode(made) for made in world.decisions]


@settings(max_examples=60, deadline=None)
@given(FACTS, st.integers(0, 1000))
def test_r9_the_order_of_arrival_changes_nothing(steps: list[Step], seed: int) -> None:
    world = prepared(World())
    for step in steps:
        if step[0] != "silence":
            observe(world, step, Checked())
    objects = [(KINDS[kind], item) for (kind, _, _), item in sorted(world.objects.items())]
    assert arrive(objects, random.Random(seed)) == arrive(objects, random.Random(seed + 1))


# Story: led, devices move by decisions


class Story(World):
    """A world with a leader that records where it settled, so that it can be replayed."""

    def __init__(self) -> None:
        self.rests: list[int] = []
        super().__init__(lost_grace=5_000, attach_grace=20_000)

    def run(self) -> list[Decision]:
        made = super().run()
        self.rests.append(self.state.seq)
        return made

    def begin(self) -> None:
        prepared(self)
        for place, name in enumerate(NODES):
            self.node(name, 4, R, labels={SCHEDULABLE_LABEL: "true", "zone": f"z{place % 2}"})
        self.change(NODE, "", "n2", allocatable={R: 4, T: 2})
        self.sync()


def play(story: Story, pick: random.Random) -> None:
    """One action of a tenant, the hoster, KubeVirt or the API server."""
    space, number = pick.choice(SPACES), pick.randrange(4)
    name, vmi = f"d{number}", f"v{pick.randrange(2)}"
    mine = sorted(key[2] for key in story.objects if key[0] == DEVICE.name and key[1] == space)
    match pick.choice(STORIES):
        case "order" if name not in mine:
            story.order(name, pick.randint(1, 3), pick.choice(sorted(CLASSES)), space)
        case "delete" if mine:
            _delete(story, space, pick.choice(mine))
        case "start" if mine:
            _start(story, space, vmi, pick.sample(mine, min(len(mine), pick.randint(1, 2))), pick)
        case "appear" if (VMI.name, space, vmi) not in story.objects:
            story.vmi(vmi, space)
        case "launch" if (VMI.name, space, vmi) in story.objects:
            _launch(story, space, vmi)
        case "stop" if (VMI.name, space, vmi) in story.objects:
            story.gone(VMI, space, vmi)
            for key in sorted(key for key in story.objects if key[:2] == (POD.name, space) and vmi in key[2]):
                story.gone(POD, space, key[2])
        case "node":
            units = {R: pick.choice([0, 3, 4, 5, 6]), T: pick.randint(0, 3)}
            story.change(NODE, "", pick.choice(NODES), allocatable=units, ready=pick.random() < 0.9)
        case "raw" if (POD.name, space, "raw") not in story.objects:
            story.pod("raw", pick.choice(["", *NODES]), pick.randint(1, 2), space, pick.choice(NAMES))
        case "unraw" if (POD.name, space, "raw") in story.objects:
            story.gone(POD, space, "raw")
        case "quotas":
            keys = [*NAMES, *(f"{CLASS_BUDGET_PREFIX}{found}" for found in CLASSES)]
            release(story, pick.choice(sorted(RELEASES)), {pick.choice(keys): pick.randint(0, 9)})
            story.run()
        case "wait":
            story.later(pick.choice([0.5, 1, 6, 21, 61]))
        case "slow":
            story.refuse_writes = True
        case "land":
            _land(story)
            story.run()


STORIES = (
    *("order", "order", "order", "start", "start", "start", "appear", "launch", "stop", "delete", "wait", "wait"),
    *("node", "raw", "unraw", "quotas", "slow", "land", "land"),
)


def _delete(story: Story, space: str, name: str) -> None:
    device = story.objects[(DEVICE.name, space, name)]
    if DEVICE_FINALIZER in getattr(device, "finalizers", ()):
        story.change(DEVICE, space, name, deleting=story.at)
    else:
        story.gone(DEVICE, space, name)


def _start(story: Story, space: str, vmi: str, names: list[str], pick: random.Random) -> None:
    devices = [story.objects[(DEVICE.name, space, name)] for name in names]
    if any(getattr(device, "attachment", None) for device in devices):
        return
    zone = pick.choice([{}, {}, {"zone": "z0"}, {"zone": "z9"}])
    story.ask(vmi, *names, ns=space, constraints=Constraints(node_selector=zone))


def _launch(story: Story, space: str, vmi: str) -> None:
    for device in story.state.devices_of_vmi(space, vmi):
        launcher = f"virt-launcher-{vmi}-{device.class_name}"
        if device.placement is not None and (POD.name, space, launcher) not in story.objects:
            resource = CLASSES[device.class_name]
            story.launcher(vmi, device.placement.node, device.count, space, resource, launcher)


def _land(story: Story) -> None:
    story.refuse_writes = False
    held, story.held_writes = story.held_writes, []
    for identity, decision, index in held:
        story.land(identity, decision, index)


def story_of(seed: int, steps: int = 150) -> Story:
    story, pick = Story(), random.Random(seed)
    story.begin()
    for _ in range(steps):
        play(story, pick)
    _land(story)
    story.run()
    return story


@pytest.mark.parametrize("seed", range(25))
def test_r9_r4_a_led_story_leaves_what_the_twin_counts_after_every_step(seed: int) -> None:
    """Assumed writes are part of the state (J4): the twin counts the objects as the state has them."""
    story, pick, checked = Story(), random.Random(seed), Checked()
    story.begin()
    for _ in range(150):
        play(story, pick)
        objects = [item for kind in KINDS for item in story.state.objects[kind].values()]
        checked.compare(story.state, objects)


@pytest.mark.parametrize("seed", range(25))
def test_j6_a_state_exported_and_restored_at_any_point_decides_the_same(seed: int) -> None:
    story = story_of(seed)
    assert any(isinstance(entry.event, events.Decided) for entry in story.entries)
    rests = set(story.rests)
    for cut in range(1 + seed % 11, len(story.entries), 11):
        again = snapshot.restore(snapshot.export(replayed(story.entries[:cut], rests)))
        ahead = story.entries[cut : cut + 40]
        assert follow(again, ahead, rests) == "", f"restored after entry {cut}"


def replayed(entries: list[Entry], rests: set[int]) -> PlacementState:
    state = PlacementState()
    assert follow(state, entries, rests) == ""
    return state


def follow(state: PlacementState, entries: list[Entry], rests: set[int]) -> str:
    """Continue folding; the first place where the state would decide differently from the record, "" for none."""
    for entry in entries:
        if isinstance(entry.event, events.Decided):
            made = decide(state)
            if made is None or msgspec.json.encode(made) != bytes(entry.event.decision):
                return f"entry {entry.seq}: recorded {bytes(entry.event.decision)!r}, now {made}"
        fold(state, entry)
        if entry.seq in rests and (surplus := decide(state)) is not None:
            return f"after entry {entry.seq}: nothing was recorded, now {surplus}"
    return ""


def digest() -> str:
    """All decisions of a few stories in one number."""
    made = hashlib.sha256()
    for seed in range(8):
        story = story_of(seed)
        for entry in story.entries:
            if isinstance(entry.event, events.Decided):
                made.update(bytes(entry.event.decision))
        made.update(snapshot.export(story.state))
    return made.hexdigest()


def test_j2_the_same_events_give_the_same_decisions_under_every_hash_seed() -> None:
    code = "from tests.core.test_fold_properties import digest; print(digest())"
    root = Path(__file__).parents[2]
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(found) == 1
