"""Turns a node's PCI functions into its report: resource names, health, one user per IOMMU group, vGPU types (N5,
O3).

Owns the evaluation: which resource a function serves under KubeVirt's rules, or why it cannot. Pure: `sysfs` reads
the facts, `agent` writes the report. A function that is present but unusable is reported with a reason, unlike one
that is absent (C30).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from reconciler.core.model.objects import Function, Profile
from reconciler.core.model.vocabulary import NVIDIA_VENDOR, FunctionKind, Mode
from reconciler.node_agent.sysfs import Bus, Neighbour, PciFunction

PASSTHROUGH_DRIVER = "vfio-pci"
VIABLE_DRIVERS = ("", PASSTHROUGH_DRIVER, "pci-stub", "pcieport")
"""Drivers the functions of one IOMMU group may have when it goes to a guest (Linux, drivers/vfio: vfio_dev_viable)."""
MAX_FUNCTIONS = 4_096
MAX_PROFILES = 128
MAX_MESSAGE = 2_048
"""Bounds of the GPUNode schema."""
NO_TYPE = "0"
"""`current_vgpu_type` of a virtual function that is no vGPU yet."""


class NameMap(msgspec.Struct, frozen=True):
    """The agent's name tables. `pci`: "VENDOR:DEVICE", upper case, to resource name. `mediated`: vGPU type, spelt by
    `type_key`, to resource name. `modes`: PCI address, serial or "vendor:device", lower case, to the mode a card is
    configured for; a `VGPU` card is never offered whole, even while it has no virtual functions (C31)."""

    pci: dict[str, str] = {}
    mediated: dict[str, str] = {}
    modes: dict[str, Mode] = {}

    def over(self, base: NameMap) -> NameMap:
        """This map, with `base` for anything it does not define."""
        return NameMap({**base.pci, **self.pci}, {**base.mediated, **self.mediated}, {**base.modes, **self.modes})

    def mode_of(self, found: PciFunction) -> Mode | None:
        """The configured mode of a card; its address takes precedence over its serial, and that over its model."""
        keys = (found.address, found.serial, f"{found.vendor}:{found.device}")
        return next((self.modes[key.lower()] for key in keys if key.lower() in self.modes), None)

    def of_type(self, *spellings: str) -> str:
        """Resource name of a vGPU type, "" if none of its spellings has one."""
        return next((self.mediated[key] for one in spellings if (key := type_key(one)) in self.mediated), "")


def type_key(name: str) -> str:
    """A vGPU type's name as KubeVirt compares it: with underscores for spaces."""
    return name.strip().replace(" ", "_")


def reported(found: PciFunction, names: NameMap) -> bool:
    """NVIDIA's displays and accelerators, and any vendor's that KubeVirt permits or the map configures; a server's
    graphics chip is left out."""
    permitted = f"{found.vendor}:{found.device}" in names.pci or names.mode_of(found) is not None
    return (
        found.vendor == NVIDIA_VENDOR or permitted or any(names.of_type(one.name, one.id) for one in found.mdev_types)
    )


def report(bus: Bus, names: NameMap, type_names: Mapping[str, str]) -> tuple[Function, ...]:
    """The functions of `GPUNode.status`, by address. `type_names`: id of a vGPU type to its name, as far as known
    (`sysfs.PciFunction.creatable`)."""
    judge = _Judge(bus, names, type_names)
    holders: dict[str, str] = {}
    made = []
    for found in [found for found in bus.gpus if reported(found, names)][:MAX_FUNCTIONS]:
        function = judge.function(found)
        if function.resource_name and function.healthy and found.group and found.vgpu_type is None:
            holder = holders.setdefault(found.group, found.address)
            if holder != found.address:
                said = f"shares IOMMU group {found.group} with {holder}, and a group has one holder"
                function = msgspec.structs.replace(function, healthy=False, message=said)
        made.append(function)
    return tuple(made)


class _Judge:
    """Evaluates the functions of one bus."""

    def __init__(self, bus: Bus, names: NameMap, type_names: Mapping[str, str]) -> None:
        self._names = names
        self._type_names = type_names
        self._serials = Counter(found.serial for found in bus.gpus if not found.parent)
        self._drivers: dict[str, list[tuple[str, str]]] = {}
        everything: list[PciFunction | Neighbour] = [*bus.gpus, *bus.others]
        for one in everything:
            if one.group:
                self._drivers.setdefault(one.group, []).append((one.address, one.driver))
        self._room = _room(bus)

    def function(self, found: PciFunction) -> Function:
        kind, resource, problems, note = FunctionKind.PHYSICAL, "", list(found.problems), ""
        if found.parent:
            kind = FunctionKind.VIRTUAL_FUNCTION
        if found.mdev_types:
            kind = FunctionKind.MDEV_PARENT
        elif found.parent and found.vgpu_type is not None:
            resource = self._of_vgpu(found, problems)
        elif found.functions or self._names.mode_of(found) is Mode.VGPU:
            note = f"cut into {found.functions} virtual functions, so it is not given whole"
            if not found.functions:
                problems.append("configured for vGPU, and its virtual functions are missing")
        else:
            model = f"{found.vendor}:{found.device}"
            resource = self._names.pci.get(model, "")
            note = "" if resource else f"no resource name is permitted for {model}"
            problems.extend(self._hindrances(found))
        return Function(
            id=found.address,
            stable_id=self._stable_id(found),
            parent=found.parent,
            kind=kind.value,
            resource_name=resource,
            healthy=not problems,
            message="; ".join(problems or filter(None, [note]))[:MAX_MESSAGE],
            profiles=tuple(self._profiles(found))[:MAX_PROFILES],
        )

    def _of_vgpu(self, found: PciFunction, problems: list[str]) -> str:
        """A virtual function that NVIDIA's driver can turn into a vGPU; it serves its type or nothing."""
        id_ = found.vgpu_type or NO_TYPE
        if id_ == NO_TYPE:
            problems.append("no vGPU type is set on it")
            return ""
        name = self._type_names.get(id_, "")
        resource = self._names.of_type(name, f"nvidia-{id_}", id_)
        if not resource:
            problems.append(f"vGPU type {name or id_} has no resource name")
        return resource

    def _hindrances(self, found: PciFunction) -> Iterator[str]:
        """Why a whole function cannot be passed through (C30)."""
        if found.driver != PASSTHROUGH_DRIVER:
            yield f"bound to {found.driver or 'no driver'}, not {PASSTHROUGH_DRIVER}"
        if not found.group:
            yield "it has no IOMMU group; switch the IOMMU on in the firmware and the kernel's command line"
        for address, driver in self._drivers.get(found.group, ()):
            if address != found.address and driver not in VIABLE_DRIVERS:
                yield f"{address} of its IOMMU group {found.group} is bound to {driver}"

    def _stable_id(self, found: PciFunction) -> str:
        """The card's serial, with the index of a virtual function; without a readable or unique serial, the model,
        which still detects a different card at the old address (C28)."""
        if found.serial and self._serials[found.serial] <= 1 and not (found.parent and found.index < 0):
            return f"{found.serial}.{found.index}" if found.parent else found.serial
        return f"{found.vendor}:{found.device}".lower() if found.device else ""

    def _profiles(self, found: PciFunction) -> list[Profile]:
        """vGPU types with a resource name; types sharing a name form one profile."""
        profiles: dict[str, Profile] = {}
        for one in found.mdev_types:
            resource = self._names.of_type(one.name, one.id)
            if not resource:
                continue
            room = self._room.get((found.parent or found.address, one.id))
            remaining = one.available if room is None else min(one.available, room)
            if room is not None:
                self._room[found.parent or found.address, one.id] = room - remaining
            known = profiles.get(resource, Profile(resource))
            profiles[resource] = Profile(resource, known.used + one.used, max(known.remaining, remaining))
        return [profiles[name] for name in sorted(profiles)]


def _room(bus: Bus) -> dict[tuple[str, str], int]:
    """(card, type) to the instances still possible on the whole card, if the driver reports a maximum: each virtual
    function offers an instance until the card is full, so their sum is too high."""
    room: dict[tuple[str, str], int] = {}
    for found in bus.gpus:
        for one in found.mdev_types:
            if one.most:
                key = (found.parent or found.address, one.id)
                room[key] = room.get(key, one.most) - one.used
    return {key: max(0, left) for key, left in room.items()}
