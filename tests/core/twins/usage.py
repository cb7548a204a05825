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
        self.claimed: set[tuple[str, str]] = set()

    def listed(self, vmi: Vmi) -> None:
        """What a VMI lists, if only for a moment between two seconds."""
        self.launchers.update(dict.fromkeys(vmi.active_pods, vmi.name))

    def came(self, vmi: Vmi, objects: Mapping[tuple[str, str, str], Object]) -> None:
        """A VMI appears: the starts that its devices are attached for are no longer in the air (W7)."""
        for device in objects.values():
            if not isinstance(device, Device) or device.attachment is None or vmi.final:
                continue
            if (device.namespace, device.attachment.vmi_name) == (vmi.namespace, vmi.name):
                self.claimed.add((device.uid, device.attachment.request_id))

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
                start = "" if device.attachment is None else device.attachment.request_id
                if state and device.placement is not None and start and (device.uid, start) not in self.claimed:
                    state = "" if device.template else "held"
                if state:
                    found[(device.uid, _resource(objects, device.class_name), state)] += device.count
        return found

    def _raw(self, settle: int) -> dict[tuple[str, str], list[tuple[int, int]]]:
        """Per pod and name the seconds of runs that lasted for the settling time."""
        lines: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for at, objects in self.seconds:
            pods = [one for one in objects if isinstance(one, Pod) and one.node and one.phase == "Running"]
            for pod in pods:
                for name, wanted in pod.requests.items():
                    lines.setdefault((pod.uid, name), []).append((at, wanted - self._covered(objects, pods, pod, name)))
        return {key: _settled(line, settle) for key, line in lines.items()}

    def _covered(self, objects: list[Object], pods: list[Pod], pod: Pod, name: str) -> int:
        """What the pod gets of its VMI's devices, which are given out pod by pod: on the placement's node first, then
        by age, then by uid."""
        vmi = self.launchers.get(pod.uid)
        devices = [
            device
            for device in objects
            if isinstance(device, Device)
            and device.attachment is not None
            and device.phase not in ("", "Pending")
            and device.namespace == pod.namespace
            and device.attachment.vmi_name == vmi
        ]
        nodes = {device.placement.node for device in devices if device.placement is not None}
        left = sum(device.count for device in devices if _resource(objects, device.class_name) == name)
        fellows = [one for one in pods if one.namespace == pod.namespace and self.launchers.get(one.uid) == vmi]
        for fellow in sorted(fellows, key=lambda one: (one.node not in nodes, one.created, one.uid)):
            given = min(left, fellow.requests.get(name, 0))
            left -= given
            if fellow.uid == pod.uid:
                return given
        return 0


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
