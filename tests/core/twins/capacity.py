"""Reference model for units, holds and usage: recomputed from the plain objects for every query, following R5 to R9.

Slow and obvious: loops over lists, no index, no state. The history the binder must remember is passed in: names a
node's agent ever reported, agents that went stale, cards that left a report while the node still advertises them
(C27).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reconciler.core.model.objects import Device, GpuClass, GpuNode, Node, Object, Pod, Vmi


class Sums(NamedTuple):
    """One node's units of one name."""

    served: int | None
    placed: int
    raw: int
    requests: int
    absent: int
    free: int


class Twin:
    """`objects`: all there are. `spoken`, `vanished`: by node; `silent`: nodes."""

    def __init__(
        self,
        objects: Iterable[Object],
        names: Iterable[str],
        spoken: dict[str, set[str]],
        silent: set[str],
        vanished: dict[str, dict[str, int]],
    ) -> None:
        every = list(objects)
        self.nodes = [found for found in every if isinstance(found, Node)]
        self.reports = [found for found in every if isinstance(found, GpuNode)]
        self.devices = [found for found in every if isinstance(found, Device)]
        self.pods = [found for found in every if isinstance(found, Pod)]
        self.vmis = [found for found in every if isinstance(found, Vmi)]
        self.classes = [found for found in every if isinstance(found, GpuClass)]
        self.names = set(names)
        self.spoken, self.silent, self.vanished = spoken, silent, vanished

    # One object

    def name_of(self, device: Device) -> str:
        return next((found.resource_name for found in self.classes if found.name == device.class_name), "")

    def accepted(self, device: Device) -> bool:
        return device.phase in ("Held", "Attached", "Bound", "Lost", "Releasing")

    def on_node(self, device: Device) -> bool:
        return device.placement is not None and self.accepted(device) and device.phase != "Lost"

    def held(self, device: Device) -> bool:
        return self.accepted(device) and device.placement is None and device.phase != "Releasing"

    def live(self, pod: Pod) -> bool:
        return pod.phase not in ("Succeeded", "Failed")

    def vmi_of(self, pod: Pod) -> Vmi | None:
        """R7: the VMI that lists the pod."""
        for vmi in self.vmis:
            if vmi.namespace == pod.namespace and vmi.name == pod.vmi_name and pod.uid in vmi.active_pods:
                return vmi
        return None

    def attached(self, vmi: Vmi | None) -> list[Device]:
        return [
            device
            for device in self.devices
            if vmi is not None
            and device.namespace == vmi.namespace
            and device.attachment is not None
            and device.attachment.vmi_name == vmi.name
        ]

    def request(self, pod: Pod, name: str) -> int:
        return pod.requests.get(name, 0) if self.live(pod) and name in self.names else 0

    # Raw use (R8)

    def raw_for_budget(self, pod: Pod, name: str) -> int:
        """Hand the units of the VMI's devices out one by one, to the pod that asks next."""
        vmi = self.vmi_of(pod)
        devices = [device for device in self.attached(vmi) if self.accepted(device)]
        units = sum(device.count for device in devices if self.name_of(device) == name)
        there = [device.placement.node for device in devices if device.placement is not None]
        return self.request(pod, name) - self.handed_out(vmi, pod, name, units, there, self.pods)

    def raw_for_capacity(self, pod: Pod, name: str) -> int:
        vmi = self.vmi_of(pod)
        units = 0
        for device in self.attached(vmi):
            if self.on_node(device) and device.placement.node == pod.node and self.name_of(device) == name:
                units += device.placement.units
        here = [other for other in self.pods if other.node == pod.node]
        return self.request(pod, name) - self.handed_out(vmi, pod, name, units, [pod.node], here)

    def handed_out(self, vmi: Vmi | None, pod: Pod, name: str, units: int, there: list[str], pods: list[Pod]) -> int:
        """What `pod` gets of the units: those on a node of the placement ask first, then the oldest, then by uid."""
        if vmi is None:
            return 0
        asking = [other for other in pods if self.vmi_of(other) is vmi]
        while asking and units:
            first = asking[0]
            for other in asking:
                if (other.node in there) != (first.node in there):
                    first = other if other.node in there else first
                elif (other.created, other.uid) < (first.created, first.uid):
                    first = other
            got = min(units, self.request(first, name))
            if first is pod:
                return got
            units -= got
            asking.remove(first)
        return 0

    # One node (R5, R9)

    def served(self, node: Node, name: str) -> int | None:
        for report in self.reports:
            if report.name == node.name and node.name not in self.silent and name in self.spoken.get(node.name, ()):
                return sum(1 for function in report.functions if function.healthy and function.resource_name == name)
        if not node.ready or node.allocatable is None:
            return None
        return node.allocatable.get(name, 0)

    def absent(self, node: str, name: str) -> int:
        """Placed units whose launcher is not on the node yet, VMI by VMI."""
        total = 0
        owners = {(d.namespace, d.attachment.vmi_name if d.attachment else None) for d in self.devices}
        for namespace, vmi_name in owners:
            placed = running = 0
            for device in self.devices:
                owner = device.attachment.vmi_name if device.attachment else None
                its = (device.namespace, owner) == (namespace, vmi_name) and self.name_of(device) == name
                if its and self.on_node(device) and device.placement.node == node:
                    placed += device.placement.units
            for pod in self.pods:
                vmi = self.vmi_of(pod)
                if vmi is not None and (vmi.namespace, vmi.name) == (namespace, vmi_name) and pod.node == node:
                    running += self.request(pod, name)
            total += max(0, placed - running)
        return total

    def sums(self, node_name: str, name: str) -> Sums:
        placed = sum(
            device.placement.units
            for device in self.devices
            if self.on_node(device) and device.placement.node == node_name and self.name_of(device) == name
        )
        here = [pod for pod in self.pods if pod.node == node_name]
        raw = sum(self.raw_for_capacity(pod, name) for pod in here)
        requests = sum(self.request(pod, name) for pod in here)
        absent = self.absent(node_name, name)
        node = next((found for found in self.nodes if found.name == node_name), None)
        if node is None:
            return Sums(None, placed, raw, requests, absent, 0)
        served = self.served(node, name)
        free = min((served or 0) - placed - raw, (node.allocatable or {}).get(name, 0) - requests - absent)
        if (
            not node.ready
            or node.labels.get("kubevirt.io/schedulable") != "true"
            or self.vanished.get(node_name, {}).get(name)
        ):
            free = 0
        return Sums(served, placed, raw, requests, absent, max(0, free))

    # All nodes, all tenants

    def held_units(self, name: str) -> int:
        return sum(device.count for device in self.devices if self.held(device) and self.name_of(device) == name)

    def free_units(self, name: str) -> int:
        return sum(self.sums(node.name, name).free for node in self.nodes) - self.held_units(name)

    def used_of_class(self, namespace: str, class_name: str) -> int:
        return sum(
            device.count
            for device in self.devices
            if device.namespace == namespace and device.class_name == class_name and self.accepted(device)
        )

    def used_of_name(self, namespace: str, name: str) -> int:
        devices = sum(
            self.used_of_class(namespace, found.name) for found in self.classes if found.resource_name == name
        )
        return devices + sum(self.raw_for_budget(pod, name) for pod in self.pods if pod.namespace == namespace)
