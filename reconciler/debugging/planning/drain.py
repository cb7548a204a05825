"""Plan a node drain: which VMs must restart, in which order, and where each would land.

Owns the order (the largest set first, then by name: a small set still fits where a large one does not) and trying
one restart after another on a copy of the state. The binder's own checks decide. Neighbours: `plan`, `what_if`.

A VM that fits nowhere is left stopped: its held devices stay held. Pending orders do not receive what a
stop frees.
"""

from __future__ import annotations

import msgspec

from reconciler.core.admission import checks, placement
from reconciler.core.admission.placement import Verdict
from reconciler.core.model.device_state import holds_units
from reconciler.core.model.objects import Model
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging.planning import what_if
from reconciler.debugging.planning.plan import Blocker, blockers, start_refusals


class Move(Model, frozen=True, kw_only=True):
    """One VM of the drained node. `units`: per resource name. `node`: where its set would go, "" where it fits nowhere;
    then `blockers` gives the reasons, `nodes` the verdict on every other node, and `missing` the units that the closest
    one lacks (0: units are not the problem)."""

    namespace: str
    vmi: str
    devices: tuple[str, ...]
    units: dict[str, int]
    node: str = ""
    missing: int = 0
    blockers: tuple[Blocker, ...] = ()
    nodes: tuple[Verdict, ...] = ()


class RawPod(Model, frozen=True, kw_only=True):
    """A pod on the node that uses GPUs no device covers: its owner has to move it (R8)."""

    namespace: str
    pod: str
    vmi: str
    units: dict[str, int]


class Drain(Model, frozen=True, kw_only=True):
    """`moves` in the order in which to restart them."""

    node: str
    moves: tuple[Move, ...] = ()
    raw: tuple[RawPod, ...] = ()

    @property
    def stuck(self) -> int:
        """VMs that fit nowhere else."""
        return sum(not move.node for move in self.moves)


def drain(state: PlacementState, node: str) -> Drain:
    """The restarts that would empty a node (cordoned first), each tried on the state the previous ones left. Raises
    `LookupError` for an unknown node. The state is not changed."""
    tried = what_if.copy(state)
    what_if.cordon(tried, node)
    moves = tuple(_move(tried, node, namespace, vmi) for namespace, vmi in _largest_first(state, node))
    return Drain(node=node, moves=moves, raw=_raw(state, node))


def _largest_first(state: PlacementState, node: str) -> list[tuple[str, str]]:
    """(namespace, VMI) of every set on the node."""
    sizes: dict[tuple[str, str], int] = {}
    for device in state.devices_on(node):
        if device.attachment is None:
            continue
        vmi = state.vmi(device.namespace, device.attachment.vmi_name)
        runs_there = vmi is not None and any(pod.node == node for pod in state.launchers(vmi))
        if holds_units(device) or runs_there:
            key = device.namespace, device.attachment.vmi_name
            sizes[key] = sum(found.count for found in state.devices_of_vmi(*key))
    return sorted(sizes, key=lambda key: (-sizes[key], key))


def _move(tried: PlacementState, drained: str, namespace: str, vmi: str) -> Move:
    before = what_if.restart_of(tried, namespace, vmi)
    names = tuple(device.name for device in tried.devices_of_vmi(namespace, vmi))
    what_if.stop(tried, namespace, vmi)
    start = what_if.current(tried, before)
    wanted = checks.set_request(tried, start)
    move = Move(namespace=namespace, vmi=vmi, devices=names, units=wanted.needs)
    answer = checks.judge_start(tried, start)
    if isinstance(answer, Verdict):
        what_if.place(tried, start, answer.node)
        return msgspec.structs.replace(move, node=answer.node)
    others = tuple(found for found in placement.verdicts(tried, wanted) if found.node != drained)
    return msgspec.structs.replace(
        move,
        missing=min((found.missing for found in others if found.missing), default=0),
        blockers=blockers(start_refusals(tried, start)),
        nodes=others,
    )


def _raw(state: PlacementState, node: str) -> tuple[RawPod, ...]:
    found = []
    for uid in sorted(state.gpu_pods_on.get(node, ())):
        pod, units = state.pod(uid), state.raw_capacity.get(uid)
        if pod is None or not units:
            continue
        vmi = state.vmi(pod.namespace, pod.vmi_name) if pod.vmi_name else None
        if vmi is None or uid not in vmi.active_pods or not state.devices_of_vmi(vmi.namespace, vmi.name):
            found.append(RawPod(namespace=pod.namespace, pod=pod.name, vmi=pod.vmi_name, units=dict(units)))
    return tuple(sorted(found, key=lambda pod: (pod.namespace, pod.pod)))
