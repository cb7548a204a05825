"""A fake cluster of devices and VMIs, a webhook's view of it, and a fake binder; scripted by the tests and without
clocks of their own."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from reconciler.cluster.port import AlreadyExists, Conflict, NotFound, Preconditions
from reconciler.core.admission.checks import Refusal
from reconciler.core.model import wire
from reconciler.core.model.device_state import accepted
from reconciler.core.model.objects import DEVICE, VMI, Constraints, Device, GpuClass, Kind, Namespace, Node, Settings
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.vocabulary import (
    DEVICE_FINALIZER,
    DEVICES_ANNOTATION,
    DEVICES_LABEL,
    Phase,
    Reason,
)
from reconciler.core.tenancy.charges import ChargeTree
from webhooks.binding import BindClient
from webhooks.clock import Clock
from webhooks.devices import DeviceWebhook
from webhooks.machines import MachineWebhook
from webhooks.pods import PodWebhook
from webhooks.reader import DeviceReader
from webhooks.review import Request, UserInfo
from webhooks.tenants import TenantWebhook

NS = "tenant-acme"
WRITER = "system:serviceaccount:cozy-gpu-binder:gpu-binder"
KUBEVIRT = "system:serviceaccount:cozy-kubevirt:kubevirt-controller"
A100 = "nvidia.com/GA100_A100"
START = 1_700_000_000_000
"""The fakes' first moment, ms."""


class FakeCluster:
    """Objects as JSON. `on_call(verb, name)` runs before each call and may raise the port's errors or change the
    cluster under the caller's feet; `writes` are the calls that changed something."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []
        self.calls: list[tuple[str, str]] = []
        self.on_call: Callable[[str, str], None] = lambda verb, name: None
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    async def _call(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        await asyncio.sleep(0)
        self.on_call(verb, name)

    def _find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        found = self.objects.get((kind.name, namespace, name))
        if found is None:
            raise NotFound(f'{kind.plural} "{name}" not found')
        return found

    def put(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        """Write past all checks, as somebody else."""
        body = copy.deepcopy(body)
        meta = body["metadata"]
        meta.setdefault("uid", f"uid-{next(self._uids)}")
        meta["resourceVersion"] = str(next(self._versions))
        self.objects[(kind.name, meta.get("namespace", ""), meta["name"])] = body
        return body

    async def list(self, kind: Kind, *, namespace: str = "", name: str = "") -> bytes:
        await self._call("list", namespace)
        items = [body for key, body in sorted(self.objects.items()) if key[0] == kind.name and key[1] == namespace]
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    def watch(self, kind: Kind, resource_version: str, **_: Any) -> Any:
        raise NotImplementedError

    async def get(self, kind: Kind, namespace: str, name: str) -> bytes:
        await self._call("get", name)
        return json.dumps(self._find(kind, namespace, name)).encode()

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any], *, dry_run: bool = False) -> bytes:
        name = body["metadata"]["name"]
        await self._call("create", name)
        if (kind.name, namespace, name) in self.objects:
            raise AlreadyExists(f'{kind.plural} "{name}" already exists')
        self.writes.append(("create", name))
        return json.dumps(self.put(kind, body)).encode()

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: dict[str, Any], *, subresource: str = ""
    ) -> bytes:
        await self._call("patch", name)
        found = copy.deepcopy(self._find(kind, namespace, name))
        expected = body.get("metadata", {}).get("resourceVersion")
        if expected is not None and expected != found["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        field = "status" if subresource == "status" else "spec"
        found[field] = merged(found.get(field, {}), body.get(field, {}))
        self.writes.append(("patch", name))
        return json.dumps(self.put(kind, found)).encode()

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, preconditions: Preconditions | None = None
    ) -> None:
        await self._call("delete", name)
        found = self._find(kind, namespace, name)
        wanted = preconditions or Preconditions()
        if wanted.uid not in ("", found["metadata"]["uid"]):
            raise Conflict("the uid differs")
        if wanted.resource_version not in ("", found["metadata"]["resourceVersion"]):
            raise Conflict("the resourceVersion differs")
        self.writes.append(("delete", name))
        if found["metadata"].get("finalizers"):
            found["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:20Z"
            self.put(kind, found)
        else:
            del self.objects[(kind.name, namespace, name)]

    # What tests say and ask

    def device(self, name: str, namespace: str = NS) -> Device | None:
        body = self.objects.get((DEVICE.name, namespace, name))
        if body is None:
            return None
        found = wire.decode_object(DEVICE, json.dumps(body).encode())
        assert isinstance(found, Device), found
        return found

    def devices(self, namespace: str = NS) -> list[Device]:
        names = sorted(key[2] for key in self.objects if key[0] == DEVICE.name and key[1] == namespace)
        return [found for name in names if (found := self.device(name, namespace)) is not None]

    def status(self, name: str, changes: dict[str, Any], namespace: str = NS) -> None:
        """Somebody else writes a device's status."""
        body = copy.deepcopy(self.objects[(DEVICE.name, namespace, name)])
        body["status"] = merged(body.get("status", {}), changes)
        self.put(DEVICE, body)

    def remove(self, kind: Kind, name: str, namespace: str = NS) -> None:
        del self.objects[(kind.name, namespace, name)]


def merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def device_body(name: str, *, phase: str = "Held", namespace: str = NS, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": DEVICE.api_version,
        "kind": DEVICE.name,
        "metadata": {"name": name, "namespace": namespace, "finalizers": [DEVICE_FINALIZER]},
        "spec": {"className": "a100", "count": 1},
        "status": {"phase": phase, **status},
    }


class FakeView:
    """The folded state of a replica: what the cluster has, or what it had when `freeze` was called."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.synced = True
        self.settings = Settings(writer=WRITER)
        self.effective_names = frozenset({A100, "nvidia.com/L4"})
        self.seen_vmis: dict[str, str] = {}
        self.class_resources = {"a100": A100, "l4": "nvidia.com/L4"}
        self.charges = ChargeTree()
        self.namespaces: dict[str, Namespace] = {}
        self.nodes: dict[str, Node] = {}
        self.unsettled: set[str] = set()
        self.clock: Callable[[], int] = lambda: 0
        self.attached_since: dict[str, tuple[str, int]] = {}
        self._frozen: list[Device] | None = None

    @property
    def now(self) -> int:
        return self.clock()

    def freeze(self) -> None:
        """From now on this replica's watch lags behind."""
        self._frozen = self.cluster.devices()

    def _devices(self) -> Sequence[Device]:
        found = self.cluster.devices() if self._frozen is None else self._frozen
        for device in found:
            request = device.attachment.request_id if device.attachment is not None else ""
            if self.attached_since.get(device.uid, ("", 0))[0] != request:
                self.attached_since[device.uid] = (request, self.clock())
        return found

    def device(self, namespace: str, name: str) -> Device | None:
        return next((d for d in self._devices() if (d.namespace, d.name) == (namespace, name)), None)

    def devices_of_vmi(self, namespace: str, vmi_name: str) -> list[Device]:
        return [
            d
            for d in self._devices()
            if d.namespace == namespace and d.attachment is not None and d.attachment.vmi_name == vmi_name
        ]

    def settled(self, device: Device) -> bool:
        return device.name not in self.unsettled

    def gpu_class(self, name: str) -> GpuClass | None:
        resource = self.class_resources.get(name)
        return None if resource is None else GpuClass(name=name, uid=f"class-{name}", resource_name=resource)

    def classes(self) -> list[GpuClass]:
        return [found for name in sorted(self.class_resources) if (found := self.gpu_class(name)) is not None]

    def namespace(self, name: str) -> Namespace | None:
        return self.namespaces.get(name)

    def node(self, name: str) -> Node | None:
        return self.nodes.get(name)


class FakeTime:
    """A clock that only sleeping moves. `on_sleep` plays the rest of the world."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.on_sleep: list[Callable[[], None]] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)
        for step in self.on_sleep:
            step()

    def clock(self) -> Clock:
        return Clock(now=lambda: START + int(self.seconds * 1000), monotonic=lambda: self.seconds, sleep=self.sleep)


class FakeBinder:
    """Answers every complete request, as the leader does (B2)."""

    def __init__(self, cluster: FakeCluster, time: FakeTime) -> None:
        self.cluster = cluster
        self.time = time
        self.refuse: tuple[str, str] | None = None
        self.node = "n1"

    def step(self) -> None:
        groups: dict[str, list[Device]] = {}
        for device in self.cluster.devices():
            if device.attachment is None and device.placement is not None:
                self.cluster.status(device.name, {"placement": None, "bindAnswer": None})
            if device.template and device.deleting is not None:
                self.cluster.remove(DEVICE, device.name)
                continue
            if device.bind_request is not None and device.bind_answer is None and device.deleting is None:
                groups.setdefault(device.bind_request.id, []).append(device)
        for request_id, devices in groups.items():
            request = devices[0].bind_request
            assert request is not None
            assert all(device.bind_request == request for device in devices)
            if len(devices) == request.set_size:
                for device in devices:
                    self.answer(device.name, request_id)

    def answer(self, name: str, request_id: str) -> None:
        answer: dict[str, Any] = {
            "requestID": request_id,
            "answeredAt": wire.from_ms(START + int(self.time.seconds * 1000)),
        }
        if self.refuse is not None:
            reason, message = self.refuse
            self.cluster.status(
                name, {"bindAnswer": answer | {"outcome": "Refused", "reason": reason, "message": message}}
            )
            return
        self.cluster.status(
            name,
            {
                "phase": "Bound",
                "placement": {"node": self.node, "units": 1},
                "bindAnswer": answer | {"outcome": "Bound", "node": self.node},
            },
        )


class World:
    """Cluster, view, time, binder and the webhooks of one replica over them."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.view = FakeView(self.cluster)
        self.time = FakeTime()
        self.view.clock = self.time.clock().now
        self.binder = FakeBinder(self.cluster, self.time)
        self.time.on_sleep.append(self.binder.step)
        self.start_refusal: Refusal | None = None
        self.order_refusal: Refusal | None = None
        self.starts: list[tuple[Any, ...]] = []
        self.ids = (f"request-{number}" for number in itertools.count(1))
        self.conflicts = 0
        self.outcomes: list[str] = []
        self.machines, self.binding, self.pods = self.replica(self.view)
        self.devices = DeviceWebhook(self.view, lambda *order: self.order_refusal)
        self.tenants = TenantWebhook(self.view)

    def replica(self, view: FakeView) -> tuple[MachineWebhook, BindClient, PodWebhook]:
        """The webhooks of a replica with a view of its own."""
        view.clock = self.time.clock().now
        reader = DeviceReader(self.cluster, view)
        binding = BindClient(
            self.cluster,
            view,
            check_start=self._check_start,
            check_device=check_device,
            new_id=lambda: next(self.ids),
            clock=self.time.clock(),
            on_bind=lambda outcome, seconds: self.outcomes.append(outcome),
            on_conflict=self._count_conflict,
        )
        return MachineWebhook(view, reader, binding), binding, PodWebhook(reader)

    def _count_conflict(self) -> None:
        self.conflicts += 1

    def _check_start(
        self,
        namespace: str,
        vmi_name: str,
        devices: Sequence[Device],
        templates: Sequence[TemplateReference],
        constraints: Constraints,
    ) -> Refusal | None:
        self.starts.append((namespace, vmi_name, [d.name for d in devices], list(templates), constraints))
        return self.start_refusal

    def held(self, *names: str, **fields: Any) -> None:
        for name in names:
            self.cluster.put(DEVICE, device_body(name, **fields))


def check_device(vmi_name: str, device: Device) -> Refusal | None:
    """The refusals of `checks.device_unusable`, in brief."""
    reason = None
    if device.deleting is not None:
        reason = Reason.DEVICE_DELETED
    elif device.attachment is not None and device.attachment.vmi_name != vmi_name:
        reason = Reason.DEVICE_ATTACHED
    elif device.phase == Phase.LOST:
        reason = Reason.DEVICE_LOST
    elif not accepted(device):
        reason = Reason.DEVICE_NOT_HELD
    return None if reason is None else Refusal(reason=reason, message=f"{device.name} cannot be used")


def vmi_body(name: str = "vm1", references: Any = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": NS, "labels": {DEVICES_LABEL: "true"}}
    if references is not None:
        text = references if isinstance(references, str) else json.dumps(references)
        metadata["annotations"] = {DEVICES_ANNOTATION: text}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": VMI.name,
        "metadata": metadata,
        "spec": {"domain": {"devices": {}}, **spec},
    }


def review(
    body: dict[str, Any] | None,
    *,
    old: dict[str, Any] | None = None,
    operation: str = "CREATE",
    user: str = "alice",
    dry_run: bool = False,
    namespace: str = NS,
) -> Request:
    return Request(
        uid="review-1",
        operation=operation,
        namespace=namespace,
        name=(body or {}).get("metadata", {}).get("name", ""),
        user_info=UserInfo(user),
        object=msgspec.Raw(json.dumps(body).encode()),
        old_object=msgspec.Raw(json.dumps(old).encode()),
        dry_run=dry_run,
    )


def patched(body: dict[str, Any], patch: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Apply `add` operations (RFC 6902), the only ones the webhooks make."""
    body = copy.deepcopy(body)
    for operation in patch:
        assert operation["op"] == "add"
        *parents, last = operation["path"].split("/")[1:]
        target = body
        for part in parents:
            target = target[part]
        target[last] = operation["value"]
    return body
