"""A cluster of any size for the benchmarks, built event by event through the fold.

Eight GPUs a node, half of them placed; every tenth node also carries a second type that is full. Tenants nest
three deep. A thousand orders wait that do not fit: no node is large enough, no unit is free, or a budget says no.
"""

from __future__ import annotations

from time import perf_counter

from journal import events
from journal.events import Entry
from reconciler.core.fold import adds_nothing, fold
from reconciler.core.model.objects import (
    DEVICE,
    GPU_NODE,
    NAMESPACE,
    NODE,
    POD,
    RELEASE,
    VMI,
    Attachment,
    Device,
    Function,
    GpuNode,
    Namespace,
    Node,
    Placement,
    Pod,
    Release,
    Vmi,
)
from reconciler.core.model.vocabulary import CLASS_BUDGET_PREFIX, DEVICE_FINALIZER, SCHEDULABLE_LABEL
from reconciler.core.state.decisions import Decision
from tests.core.world import R, World

FULL = "nvidia.com/TU104GL_T4"
"""The type of which no unit is free."""
UNITS = 8
PODS = 3
"""Non-GPU pods a node; a real node has ten times as many, and each costs the same."""
TENANTS = 300
PENDING = 1_000
HOLDS = 80


class SyntheticCluster(World):
    """A `World` that measures what the core itself takes: `seconds` of fold and of decide."""

    def __init__(self, nodes: int) -> None:
        self.fold_seconds = 0.0
        self.decide_seconds = 0.0
        self.decided = 0
        super().__init__(lost_grace=60_000)
        self.nodes = nodes
        self.spaces = ["tenant-root"]

    def tell(self, event: events.Event) -> None:
        start = perf_counter()
        if isinstance(event, events.ObjectObserved) and adds_nothing(self.state, event):
            self.fold_seconds += perf_counter() - start
            return
        self.batch += 1
        entry = Entry(self.state.seq + 1, self.batch, self.at, event)
        fold(self.state, entry)
        self.fold_seconds += perf_counter() - start
        self.entries.append(entry)

    def run(self) -> list[Decision]:
        start, folded = perf_counter(), self.fold_seconds
        made = super().run()
        self.decide_seconds += perf_counter() - start - (self.fold_seconds - folded)
        self.decided += len(made)
        return made


def build(nodes: int) -> SyntheticCluster:
    """A listed and led cluster at rest."""
    world = fill(nodes)
    world.sync()
    world.later(1)
    world.later(1)
    return world


def fill(nodes: int) -> SyntheticCluster:
    """Everything observed, nothing listed yet."""
    world = SyntheticCluster(nodes)
    _tenants(world)
    world.gpu_class()
    world.gpu_class("t4", FULL)
    world.kubevirt(R, FULL)
    for number in range(nodes):
        _node(world, number)
    for number in range(HOLDS):
        _device(world, f"hold-{number}", world.spaces[number % len(world.spaces)], count=1 + number % 4)
    for number in range(PENDING):
        space = world.spaces[number % len(world.spaces)]
        kind, count = (("t4", 3 + number % 6), ("a10", 9 + number % 8), ("a10", 5))[number % 3]
        _device(world, f"waits-{number}", space, class_name=kind, count=count, phase="")
    return world


def _tenants(world: SyntheticCluster) -> None:
    world.put(RELEASE, Release(name="tenant-root", namespace="tenant-root", uid=""))
    world.put(NAMESPACE, Namespace(name="tenant-root", uid=""))
    for number in range(TENANTS):
        parent = "tenant-root" if number < 6 else world.spaces[1 + (number - 6) // 6]
        owned = f"tenant-x{number}" if parent == "tenant-root" else f"{parent}-x{number}"
        quotas = {f"{CLASS_BUDGET_PREFIX}a10": 4} if number % 2 else {}
        world.put(RELEASE, Release(name=f"tenant-x{number}", namespace=parent, uid="", quotas=quotas))
        world.put(NAMESPACE, Namespace(name=owned, uid=""))
        world.spaces.append(owned)


def name(number: int) -> str:
    return f"node-{number:05}"


def functions(number: int) -> tuple[Function, ...]:
    found = [Function(id=f"0000:{slot:02x}:00.0", resource_name=R) for slot in range(UNITS)]
    if number % 10 == 0:
        found += [Function(id=f"0000:{slot:02x}:00.0", resource_name=FULL) for slot in range(0x20, 0x22)]
    return tuple(found)


def _node(world: SyntheticCluster, number: int) -> None:
    node = name(number)
    full = number % 10 == 0
    labels = {SCHEDULABLE_LABEL: "true", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    allocatable = {R: UNITS, FULL: 2} if full else {R: UNITS}
    world.put(
        NODE,
        Node(name=node, uid="", labels=labels, allocatable=allocatable, ready=True, memory=256 << 30),
    )
    world.put(GPU_NODE, GpuNode(name=node, uid="", functions=functions(number), reported_at=world.at))
    for index in range(PODS):
        world.put(
            POD,
            Pod(
                name=f"{node}-pod-{index}",
                namespace="kube-system",
                uid="",
                node=node,
                phase="Running",
                memory=1 << 30,
            ),
        )
    for index in range(2):
        placed(world, f"{node}-vm-{index}", node, 2, "a10", R)
    if full:
        placed(world, f"{node}-t4", node, 2, "t4", FULL)


def space_of(world: SyntheticCluster, node: str) -> str:
    """Placed devices live with tenants that no budget bounds."""
    return world.spaces[(int(node[-5:]) * 2) % (len(world.spaces) - 1) + 1]


def placed(world: SyntheticCluster, vmi: str, node: str, units: int, class_name: str, resource: str) -> None:
    """A VM that runs: device, VMI and launcher."""
    space = space_of(world, node)
    _device(
        world,
        vmi,
        space,
        class_name=class_name,
        count=units,
        phase="Bound",
        attachment=Attachment(vmi, f"req-{vmi}", world.at),
        placement=Placement(node, units, world.at),
    )
    pod = Pod(
        name=f"virt-launcher-{vmi}",
        namespace=space,
        uid="",
        node=node,
        phase="Running",
        requests={resource: units},
        memory=8 << 30,
        launcher=True,
        vmi_name=vmi,
    )
    uid = world.put(POD, pod).uid
    world.put(VMI, Vmi(name=vmi, namespace=space, uid="", phase="Running", node=node, active_pods={uid: node}))


def _device(world: SyntheticCluster, device: str, space: str, **fields: object) -> None:
    fields = {"class_name": "a10", "phase": "Held", "finalizers": (DEVICE_FINALIZER,), **fields}
    world.put(DEVICE, Device(name=device, namespace=space, uid="", generation=1, **fields))  # type: ignore[arg-type]
