"""Reads a node's PCI functions from sysfs as raw facts, one value per function (N5, O3).

Owns the layout of /sys/bus/pci (kernel documentation: ABI/testing/sysfs-bus-pci, sysfs-bus-vfio-mdev, and NVIDIA's
`nvidia` directory of virtual functions). Only displays and accelerators are read in full; of every other function only
its IOMMU group and driver. Knows nothing of resource names or health: that is `inventory`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reconciler.core.model.vocabulary import NVIDIA_VENDOR

GPU_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)
"""VGA controller, 3D controller, other display controller, processing accelerator. A card's audio (0403), USB and
bridges are no GPUs (C34)."""
MAX_BYTES = 4_096
"""A sysfs attribute is one page; the configuration space of PCI Express is as long."""
_EXTENDED = 0x100
_SERIAL_CAPABILITY = 0x0003
_MAX_CAPABILITIES = 64
_ABSENT = b"\xff\xff\xff\xff"
"""What a function answers that has fallen off the bus."""
_MAX_INSTANCE = re.compile(r"max_instances?=(\d+)")
_SERIAL_KEYWORD = b"SN"
_READ_ONLY_TAG, _END_TAG, _LARGE = 0x90, 0x78, 0x80


class SysfsError(RuntimeError):
    """The PCI bus cannot be read at all, so nothing is known about this node."""


class MdevType(msgspec.Struct, frozen=True):
    """One vGPU type of a parent. `name` as the driver spells it; `most`: maximum instances per card, 0 if not
    reported."""

    id: str
    name: str
    used: int
    available: int
    most: int = 0


class PciFunction(msgspec.Struct, frozen=True, kw_only=True):
    """`vendor` and `device`: four hex digits, upper case. `group`: IOMMU group, "" without one. `parent`: address of
    the physical function of a virtual one, which is its `index`-th, -1 if unknown. `functions`: number of virtual
    functions. `vgpu_type`: id of the vGPU type set, "0" for none, None if the driver has no such setting;
    `creatable`: ids and names of the types that can be set. `problems`: attributes that cannot be read."""

    address: str
    vendor: str = ""
    device: str = ""
    driver: str = ""
    group: str = ""
    serial: str = ""
    parent: str = ""
    index: int = -1
    functions: int = 0
    vgpu_type: str | None = None
    creatable: tuple[tuple[str, str], ...] = ()
    mdev_types: tuple[MdevType, ...] = ()
    problems: tuple[str, ...] = ()


class Neighbour(msgspec.Struct, frozen=True):
    """Any PCI function, reduced to what matters if it shares an IOMMU group with a GPU."""

    address: str
    driver: str
    group: str


class Bus(msgspec.Struct, frozen=True):
    """Displays and accelerators of any vendor by address, and everything else on the bus."""

    gpus: tuple[PciFunction, ...]
    others: tuple[Neighbour, ...]


def read_bus(root: Path) -> Bus:
    """Read everything below `root` (the mount point of sysfs). Raises `SysfsError` if there is no PCI bus; a function
    that cannot be read has `problems`."""
    devices = root / "bus/pci/devices"
    try:
        found = sorted(devices.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise SysfsError(f"{devices}: {error.strerror or error}; is sysfs mounted there?") from error
    gpus, others = [], []
    for path in found:
        reader = _Reader(path)
        if _is_gpu(reader):
            gpus.append(_function(reader, devices))
        else:
            others.append(Neighbour(path.name, reader.link("driver"), reader.link("iommu_group")))
    return Bus(tuple(gpus), tuple(others))


class _Reader:
    """Reads attributes of one function and collects problems."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def text(self, name: str, *, optional: bool = False) -> str:
        """An attribute's text, "" if it cannot be read; recorded as a problem unless optional."""
        try:
            return (self.path / name).read_text(errors="replace")[:MAX_BYTES].strip()
        except FileNotFoundError:
            if not optional:
                self.problems.append(f"{name} is missing")
        except OSError as error:
            self.problems.append(f"{name} cannot be read: {error.strerror or error}")
        return ""

    def number(self, name: str, *, optional: bool = False) -> int:
        """An attribute as a number (decimal or 0x…), 0 if it is not one."""
        text = self.text(name, optional=optional)
        try:
            return int(text, 0) if text else 0
        except ValueError:
            self.problems.append(f"{name} is {text[:32]!r}, not a number")
            return 0

    def bytes(self, name: str) -> bytes:
        """An attribute only root may read; empty without that privilege."""
        try:
            with (self.path / name).open("rb") as file:
                return file.read(MAX_BYTES)
        except OSError:
            return b""

    def link(self, name: str) -> str:
        """The last part of a link's target, "" without the link."""
        try:
            return (self.path / name).readlink().name
        except OSError:
            return ""


def _is_gpu(reader: _Reader) -> bool:
    """A display or accelerator; NVIDIA's count even where the class cannot be read, so that they are reported."""
    vendor = _hex(reader.text("vendor", optional=True))
    code = reader.number("class", optional=vendor != NVIDIA_VENDOR)
    unread = bool(reader.problems) and vendor == NVIDIA_VENDOR
    if not unread:
        reader.problems.clear()
    return unread or code >> 8 in GPU_CLASSES


def _hex(text: str) -> str:
    """Four hex digits of an id, upper case."""
    return text.lower().removeprefix("0x").upper()


def _function(reader: _Reader, devices: Path) -> PciFunction:
    parent = reader.link("physfn")
    if reader.bytes("config")[:4] == _ABSENT:
        reader.problems.append("it does not answer on the PCI bus")
    vgpu_type = None
    if (reader.path / "nvidia/current_vgpu_type").exists():
        vgpu_type = reader.text("nvidia/current_vgpu_type") or "0"
    return PciFunction(
        address=reader.path.name,
        vendor=_hex(reader.text("vendor", optional=True)),
        device=_hex(reader.text("device")),
        driver=reader.link("driver"),
        group=reader.link("iommu_group"),
        serial=_serial(reader) if not parent else _serial(_Reader(devices / parent)),
        parent=parent,
        index=_index(devices / parent, reader.path.name) if parent else -1,
        functions=reader.number("sriov_numvfs", optional=True),
        vgpu_type=vgpu_type,
        creatable=tuple(_creatable(reader)),
        mdev_types=tuple(_mdev_types(reader)),
        problems=tuple(reader.problems),
    )


def _index(parent: Path, address: str) -> int:
    """N of the parent's link virtfnN to the function, -1 if there is none."""
    for link in sorted(parent.glob("virtfn*")):
        digits = link.name.removeprefix("virtfn")
        if digits.isdigit() and _Reader(parent).link(link.name) == address:
            return int(digits)
    return -1


def _creatable(reader: _Reader) -> Iterator[tuple[str, str]]:
    """The driver's list of vGPU types, a heading and then `ID : NAME` per line; empty once one is set."""
    for line in reader.text("nvidia/creatable_vgpu_types", optional=True).splitlines():
        id_, colon, name = line.partition(":")
        if colon and id_.strip().isdigit():
            yield id_.strip(), name.strip()


def _mdev_types(reader: _Reader) -> Iterator[MdevType]:
    supported = reader.path / "mdev_supported_types"
    try:
        types = sorted(supported.iterdir(), key=lambda path: path.name)
    except FileNotFoundError:
        return
    except OSError as error:
        reader.problems.append(f"mdev_supported_types cannot be read: {error.strerror or error}")
        return
    for path in types:
        where = f"mdev_supported_types/{path.name}"
        try:
            used = sum(1 for _ in (path / "devices").iterdir())
        except OSError as error:
            reader.problems.append(f"{where}/devices cannot be read: {error.strerror or error}")
            continue
        told = _MAX_INSTANCE.search(reader.text(f"{where}/description", optional=True))
        yield MdevType(
            id=path.name,
            name=reader.text(f"{where}/name", optional=True) or path.name,
            used=used,
            available=max(0, reader.number(f"{where}/available_instances")),
            most=int(told[1]) if told else 0,
        )


# A serial number: three places, most of them for the privileged only


def _serial(reader: _Reader) -> str:
    """The card's serial number in lower case, "" if none can be read: the kernel's own attribute, the Device Serial
    Number capability of PCI Express, or the vital product data."""
    told = reader.bytes("serial_number").decode(errors="ignore").strip().replace("-", "")
    serial = told or _capability_serial(reader.bytes("config")) or _product_serial(reader.bytes("vpd"))
    return serial.lower() if serial.strip("0fF") else ""


def _capability_serial(config: bytes) -> str:
    """From the list of extended capabilities; each header is id (16 bits), version (4), next offset (12)."""
    offset = _EXTENDED
    for _ in range(_MAX_CAPABILITIES):
        if offset < _EXTENDED or offset + 12 > len(config):
            break
        header, low, high = struct.unpack_from("<III", config, offset)
        if header & 0xFFFF == _SERIAL_CAPABILITY:
            return f"{high:08x}{low:08x}"
        offset = header >> 20
    return ""


def _product_serial(vpd: bytes) -> str:
    """The SN keyword of the read-only section (PCI Local Bus Specification, appendix I)."""
    offset = 0
    while offset + 3 <= len(vpd) and vpd[offset] != _END_TAG:
        if not vpd[offset] & _LARGE:
            offset += 1 + (vpd[offset] & 0x07)
            continue
        length = vpd[offset + 1] | vpd[offset + 2] << 8
        section = vpd[offset + 3 : offset + 3 + length]
        if vpd[offset] == _READ_ONLY_TAG:
            return _keyword(section)
        offset += 3 + length
    return ""


def _keyword(section: bytes) -> str:
    at = 0
    while at + 3 <= len(section):
        length = section[at + 2]
        if section[at : at + 2] == _SERIAL_KEYWORD:
            text = section[at + 3 : at + 3 + length].decode("ascii", errors="ignore").strip("\0 ")
            return "".join(character for character in text if character.isalnum())
        at += 3 + length
    return ""
