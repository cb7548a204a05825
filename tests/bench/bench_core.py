"""What one event costs the core at 100, 1,000 and 10,000 nodes: fold and decide, and what grows with the size.

`python -m tests.bench.bench_core [NODES ...]` prints it. Each figure is the median over repetitions of one
story; a ratio near 1 says that the cost does not depend on the size of the cluster. Then snapshot and replay.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import msgspec

from reconciler.core.model.objects import DEVICE, GPU_NODE, NODE, POD, VMI, Constraints, GpuNode, Node, Pod, Vmi
from tests.bench import synthetic_cluster as synthetic_cluster
from tests.bench.synthetic_cluster import SyntheticCluster

SIZES = (100, 1_000, 10_000)
TURNS = 30
Figures = dict[str, tuple[float, float, float]]
"""Event kind to median (fold microseconds, decide microseconds, decisions)."""


def heartbeat(world: SyntheticCluster, turn: int) -> None:
    """The kubelet's status again, nothing new in it."""
    node = world.objects[(NODE.name, "", synthetic_cluster.name(turn % world.nodes))]
    world.tell(world.observation(NODE, msgspec.structs.replace(node, resource_version=f"h{turn}")))
    world.run()


def relabel(world: SyntheticCluster, turn: int) -> None:
    node = world.objects[(NODE.name, "", synthetic_cluster.name(turn % world.nodes))]
    assert isinstance(node, Node)
    world.put(NODE, msgspec.structs.replace(node, labels={**node.labels, "turn": str(turn)}))
    world.run()


def plain_pod(world: SyntheticCluster, turn: int) -> None:
    """A pod without GPUs starts and ends."""
    pod = Pod(name=f"job-{turn}", namespace="kube-system", uid="", node=synthetic_cluster.name(turn % world.nodes))
    world.put(POD, msgspec.structs.replace(pod, phase="Running", memory=1 << 30))
    world.run()
    world.gone(POD, "kube-system", f"job-{turn}")


def raw_pod(world: SyntheticCluster, turn: int) -> None:
    """A pod that asks for a GPU by name starts and ends."""
    world.pod(f"raw-{turn}", synthetic_cluster.name(turn % world.nodes), 1, ns="tenant-x0")
    world.gone(POD, "tenant-x0", f"raw-{turn}")


def vmi_phase(world: SyntheticCluster, turn: int) -> None:
    node = synthetic_cluster.name(turn % world.nodes)
    vmi = world.objects[(VMI.name, synthetic_cluster.space_of(world, node), f"{node}-vm-0")]
    assert isinstance(vmi, Vmi)
    phase = "Paused" if vmi.phase == "Running" else "Running"
    world.put(VMI, msgspec.structs.replace(vmi, phase=phase))
    world.run()


def report(world: SyntheticCluster, turn: int) -> None:
    """A card falls ill and recovers."""
    number = turn % world.nodes
    found = synthetic_cluster.functions(number)
    ill = (msgspec.structs.replace(found[0], healthy=False), *found[1:])
    for functions in (ill, found):
        world.put(
            GPU_NODE, GpuNode(name=synthetic_cluster.name(number), uid="", functions=functions, reported_at=world.at)
        )
        world.run()


def cycle(world: SyntheticCluster, turn: int) -> None:
    """Ordered, held, asked for, bound, stopped, deleted."""
    order, vmi = f"cycle-{turn}", f"cycle-vm-{turn}"
    world.order(order, count=2, ns="tenant-x0")
    node = world.start(vmi, order, units=2, ns="tenant-x0")
    world.gone(POD, "tenant-x0", f"virt-launcher-{vmi}")
    world.gone(VMI, "tenant-x0", vmi)
    device = world.device(order, "tenant-x0")
    assert node and device.phase == "Held", device
    world.change(DEVICE, "tenant-x0", order, deleting=world.at)


def picky_start(world: SyntheticCluster, turn: int) -> None:
    """A start that names its node, and one that no node fits."""
    order = f"picky-{turn}"
    world.order(order, ns="tenant-x0")
    for label, value in (("kubernetes.io/hostname", "nowhere"), ("topology.kubernetes.io/zone", "zone-2")):
        world.ask(f"picky-vm-{turn}", order, ns="tenant-x0", constraints=Constraints(node_selector={label: value}))
    assert world.device(order, "tenant-x0").phase == "Bound"
    world.change(DEVICE, "tenant-x0", order, attachment=None, bind_request=None)
    world.change(DEVICE, "tenant-x0", order, deleting=world.at)


def full_stop(world: SyntheticCluster, turn: int) -> None:
    """A VM of the full type stops, orders wait for more units than it gives back, and it comes back."""
    node = synthetic_cluster.name(turn * 10 % world.nodes)
    space, vmi = synthetic_cluster.space_of(world, node), f"{node}-t4"
    world.gone(POD, space, f"virt-launcher-{vmi}")
    world.gone(VMI, space, vmi)
    world.ask(vmi, vmi, ns=space)
    world.vmi(vmi, ns=space)
    world.launcher(vmi, node, 2, ns=space, resource=synthetic_cluster.FULL)


def second(world: SyntheticCluster, turn: int) -> None:
    """A second passes after one of the changes above: the classes' numbers are published."""
    world.later(1)


STORIES: dict[str, Callable[[SyntheticCluster, int], None]] = {
    "node heartbeat, nothing new": heartbeat,
    "node label change": relabel,
    "pod start and end": plain_pod,
    "GPU pod start and end": raw_pod,
    "VMI phase change": vmi_phase,
    "agent report, ill and well": report,
    "order, hold, bind, stop, delete": cycle,
    "bind by selector, none and one": picky_start,
    "VM of a full type stops, starts": full_stop,
}


def measure(world: SyntheticCluster) -> Figures:
    figures: Figures = {}
    for name, story in STORIES.items():
        own, publishing = [], []
        for turn in range(TURNS):
            own.append(_spent(world, story, turn))
            publishing.append(_spent(world, second, turn))
        figures[name] = _medians(own)
        if story in (cycle, raw_pod):
            figures[f"  the second after: {name}"] = _medians(publishing)
    return figures


def _spent(
    world: SyntheticCluster, story: Callable[[SyntheticCluster, int], None], turn: int
) -> tuple[float, float, float]:
    world.fold_seconds = world.decide_seconds = 0.0
    world.decided = 0
    story(world, turn)
    return world.fold_seconds * 1e6, world.decide_seconds * 1e6, float(world.decided)


def _medians(spent: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    fold, decide, decided = zip(*spent, strict=True)
    return statistics.median(fold), statistics.median(decide), statistics.median(decided)


def show(sizes: list[int], found: list[Figures]) -> None:
    head = "".join(f"{size:>9,} nodes" for size in sizes)
    ratios = "".join(f"  {size:,}/{sizes[0]:,}" for size in sizes[1:])
    print(f"\nfold + decide, microseconds (decisions)\n{'':<48}{head}  {ratios}")
    for name in found[0]:
        cells, totals = "", []
        for figures in found:
            fold, decide, decided = figures[name]
            totals.append(fold + decide)
            cells += f"{fold + decide:>10,.0f} ({decided:>2.0f})"
        ratios = "".join(f"{total / totals[0]:>12.2f}" for total in totals[1:])
        print(f"{name:<48}{cells}  {ratios}")


def main() -> None:
    sizes = [int(argument) for argument in sys.argv[1:]] or list(SIZES)
    found = []
    for size in sizes:
        start = time.perf_counter()
        world = synthetic_cluster.build(size)
        print(
            f"{size:>7,} nodes: {len(world.entries):,} entries folded in {time.perf_counter() - start:.1f} s",
            flush=True,
        )
        found.append(measure(world))
    show(sizes, found)


if __name__ == "__main__":
    main()
