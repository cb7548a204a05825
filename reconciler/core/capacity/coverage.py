"""Which of its launchers' GPU requests a VMI's devices cover, and what remains as raw usage.

Owns R7, R8 and R9's absent launchers, with one function for budgets and one for node capacity. Knows nothing of
classes: each device comes with its resource name ("" where its class is unknown).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from reconciler.core.model.device_state import accepted, holds_units
from reconciler.core.model.objects import Device, Pod, Vmi

Named: TypeAlias = tuple[Device, str]
"""A device and its class's resource name."""


def is_launcher(pod: Pod, vmi: Vmi | None) -> bool:
    """Whether `pod` is a launcher of `vmi`: the VMI's `activePods` lists its UID, in the same namespace.
    Owner references and labels prove nothing (R7)."""
    return vmi is not None and pod.namespace == vmi.namespace and pod.uid in vmi.active_pods


def covered_for_budget(pod: Pod, vmi: Vmi | None, devices: Iterable[Named]) -> dict[str, int]:
    """Units per name of the launcher's request that the VMI's devices cover, wherever they are placed: each, even
    a Lost one, is already charged as a device (R8). An order never accepted is not charged and covers
    nothing. `devices`: any devices; only those attached to the VMI count."""
    return _sum((name, device.count) for device, name in _of(pod, vmi, devices) if accepted(device))


def covered_for_capacity(pod: Pod, vmi: Vmi | None, devices: Iterable[Named]) -> dict[str, int]:
    """Units per name that devices hold on the launcher's own node (R8). A Lost device holds none, so a
    launcher that still runs counts as raw usage there (P4)."""
    return _held(_of(pod, vmi, devices), pod.node)


def raw_for_budget(
    pod: Pod, vmi: Vmi | None, devices: Iterable[Named], effective_names: Collection[str]
) -> dict[str, int]:
    """Requested units of effective names that no device covers, for budgets and usage records (R6, R8).
    Never negative, never across names or pods (C10); a terminal pod requests nothing (C03)."""
    return _uncovered(requested(pod, effective_names), covered_for_budget(pod, vmi, devices))


def raw_for_capacity(
    pod: Pod, vmi: Vmi | None, devices: Iterable[Named], effective_names: Collection[str]
) -> dict[str, int]:
    """Requested units of effective names that no device holds on the pod's node; empty for a pod that is not
    scheduled (R8, C03)."""
    if not pod.node:
        return {}
    return _uncovered(requested(pod, effective_names), covered_for_capacity(pod, vmi, devices))


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


def _of(pod: Pod, vmi: Vmi | None, devices: Iterable[Named]) -> Iterable[Named]:
    if vmi is None or not is_launcher(pod, vmi):
        return
    for device, name in devices:
        attachment = device.attachment
        if device.namespace == vmi.namespace and attachment is not None and attachment.vmi_name == vmi.name:
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
