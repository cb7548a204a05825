"""Which of its launchers' GPU requests a VMI's devices cover, and what remains as raw usage.

Owns R7, R8 and R9's absent launchers, with one function for budgets and one for node capacity. A device's units cover
each name once over all pods listed for its VMI, whoever put them on that list. Knows nothing of classes: each device
comes with its resource name ("" where its class is unknown).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from reconciler.core.model.device_state import accepted, holds_units
from reconciler.core.model.objects import Device, Pod, Vmi

Named: TypeAlias = tuple[Device, str]
"""A device and its class's resource name."""


def is_launcher(pod: Pod, vmi: Vmi | None) -> bool:
    """Whether `pod` is a launcher of `vmi`: it names the VMI, and the VMI's `activePods` lists its UID, in the same
    namespace. Owner references and labels prove nothing (R7)."""
    return (
        vmi is not None and pod.namespace == vmi.namespace and pod.vmi_name == vmi.name and pod.uid in vmi.active_pods
    )


def raw_for_budget(
    pods: Iterable[Pod], vmi: Vmi | None, devices: Iterable[Named], effective_names: Collection[str]
) -> dict[str, dict[str, int]]:
    """By pod UID, the requested units of effective names that no device covers, for budgets and usage records (R6,
    R8). All devices attached to the VMI cover its launchers, wherever they are placed: each, even a Lost one, is
    already charged as a device. An order never accepted is not charged and covers nothing.

    `pods`: all that name the VMI, because its devices cover each unit once. `devices`: any devices; only those attached
    to the VMI count. Units are never negative and never cross names (C10); a terminal pod requests nothing (C03).
    """
    attached = [(device, name) for device, name in _attached(vmi, devices) if accepted(device)]
    nodes = {device.placement.node for device, _ in attached if device.placement is not None}
    covered = _sum((name, device.count) for device, name in attached)
    return _shared_out(sorted(pods, key=lambda pod: _turn(pod, nodes)), vmi, covered, effective_names)


def raw_for_capacity(
    pods: Iterable[Pod], vmi: Vmi | None, devices: Iterable[Named], effective_names: Collection[str]
) -> dict[str, dict[str, int]]:
    """By pod UID, the requested units of effective names that no device holds on the pod's own node; nothing for a
    pod that is not scheduled (R8, C03). A Lost device holds no units, so a launcher that still runs counts as raw
    usage there (P4). `pods`, `devices`: as in `raw_for_budget`.
    """
    attached = list(_attached(vmi, devices))
    on_node: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: _turn(pod, ())):
        on_node.setdefault(pod.node, []).append(pod)
    raw: dict[str, dict[str, int]] = {pod.uid: {} for pod in on_node.pop("", ())}
    for node, here in on_node.items():
        raw |= _shared_out(here, vmi, _held(attached, node), effective_names)
    return raw


def _turn(pod: Pod, nodes: Collection[str]) -> tuple[bool, int, str]:
    """Whose request is covered first: pods on a node of the placement, then the oldest, then by UID (R8)."""
    return pod.node not in nodes, pod.created, pod.uid


def _shared_out(
    pods: Iterable[Pod], vmi: Vmi | None, covered: dict[str, int], effective_names: Collection[str]
) -> dict[str, dict[str, int]]:
    """What each pod requests beyond its share of the `covered` units, which the launchers take in the given order."""
    left = dict(covered)
    raw: dict[str, dict[str, int]] = {}
    for pod in pods:
        wanted = requested(pod, effective_names)
        raw[pod.uid] = _uncovered(wanted, left) if is_launcher(pod, vmi) else wanted
        for name, count in wanted.items():
            if name in left:
                left[name] -= count - raw[pod.uid].get(name, 0)
    return raw


def requested(pod: Pod, effective_names: Collection[str]) -> dict[str, int]:
    """A pod's GPU request: effective names only; empty once the pod is terminal (R6)."""
    if pod.terminal:
        return {}
    return {name: count for name, count in pod.requests.items() if count and name in effective_names}


def absent_launcher_units(vmi: Vmi | None, node: str, pods: Iterable[Pod], devices: Iterable[Named]) -> dict[str, int]:
    """Placed units on a node whose launcher is not there yet: the units the VMI's devices hold on `node` minus
    those its live launchers there request, per name, at least 0 (R9).

    `devices`: those attached to one VMI; `vmi` None: not seen, so it has no launcher running. The kubelet
    does not know these units, so they are subtracted from what it will admit.
    """
    placed = _held(devices, node)
    running: dict[str, int] = {}
    for pod in pods:
        if pod.node == node and not pod.terminal and is_launcher(pod, vmi):
            for name, count in pod.requests.items():
                running[name] = running.get(name, 0) + count
    return _uncovered(placed, running)


def _attached(vmi: Vmi | None, devices: Iterable[Named]) -> Iterable[Named]:
    for device, name in devices:
        owner = device.attachment
        if vmi is not None and owner is not None and (device.namespace, owner.vmi_name) == (vmi.namespace, vmi.name):
            yield device, name


def _held(devices: Iterable[Named], node: str) -> dict[str, int]:
    return _sum(
        (name, device.placement.units)
        for device, name in devices
        if holds_units(device) and device.placement is not None and device.placement.node == node
    )


def _sum(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, count in amounts:
        if name:
            total[name] = total.get(name, 0) + count
    return total


def _uncovered(amounts: Mapping[str, int], covered: Mapping[str, int]) -> dict[str, int]:
    left = {name: count - covered.get(name, 0) for name, count in amounts.items()}
    return {name: count for name, count in left.items() if count > 0}
