"""Reference model for usage: samples what every object in the API held each second, without intervals.

Works on API objects, not events, and decides with hindsight which pods were launchers (U1b).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from reconciler.core.model.objects import Device, GpuClass, Object, Pod, Vmi

SECOND = 1000
Key = tuple[str, str, str]
"""(uid, resource name, state)."""


class Twin:
    """One sample a second; `used` counts unit-seconds."""

    def __init__(self) -> None:
        self.seconds: list[tuple[int, list[Object]]] = []
        self.launchers: dict[str, str] = {}

    def listed(self, vmi: Vmi) -> None:
        """What a VMI lists, if only for a moment between two seconds."""
        self.launchers.update(dict.fromkeys(vmi.active_pods, vmi.name))

    def sample(self, at: int, objects: Mapping[tuple[str, str, str], Object]) -> None:
        self.seconds.append((at, list(objects.values())))

    def used(self, settle: int, start: int, end: int) -> Counter[Key]:
        """Unit-seconds from `start` to `end` (ms, whole seconds)."""
        total: Counter[Key] = Counter()
        for at, objects in self.seconds:
            if start <= at < end:
                total.update(self._devices(objects))
        for (uid, name), raw in self._raw(settle).items():
            for at, units in raw:
                if start <= at < end:
                    total[(uid, name, "raw")] += units
        return Counter({key: units for key, units in total.items() if units})

    def _devices(self, objects: list[Object]) -> Counter[Key]:
        found: Counter[Key] = Counter()
        for device in objects:
            if isinstance(device, Device):
                state = {
                    "Held": "held",
                    "Attached": "held",
                    "Bound": "bound",
                    "Lost": "lost",
                    "Releasing": "bound" if device.placement else "",
                }.get(device.phase, "")
                if state:
                    found[(device.uid, _resource(objects, device.class_name), state)] += device.count
        return found

    def _raw(self, settle: int) -> dict[tuple[str, str], list[tuple[int, int]]]:
        """Per pod and name the seconds of runs that lasted for the settling time."""
        lines: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for at, objects in self.seconds:
            for pod in objects:
                if isinstance(pod, Pod) and pod.node and pod.phase == "Running":
                    for name, wanted in pod.requests.items():
                        covered = sum(
                            device.count
                            for device in objects
                            if isinstance(device, Device)
                            and device.attachment is not None
                            and device.phase not in ("", "Pending")
                            and device.namespace == pod.namespace
                            and device.attachment.vmi_name == self.launchers.get(pod.uid)
                            and _resource(objects, device.class_name) == name
                        )
                        lines.setdefault((pod.uid, name), []).append((at, max(0, wanted - covered)))
        return {key: _settled(line, settle) for key, line in lines.items()}


def _settled(line: list[tuple[int, int]], settle: int) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    run: list[tuple[int, int]] = []
    for at, units in [*line, (line[-1][0] + SECOND, 0)]:
        if units:
            run.append((at, units))
            continue
        if len(run) * SECOND >= settle:
            kept += run
        run = []
    return kept


def _resource(objects: list[Object], class_name: str) -> str:
    return next(one.resource_name for one in objects if isinstance(one, GpuClass) and one.name == class_name)
