"""The node agent on a fake sysfs: what is a GPU, what it serves, why it cannot (N5, O3)."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from reconciler.cluster.memory import Call, Fault, MemoryCluster
from reconciler.cluster.port import Unavailable
from reconciler.core.capacity.supply import same_function
from reconciler.core.model.objects import GPU_NODE, KUBEVIRT, Function
from reconciler.core.model.vocabulary import Mode
from reconciler.demo.virtual_time import VirtualTime
from reconciler.node_agent.agent import Agent, MapError, read_map
from reconciler.node_agent.inventory import NameMap, report
from reconciler.node_agent.sysfs import SysfsError, read_bus
from tests.edges.memory_cluster import START_MS, named

A10 = "nvidia.com/GA102GL_A10"
T4Q = "nvidia.com/NVIDIA_A10-4Q"
NAMES = NameMap(pci={"10DE:2236": A10}, mediated={"NVIDIA_A10-4Q": T4Q})


class FakeSysfs:
    """A tree as the kernel lays it out, as far as anyone reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    def path(self, address: str) -> Path:
        return self.root / "bus/pci/devices" / address

    def add(
        self,
        address: str,
        *,
        device: str = "0x2236",
        vendor: str = "0x10de",
        code: str = "0x030200",
        driver: str = "vfio-pci",
        group: str | None = None,
        serial: str = "",
        **files: str,
    ) -> Path:
        """A function; its IOMMU group is its own unless told otherwise."""
        path = self.path(address)
        path.mkdir()
        for name, text in {"vendor": vendor, "device": device, "class": code, **files}.items():
            (path / name).write_text(f"{text}\n")
        if driver:
            (path / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
        chosen = address.replace(":", "") if group is None else group
        if chosen:
            (path / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{chosen}")
        if serial:
            (path / "serial_number").write_text(f"{serial}\n")
        return path

    def add_virtual(self, parent: str, index: int, address: str, **more: Any) -> Path:
        path = self.add(address, driver="nvidia", **more)
        (path / "physfn").symlink_to(f"../{parent}")
        (self.path(parent) / f"virtfn{index}").symlink_to(f"../{address}")
        return path

    def add_type(
        self, address: str, id_: str = "nvidia-588", *, name: str, available: int, used: int = 0, description: str = ""
    ) -> Path:
        path = self.path(address) / "mdev_supported_types" / id_
        (path / "devices").mkdir(parents=True)
        for index in range(used):
            (path / "devices" / f"0000-{index}").mkdir()
        (path / "name").write_text(f"{name}\n")
        (path / "available_instances").write_text(f"{available}\n")
        (path / "description").write_text(description)
        return path


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path / "sys")


def look(sysfs: FakeSysfs, names: NameMap = NAMES, types: dict[str, str] | None = None) -> dict[str, Function]:
    return {found.id: found for found in report(read_bus(sysfs.root), names, types or {})}


def units(found: dict[str, Function], name: str) -> int:
    """As the binder counts them (R5)."""
    whole = sum(one.resource_name == name for one in found.values() if one.healthy)
    profiles = [one for function in found.values() if function.healthy for one in function.profiles]
    return whole + sum(one.used + one.remaining for one in profiles if one.resource_name == name)


def test_C34_companion_functions_bridges_and_other_vendors_are_no_gpus(sysfs: FakeSysfs) -> None:
    for slot in ("3b", "5e"):
        sysfs.add(f"0000:{slot}:00.0", code="0x030000", group=slot)
        sysfs.add(f"0000:{slot}:00.1", code="0x040300", group=slot)
        sysfs.add(f"0000:{slot}:00.2", code="0x0c0330", group=slot)
    sysfs.add("0000:00:01.0", vendor="0x8086", code="0x060400", driver="pcieport")
    sysfs.add("0000:02:00.0", vendor="0x1002", code="0x030000")
    found = look(sysfs)
    assert sorted(found) == ["0000:3b:00.0", "0000:5e:00.0"]
    assert units(found, A10) == 2


AMD, INTEL = "amd.com/MI210", "intel.com/MAX_1100"


@pytest.mark.parametrize(
    ("vendor", "device", "code"),
    [
        ("0x1002", "0x740f", "0x038000"),
        ("0x1002", "0x740f", "0x120000"),
        ("0x1002", "0x740f", "0x030000"),
        ("0x8086", "0x0bda", "0x038000"),
        ("0x8086", "0x0bda", "0x030200"),
    ],
)
def test_n5_a_function_that_kubevirt_permits_is_reported_whoever_made_it(
    sysfs: FakeSysfs, vendor: str, device: str, code: str
) -> None:
    """N5: AMD and Intel alike, with class 0300, 0302, 0380 or 1200, healthy or with what keeps it from being used."""
    names = NameMap(pci={"10DE:2236": A10, "1002:740F": AMD, "8086:0BDA": INTEL})
    sysfs.add("0000:3b:00.0", vendor=vendor, device=device, code=code)
    sysfs.add("0000:5e:00.0", vendor=vendor, device=device, code=code, driver="amdgpu")
    found = look(sysfs, names)
    assert {one.resource_name for one in found.values()} == {AMD if vendor == "0x1002" else INTEL}
    assert units(found, found["0000:3b:00.0"].resource_name) == 1
    assert found["0000:5e:00.0"].message == "bound to amdgpu, not vfio-pci"
    assert found["0000:3b:00.0"].stable_id == f"{vendor}:{device}".replace("0x", "")


@pytest.mark.parametrize("code", ["0x030000", "0x030200", "0x038000", "0x120000"])
def test_n5_nvidias_functions_are_reported_without_a_name(sysfs: FakeSysfs, code: str) -> None:
    sysfs.add("0000:3b:00.0", device="0x1234", code=code)
    (card,) = look(sysfs).values()
    assert (card.resource_name, card.message) == ("", "no resource name is permitted for 10DE:1234")


def test_n5_a_permitted_function_of_another_class_and_an_unpermitted_display_are_no_gpus(sysfs: FakeSysfs) -> None:
    """N5, C34: a network function that KubeVirt permits, a board's graphics chip, a display whose model cannot be
    read. They still count as neighbours in an IOMMU group."""
    names = NameMap(pci={"15B3:101E": "mellanox.com/CX6_VF", "10DE:2236": A10})
    sysfs.add("0000:17:00.1", vendor="0x15b3", device="0x101e", code="0x020000")
    sysfs.add("0000:03:00.0", vendor="0x1a03", device="0x2000", code="0x030000", group="7", driver="ast")
    sysfs.add("0000:3b:00.0", group="7")
    (sysfs.add("0000:5e:00.0", vendor="0x1002") / "device").unlink()
    (card,) = look(sysfs, names).values()
    assert card.id == "0000:3b:00.0"
    assert card.message == "0000:03:00.0 of its IOMMU group 7 is bound to ast"


def test_n5_a_parent_of_permitted_vgpu_types_is_reported_whoever_made_it(sysfs: FakeSysfs) -> None:
    """N5: a mediated type has a name of its own; the card has none."""
    names = NameMap(mediated={"i915-GVTg_V5_4": "intel.com/GVTg_V5_4"})
    for address in ("0000:00:02.0", "0000:00:03.0"):
        sysfs.add(address, vendor="0x8086", device="0x3e96", code="0x030000", driver="i915")
    sysfs.add_type("0000:00:02.0", "i915-GVTg_V5_4", name="GVTg_V5_4", available=2)
    (card,) = look(sysfs, names).values()
    assert units({card.id: card}, "intel.com/GVTg_V5_4") == 2


def test_C34_one_iommu_group_has_one_holder(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:3b:00.0", group="7")
    sysfs.add("0000:3c:00.0", group="7")
    found = look(sysfs)
    assert units(found, A10) == 1
    assert found["0000:3b:00.0"].healthy
    assert not found["0000:3c:00.0"].healthy
    assert "IOMMU group 7 with 0000:3b:00.0" in found["0000:3c:00.0"].message


def test_an_unusable_function_does_not_hold_its_group(sysfs: FakeSysfs) -> None:
    """N5: the group's holder is one that can be used."""
    sysfs.add("0000:3b:00.0", group="7", driver="")
    sysfs.add("0000:3c:00.0", group="7")
    assert [one.id for one in look(sysfs).values() if one.healthy] == ["0000:3c:00.0"]


def test_a_group_with_a_busy_companion_cannot_be_passed_through(sysfs: FakeSysfs) -> None:
    """N5: vfio refuses a group of which the host uses a part."""
    sysfs.add("0000:3b:00.0", group="7")
    sysfs.add("0000:3b:00.1", code="0x040300", group="7", driver="snd_hda_intel")
    (card,) = look(sysfs).values()
    assert (card.healthy, card.message) == (False, "0000:3b:00.1 of its IOMMU group 7 is bound to snd_hda_intel")


@pytest.mark.parametrize("driver", ["nvidia", "nouveau", ""])
def test_C30_present_with_the_wrong_driver_is_not_absent(sysfs: FakeSysfs, driver: str) -> None:
    path = sysfs.add("0000:3b:00.0", driver=driver)
    (card,) = look(sysfs).values()
    assert card.resource_name == A10, "the report speaks of the name, and serves none of it"
    assert not card.healthy
    assert card.message == f"bound to {driver or 'no driver'}, not vfio-pci"
    (path / "driver").unlink(missing_ok=True)
    (path / "driver").symlink_to("../../../../bus/pci/drivers/vfio-pci")
    (card,) = look(sysfs).values()
    assert (card.healthy, card.message) == (True, "")


def test_C30_without_an_iommu_group_it_says_so(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:3b:00.0", group="")
    (card,) = look(sysfs).values()
    assert not card.healthy and "no IOMMU group" in card.message


def test_C27_a_card_that_is_gone_is_no_longer_reported_and_one_off_the_bus_is_unhealthy(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:3b:00.0")
    second = sysfs.add("0000:5e:00.0")
    assert units(look(sysfs), A10) == 2
    (second / "config").write_bytes(b"\xff" * 64)
    found = look(sysfs)
    assert units(found, A10) == 1 and "PCI bus" in found["0000:5e:00.0"].message
    for name in ("vendor", "device", "class", "driver", "iommu_group", "config"):
        (second / name).unlink()
    second.rmdir()
    assert sorted(look(sysfs)) == ["0000:3b:00.0"]


def test_C28_a_serial_follows_the_card_to_its_new_address(sysfs: FakeSysfs, tmp_path: Path) -> None:
    sysfs.add("0000:3b:00.0", serial="00-00-00-00-00-00-00-A1")
    before = look(sysfs)["0000:3b:00.0"]
    rebooted = FakeSysfs(tmp_path / "rebooted")
    rebooted.add("0000:5e:00.0", serial="00-00-00-00-00-00-00-A1")
    rebooted.add("0000:3b:00.0", device="0x1eb8", serial="00-00-00-00-00-00-00-B9")
    after = look(rebooted)
    assert same_function(before, after["0000:5e:00.0"])
    assert not same_function(before, after["0000:3b:00.0"])


def test_C28_without_a_serial_the_model_tells_another_card_at_the_old_address(sysfs: FakeSysfs, tmp_path: Path) -> None:
    sysfs.add("0000:3b:00.0")
    rebooted = FakeSysfs(tmp_path / "rebooted")
    rebooted.add("0000:3b:00.0", device="0x1eb8")
    before, after = look(sysfs)["0000:3b:00.0"], look(rebooted)["0000:3b:00.0"]
    assert (before.stable_id, after.stable_id) == ("10de:2236", "10de:1eb8")
    assert not same_function(before, after)


def test_C28_two_cards_with_one_serial_have_none(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:3b:00.0", serial="00-00-00-00-00-00-00-A1")
    sysfs.add("0000:5e:00.0", serial="00-00-00-00-00-00-00-A1")
    sysfs.add("0000:6f:00.0", serial="00-00-00-00-00-00-00-00")
    assert {found.stable_id for found in look(sysfs).values()} == {"10de:2236"}


def test_the_serial_is_found_in_the_configuration_space_and_in_the_vital_product_data(sysfs: FakeSysfs) -> None:
    """C28: older kernels have no attribute for it."""
    first, second = sysfs.add("0000:3b:00.0"), sysfs.add("0000:5e:00.0")
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x148 << 20 | 1 << 16 | 0x0001)
    struct.pack_into("<III", config, 0x148, 1 << 16 | 0x0003, 0x5678, 0x1234)
    (first / "config").write_bytes(bytes(config))
    name = b"NVIDIA A10"
    read_only = b"PN\x03900" + b"SN\x0b13225210AB \0"[:14]
    (second / "vpd").write_bytes(
        b"\x82"
        + struct.pack("<H", len(name))
        + name
        + b"\x90"
        + struct.pack("<H", len(read_only))
        + read_only
        + b"\x78"
    )
    found = look(sysfs)
    assert found["0000:3b:00.0"].stable_id == "0000123400005678"
    assert found["0000:5e:00.0"].stable_id == "13225210ab"


@pytest.mark.parametrize("vpd", [b"", b"\x90", b"\x90\xff\xff", b"\x82\x05\x00ab", b"\x90\x03\x00SN\xff", b"\x05" * 40])
def test_broken_vital_product_data_is_no_serial(sysfs: FakeSysfs, vpd: bytes) -> None:
    """R10"""
    (sysfs.add("0000:3b:00.0") / "vpd").write_bytes(vpd)
    assert look(sysfs)["0000:3b:00.0"].stable_id == "10de:2236"


def test_C31_virtual_functions_come_back_in_steps_and_the_card_is_never_whole(sysfs: FakeSysfs) -> None:
    names = NameMap(NAMES.pci, NAMES.mediated, {"10de:2236": Mode.VGPU})
    card = sysfs.add("0000:3b:00.0", sriov_numvfs="0", sriov_totalvfs="16", serial="a1")
    for state in ("after the reboot", "bound to vfio-pci by its id"):
        found = look(sysfs, names)
        assert units(found, A10) == 0 and found["0000:3b:00.0"].resource_name == "", state
        assert "virtual functions are missing" in found["0000:3b:00.0"].message
    (card / "sriov_numvfs").write_text("4\n")
    for index in range(4):
        path = sysfs.add_virtual("0000:3b:00.0", index, f"0000:3b:00.{index + 4}")
        (path / "nvidia").mkdir()
        (path / "nvidia/current_vgpu_type").write_text("0\n")
        (path / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n588   : NVIDIA A10-4Q\n")
    found = look(sysfs, names)
    assert units(found, T4Q) == 0
    assert all(not one.healthy for id_, one in found.items() if id_ != "0000:3b:00.0")
    assert "no vGPU type is set" in found["0000:3b:00.5"].message
    types = dict(pair for one in read_bus(sysfs.root).gpus for pair in one.creatable)
    for index in range(4):
        path = sysfs.path(f"0000:3b:00.{index + 4}")
        (path / "nvidia/current_vgpu_type").write_text("588\n")
        (path / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n")
    found = look(sysfs, names, types)
    assert units(found, T4Q) == 4 and units(found, A10) == 0
    second = found["0000:3b:00.5"]
    assert (second.kind, second.parent, second.stable_id) == ("VirtualFunction", "0000:3b:00.0", "a1.1")
    assert found["0000:3b:00.0"].healthy


def test_C31_a_card_with_virtual_functions_is_not_whole_whatever_it_is_configured_for(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:3b:00.0", sriov_numvfs="2")
    assert look(sysfs)["0000:3b:00.0"].resource_name == ""


@pytest.mark.parametrize("key", ["0000:3B:00.0", "A1", "10DE:2236"])
def test_C31_the_configured_mode_is_found_by_address_serial_or_model(
    sysfs: FakeSysfs, tmp_path: Path, key: str
) -> None:
    file = tmp_path / "map.yaml"
    file.write_text(
        f'modes: {{"{key}": VGPU}}\npciHostDevices: [{{pciVendorSelector: "10de:2236", resourceName: {A10}}}]'
    )
    sysfs.add("0000:3b:00.0", serial="a1")
    assert look(sysfs, read_map(file))["0000:3b:00.0"].resource_name == ""


def test_mediated_types_are_profiles_with_used_and_remaining(sysfs: FakeSysfs) -> None:
    """O3: types without a permitted name are nobody's; spaces are underscores as KubeVirt compares them."""
    sysfs.add("0000:3b:00.0", driver="nvidia")
    sysfs.add_type("0000:3b:00.0", name="NVIDIA A10-4Q", available=3, used=2)
    sysfs.add_type("0000:3b:00.0", "nvidia-590", name="NVIDIA A10-8Q", available=1)
    found = look(sysfs)
    card = found["0000:3b:00.0"]
    assert (card.kind, card.resource_name, card.healthy) == ("MdevParent", "", True)
    assert [(one.resource_name, one.used, one.remaining) for one in card.profiles] == [(T4Q, 2, 3)]
    assert units(found, T4Q) == 5


def test_virtual_functions_that_serve_mediated_types_share_the_most_of_their_card(sysfs: FakeSysfs) -> None:
    """O3: each virtual function offers an instance until the card is full; their sum would promise too much."""
    sysfs.add("0000:3b:00.0", driver="nvidia", sriov_numvfs="8")
    for index in range(8):
        address = f"0000:3b:01.{index}"
        sysfs.add_virtual("0000:3b:00.0", index, address)
        used = int(index < 2)
        sysfs.add_type(
            address,
            name="NVIDIA A10-4Q",
            available=1 - used,
            used=used,
            description="framebuffer=4096M, max_instance=6",
        )
    found = look(sysfs)
    assert units(found, T4Q) == 6
    assert {one.kind for one in found.values()} == {"Physical", "MdevParent"}


@pytest.mark.parametrize("name", ["class", "device"])
def test_R10_an_unreadable_attribute_is_an_unhealthy_function_and_no_crash(sysfs: FakeSysfs, name: str) -> None:
    sysfs.add("0000:3b:00.0")
    broken = sysfs.add("0000:5e:00.0")
    (broken / name).unlink()
    (broken / name).mkdir()
    found = look(sysfs)
    assert found["0000:3b:00.0"].healthy
    assert not found["0000:5e:00.0"].healthy and f"{name} cannot be read" in found["0000:5e:00.0"].message


def test_R10_a_number_that_is_none_is_told(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:3b:00.0", driver="nvidia")
    (sysfs.add_type("0000:3b:00.0", name="NVIDIA A10-4Q", available=1) / "available_instances").write_text("many\n")
    (card,) = look(sysfs).values()
    assert not card.healthy and "'many', not a number" in card.message


def test_without_a_pci_bus_there_is_no_report(tmp_path: Path) -> None:
    """R5: silence, not zero."""
    with pytest.raises(SysfsError, match="is sysfs mounted there"):
        read_bus(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("modes: {a: Whole}", "Whole"), ("pciHostDevices: 7", "pciHostDevices"), ("[", "map.yaml")],
)
def test_a_broken_map_names_the_file_and_the_field(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "map.yaml"
    file.write_text(text)
    with pytest.raises(MapError, match=said):
        read_map(file)


# The write


async def permit(cluster: MemoryCluster) -> None:
    table = {
        "pciHostDevices": [{"pciVendorSelector": "10de:2236", "resourceName": A10}],
        "mediatedDevices": [{"mdevNameSelector": "NVIDIA A10-4Q", "resourceName": T4Q}],
    }
    spec = {"configuration": {"permittedHostDevices": table}}
    await cluster.create(KUBEVIRT, "default", named("kubevirt", spec=spec))


def agent(cluster: MemoryCluster, sysfs: FakeSysfs, time: VirtualTime, **more: Any) -> Agent:
    return Agent(cluster, node_name="n1", sysfs=sysfs.root, clock=time.clock, sleep=time.sleep, **more)


async def test_N5_the_report_is_made_then_only_its_status_is_written(sysfs: FakeSysfs) -> None:
    cluster, time = MemoryCluster(VirtualTime(START_MS).clock), VirtualTime(START_MS)
    await permit(cluster)
    sysfs.add("0000:3b:00.0", serial="a1")
    reporter = agent(cluster, sysfs, time)
    await reporter.report()
    stored = cluster.peek(GPU_NODE, "", "n1")
    assert stored is not None
    assert stored["status"]["functions"] == [
        {
            "id": "0000:3b:00.0", "stableID": "a1", "parent": "", "kind": "Physical", "resourceName": A10,
            "healthy": True, "message": "", "profiles": [],
        }
    ]  # fmt: skip
    first = stored["status"]["reportedAt"]
    await time.advance(30)
    await reporter.report()
    stored = cluster.peek(GPU_NODE, "", "n1")
    assert stored is not None and stored["status"]["reportedAt"] > first
    verbs = [(write.verb, write.subresource) for write in cluster.writes if write.kind == GPU_NODE.name]
    assert verbs == [("create", ""), ("patch", "status"), ("patch", "status")]


async def test_N5_the_agent_goes_on_when_the_api_server_fails(sysfs: FakeSysfs) -> None:
    cluster, time = MemoryCluster(VirtualTime(START_MS).clock), VirtualTime(START_MS)
    await permit(cluster)
    sysfs.add("0000:3b:00.0")
    failed = 0

    def twice(call: Call) -> Fault | None:
        nonlocal failed
        failed += call.verb == "patch"
        return Fault.UNAVAILABLE if call.verb == "patch" and failed <= 2 else None

    cluster.faults = twice
    running = asyncio.ensure_future(agent(cluster, sysfs, time).run(30))
    while cluster.peek(GPU_NODE, "", "n1") is None and not running.done():
        await time.advance(30)
        await asyncio.sleep(0.001)  # the bus is read in a thread
    running.cancel()
    assert failed > 2
    stored = cluster.peek(GPU_NODE, "", "n1")
    assert stored is not None and len(stored["status"]["functions"]) == 1


async def test_C36_kubevirt_away_for_a_while_keeps_the_last_known_names(sysfs: FakeSysfs) -> None:
    cluster, time = MemoryCluster(VirtualTime(START_MS).clock), VirtualTime(START_MS)
    await permit(cluster)
    sysfs.add("0000:3b:00.0")
    reporter = agent(cluster, sysfs, time)
    await reporter.report()
    await cluster.delete(KUBEVIRT, "default", "kubevirt")
    assert [one.resource_name for one in await reporter.report()] == [A10]
    cluster.uninstall_kind(KUBEVIRT)
    assert [one.resource_name for one in await reporter.report()] == [A10]


async def test_before_the_table_was_ever_read_there_is_no_report_unless_a_file_says_the_names(
    sysfs: FakeSysfs, tmp_path: Path
) -> None:
    """R5, P6: a report without names would say that the node serves what its plugin says."""
    cluster, time = MemoryCluster(VirtualTime(START_MS).clock), VirtualTime(START_MS)
    sysfs.add("0000:3b:00.0")

    def lists_fail(call: Call) -> Fault | None:
        return Fault.UNAVAILABLE if call.verb == "list" else None

    cluster.faults = lists_fail
    with pytest.raises(Unavailable):
        await agent(cluster, sysfs, time).report()
    assert cluster.peek(GPU_NODE, "", "n1") is None
    file = tmp_path / "map.yaml"
    file.write_text(f"pciHostDevices: [{{pciVendorSelector: '10de:2236', resourceName: {A10}}}]")
    (card,) = await agent(cluster, sysfs, time, map_file=file).report()
    assert card.resource_name == A10
