"""PlacementState: everything the fold knows, and the queries that readers share.

Owns the objects, the assumed writes and the read side that binder, webhooks, catalog and explain share.
`index_updates` maps object changes to indexes, `fold` maps events to state, `decide` chooses the next action. No clock:
`now` is the time of the last event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from reconciler.core.capacity import node_units
from reconciler.core.capacity.node_labels import NodeLabels
from reconciler.core.capacity.node_units import FreeIndex, NameTotals, Units, Usage
from reconciler.core.metering.meter import Meter
from reconciler.core.metering.state_view import Touched
from reconciler.core.model import resource_names
from reconciler.core.model.device_state import Address, epoch_of
from reconciler.core.model.objects import (
    CLASS,
    DEVICE,
    GPU_NODE,
    KINDS,
    NAMESPACE,
    NODE,
    POD,
    RELEASE,
    SETTINGS,
    VMI,
    Device,
    GpuClass,
    GpuNode,
    Model,
    Namespace,
    Node,
    Object,
    PermittedDevice,
    Pod,
    Release,
    Settings,
    SettingsMap,
    Vmi,
)
from reconciler.core.state.device_index import DeviceIndex
from reconciler.core.state.work_queue import ItemKind, WorkItem, WorkQueue
from reconciler.core.tenancy import tenants
from reconciler.core.tenancy.charges import ChargeTree
from reconciler.core.tenancy.tenants import Budgets, Claims

PUBLISH_MILLISECONDS = 1000
"""A class's units are written at most this often; more often would only load the API server."""

ANSWERS_MILLISECONDS = 60_000
"""Longest time a pending order shows the numbers it was refused with; each update costs a write."""

ABSENT = msgspec.Raw(b"null")


class PendingWrite(Model, frozen=True, kw_only=True):
    """A decided write whose outcome is not yet known (J4). `base`: the object as last observed,
    null where it does not exist."""

    write: str
    base: msgspec.Raw = ABSENT


class Unreadable(Model, frozen=True, kw_only=True):
    """An object set aside (R10)."""

    kind: str
    namespace: str
    name: str
    uid: str
    error: str


class PlacementState:
    """The folded state. Only `fold` and `index_updates` change it."""

    def __init__(self) -> None:
        self.now = 0
        self.seq = 0
        self.settings = Settings()
        self.objects: dict[str, dict[Address, Object]] = {kind: {} for kind in KINDS}
        self.listed: set[str] = set()
        self.missing: set[str] = set()
        self.unreadable: dict[tuple[str, str, str], Unreadable] = {}
        self.silent: set[str] = set()
        self.unheard: set[str] = set()
        """Nodes whose report was found at a start and has not been seen to change since (R5)."""
        self.permitted: tuple[PermittedDevice, ...] | None = None
        self.identity = ""
        self.epoch: int | None = None
        self.mark = ""
        """What our fences write on a device, unique to this term: the epoch and the leader's identity (J5)."""
        self.last_epoch = 0
        """The highest epoch of a term of ours."""
        self.unfenced: set[str] = set()
        self.unfenceable: set[str] = set()
        """Devices whose fence was refused or that cannot be read: nothing is granted to them before it lands."""
        self.pending: dict[str, PendingWrite] = {}
        self.pending_keys: dict[str, tuple[str, str, str, str]] = {}
        self.rejections: dict[str, int] = {}
        self.stale: set[str] = set()
        self.own_versions: dict[str, str] = {}
        self.seen_vmis: dict[str, str] = {}
        self.attached_since: dict[str, tuple[str, int]] = {}
        """Device uid to its attachment's request ("" for a template without one) and when it was first seen (ms)."""
        self.short_since: dict[tuple[str, str], int] = {}
        self.vanished: dict[str, dict[str, int]] = {}
        self.spoken: dict[str, set[str]] = {}
        self.class_resources: dict[str, str] = {}

        self.touched: dict[Touched, None] = {}
        self.landed: list[Device] = []
        self.meter = Meter()

        self.work_queue = WorkQueue()
        self.devices = DeviceIndex()
        self.free = FreeIndex()
        self.charges = ChargeTree()
        self.claims = Claims()
        self.effective_names: frozenset[str] = frozenset()
        self.reported_names: Counter[str] = Counter()
        self.pod_by_uid: dict[str, Address] = {}
        self.pod_namespaces: dict[str, str] = {}
        self.gpu_pods_on: dict[str, set[str]] = {}
        self.memory_on: Counter[str] = Counter()
        self.raw_budget: dict[str, dict[str, int]] = {}
        self.raw_capacity: dict[str, dict[str, int]] = {}
        self.usage: dict[str, Usage] = {}
        self.accounts: dict[str, dict[str, Units]] = {}
        self.totals: dict[str, NameTotals] = {}
        self.labels = NodeLabels()

    # Objects

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self.objects[kind].get((namespace, name))

    def device(self, namespace: str, name: str) -> Device | None:
        return self.objects[DEVICE.name].get((namespace, name))  # type: ignore[return-value]

    def device_by_uid(self, uid: str) -> Device | None:
        found = self.devices.by_uid.get(uid)
        return None if found is None else self.device(*found)

    def vmi(self, namespace: str, name: str) -> Vmi | None:
        return self.objects[VMI.name].get((namespace, name))  # type: ignore[return-value]

    def pod(self, uid: str) -> Pod | None:
        found = self.pod_by_uid.get(uid)
        return None if found is None else self.objects[POD.name].get(found)  # type: ignore[return-value]

    def node(self, name: str) -> Node | None:
        return self.objects[NODE.name].get(("", name))  # type: ignore[return-value]

    def report(self, node: str) -> GpuNode | None:
        return self.objects[GPU_NODE.name].get(("", node))  # type: ignore[return-value]

    def gpu_class(self, name: str) -> GpuClass | None:
        return self.objects[CLASS.name].get(("", name))  # type: ignore[return-value]

    def namespace(self, name: str) -> Namespace | None:
        return self.objects[NAMESPACE.name].get(("", name))  # type: ignore[return-value]

    def settings_map(self, name: str) -> SettingsMap | None:
        return self.objects[SETTINGS.name].get((self.settings.namespace, name))  # type: ignore[return-value]

    def classes(self) -> list[GpuClass]:
        """All classes by name."""
        return sorted(self.objects[CLASS.name].values(), key=lambda c: c.name)  # type: ignore[arg-type]

    def tenant_release(self, namespace: str) -> Release | None:
        """The release that owns a tenant namespace (R2)."""
        owner = self.claims.owner(namespace)
        return None if owner is None else self.objects[RELEASE.name].get(owner)  # type: ignore[return-value]

    def nodes(self) -> Iterable[Node]:
        return self.objects[NODE.name].values()  # type: ignore[return-value]

    def node_names(self) -> list[str]:
        return sorted(name for _, name in self.objects[NODE.name])

    def _devices(self, addresses: Iterable[Address]) -> list[Device]:
        return [device for found in sorted(addresses) if (device := self.device(*found)) is not None]

    def devices_of_vmi(self, namespace: str, vmi_name: str) -> list[Device]:
        """Devices attached to a VMI's name, by name."""
        return self._devices(self.devices.by_vmi.get((namespace, vmi_name), ()))

    def devices_of_request(self, request_id: str) -> list[Device]:
        return self._devices(self.devices.by_request.get(request_id, ()))

    def devices_on(self, node: str) -> list[Device]:
        """Devices placed on a node, Lost ones among them, by namespace and name."""
        return self._devices(self.devices.by_node.get(node, ()))

    def devices_of_class(self, name: str) -> list[Device]:
        return self._devices(self.devices.by_class.get(name, ()))

    def devices_in(self, namespace: str) -> list[Device]:
        """Devices of a namespace, by name."""
        return self._devices(self.devices.by_namespace.get(namespace, ()))

    def all_devices(self) -> Iterator[Device]:
        for found in sorted(self.objects[DEVICE.name]):
            yield self.objects[DEVICE.name][found]  # type: ignore[misc]

    # Facts

    @property
    def synced(self) -> bool:
        """Every kind has been listed once, or is known not to be installed (R9, N8)."""
        return len(self.listed | self.missing) == len(KINDS)

    @property
    def leading(self) -> bool:
        return self.epoch is not None

    @property
    def highest_epoch(self) -> int:
        """The highest epoch known from our own terms and from the devices that any leader fenced (J5)."""
        return max(self.last_epoch, *(epoch_of(device.epoch) for device in self.all_devices()), 0)

    def writable(self, key: str) -> bool:
        """No write of ours to the object is in flight or was just rejected, and its version is current (B6)."""
        return key not in self.pending and key not in self.stale and self.rejections.get(key, 0) <= self.now

    def awaited(self, uid: str) -> bool:
        """The object is about to be known: a write is in flight, or it is being reread."""
        return uid in self.pending or uid in self.stale

    def settled(self, device: Device) -> bool:
        """The device can be read, is fenced, and may be written to."""
        return self.writable(device.uid) and self.readable(device) and device.uid not in self.unfenceable

    def readable(self, device: Device) -> bool:
        """The device can be decoded; one that is set aside keeps its units and is not touched (R10)."""
        return (DEVICE.name, device.namespace, device.name) not in self.unreadable

    def needs_fence(self, uid: str) -> bool:
        return uid in self.unfenced or uid in self.unfenceable

    def resource_of(self, device: Device) -> str:
        """The resource name of the device's class, "" where the class was never seen."""
        return self.class_resources.get(device.class_name, "")

    def budgets_of(self, release: Release) -> Budgets:
        """A tenant's budgets as its release states them (R3, K3)."""
        return tenants.parse_budgets(
            release.quotas,
            class_names=self.class_resources,
            effective_names=self.effective_names,
            error=release.error,
        )

    def permitted_names(self) -> frozenset[str]:
        """Names in KubeVirt's table as last read (P6)."""
        return resource_names.permitted_names(self.permitted or ())

    def launchers(self, vmi: Vmi) -> list[Pod]:
        """Live launchers of a VMI, by UID (R7)."""
        pods = (self.pod(uid) for uid in sorted(vmi.active_pods))
        return [pod for pod in pods if pod is not None and pod.namespace == vmi.namespace and not pod.terminal]

    def has_live_launcher(self, device: Device) -> bool:
        if device.attachment is None:
            return False
        vmi = self.vmi(device.namespace, device.attachment.vmi_name)
        return vmi is not None and bool(self.launchers(vmi))

    def report_fresh(self, node: str) -> bool:
        return self.report(node) is not None and node not in self.silent

    def provable_served(self, node: str, name: str) -> int | None:
        """Units by which a device may be lost (P4): `known_served`, but None while the node's report may be older
        than it says."""
        unproved = node in self.unheard and self.settings.report_margin > 0 and self.node(node) is not None
        return None if unproved else self.known_served(node, name)

    def known_served(self, node: str, name: str) -> int | None:
        """Units a node serves where that is known: None where it is silent (R5), 0 where it is gone (P4)."""
        found = self.node(node)
        if found is None:
            return 0
        if not found.ready or node in self.silent:
            return None
        units = self.accounts.get(node, {}).get(name)
        return 0 if units is None else units.served

    # Sums

    def units_on(self, node: str, name: str) -> Units:
        return self.accounts.get(node, {}).get(name, Units(limit=node_units.Limit.GONE))

    def held(self, resource_name: str) -> int:
        """Units held and not placed, over all classes of the name."""
        return sum(size * count for size, count in self.hold_sizes(resource_name).items())

    def hold_sizes(self, resource_name: str) -> Counter[int]:
        """Units of one device to the number of unplaced holds of a resource name (P3)."""
        sizes: Counter[int] = Counter()
        for class_name, holds in self.devices.holds.items():
            if holds and self.class_resources.get(class_name) == resource_name:
                sizes.update(holds)
        return sizes

    def free_units(self, resource_name: str) -> int:
        """Free units of a name over all nodes, less what is held and not placed (R9)."""
        return self.free.total(resource_name) - self.held(resource_name)

    def free_memory(self, node: str) -> int:
        """Bytes a node can still promise to pods."""
        found = self.node(node)
        return 0 if found is None else found.memory - self.memory_on[node]

    # Questions

    def enqueue_device(self, device: Device) -> None:
        self.work_queue.add(WorkItem(ItemKind.DEVICE, 0, device.name, device.namespace))

    def enqueue_request(self, device: Device) -> None:
        if device.bind_request is not None:
            request = device.bind_request
            self.work_queue.add(WorkItem(ItemKind.REQUEST, request.requested_at, request.id))

    def enqueue_order(self, created: int, uid: str) -> None:
        self.work_queue.add(WorkItem(ItemKind.ORDER, created, uid))

    def enqueue_for(self, device: Device) -> None:
        """Enqueue every item about this device."""
        if self.needs_fence(device.uid):
            self.work_queue.add(WorkItem(ItemKind.FENCE, 0, device.uid))
        self.enqueue_device(device)
        self.enqueue_request(device)
        if self.devices.waiting.has(device):
            self.enqueue_order(device.created, device.uid)

    def enqueue_at(self, at: int, kind: str, namespace: str, name: str) -> None:
        """Enqueue the items about one written object at `at` (ms)."""
        if kind == CLASS.name:
            self.work_queue.add_at(at, WorkItem(ItemKind.CLASS, 0, name))
        elif kind == SETTINGS.name:
            self.work_queue.add_at(at, WorkItem(ItemKind.SETTINGS, 0, ""))
        device = self.device(namespace, name)
        if kind == DEVICE.name and device is not None:
            self.work_queue.add_at(at, WorkItem(ItemKind.FENCE, 0, device.uid))
            self.work_queue.add_at(at, WorkItem(ItemKind.DEVICE, 0, name, namespace))
            if device.placement is not None:
                self.work_queue.add_at(at, WorkItem(ItemKind.NODE, 0, device.placement.node))
            self.work_queue.add_at(at, WorkItem(ItemKind.ORDER, device.created, device.uid))
            if device.bind_request is not None:
                request = device.bind_request
                self.work_queue.add_at(at, WorkItem(ItemKind.REQUEST, request.requested_at, request.id))

    def enqueue_class_soon(self, class_name: str) -> None:
        """Publish a class's units once the changes of this moment have come together; what pending orders were
        told of them follows more slowly."""
        self.work_queue.add_at(self._next(PUBLISH_MILLISECONDS), WorkItem(ItemKind.CLASS, 0, class_name))
        if self.devices.waiting.of_class(class_name):
            self.work_queue.add_at(self._next(ANSWERS_MILLISECONDS), WorkItem(ItemKind.ANSWERS, 0, class_name))

    def _next(self, milliseconds: int) -> int:
        return self.now // milliseconds * milliseconds + milliseconds

    def enqueue_orders(self, class_names: Iterable[str]) -> None:
        """Enqueue every pending order of these classes."""
        for class_name in class_names:
            for ticket in self.devices.waiting.of_class(class_name):
                self.enqueue_order(*ticket)

    def classes_of(self, resource_name: str) -> list[str]:
        """Class names that sell a resource name, sorted."""
        return sorted(name for name, sold in self.class_resources.items() if sold == resource_name)

    def totals_of(self, resource_name: str) -> NameTotals:
        """The sums over all nodes of one name."""
        return self.totals.get(resource_name) or NameTotals()

    def __repr__(self) -> str:
        return f"<PlacementState seq={self.seq} now={self.now} devices={len(self.objects[DEVICE.name])}>"
