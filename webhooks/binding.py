"""Webhook side of the bind protocol (B1, B3, B4, B5): request a set of devices, wait for placement, undo on failure.

Owns the write order and the handling of every outcome. The binder decides; the two communicate through GPUDevice
status, so the webhook and the leader may run in different replicas. Neighbours: `sets` (availability of each device),
`answers` (the binder's answers), `undo` (rollback), `reader` (cache or GET).

A start whose VMI never came, because a later webhook refused it, gives way to the next start of the same name once the
API server can no longer be waiting for it (B4).

Invariant: whoever wrote the attachments of a request removes them unless its answer is Bound. After a crash in between,
the binder releases attachments whose VMI never appeared (P5).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import structlog

from reconciler.cluster.port import AlreadyExists, Cluster, Conflict, NotFound, Unavailable
from reconciler.core.model import wire
from reconciler.core.model.objects import DEVICE, Attachment, BindRequest, Device
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.vocabulary import DEVICE_FINALIZER, TEMPLATE_LABEL, TRUE, Outcome, Phase, Reason
from webhooks.answers import READ_SECONDS, Answers, carries, late, pause
from webhooks.clock import Clock
from webhooks.reader import DeviceReader, decode_device
from webhooks.review import Denied
from webhooks.sets import Availability, DeviceAvailability, DeviceSet, availability_of, held_by_earlier
from webhooks.undo import Undo
from webhooks.view import CheckDevice, CheckStart, View

ATTEMPTS = 3
"""Write attempts per device before giving up: the binder writes to it at most twice in the meantime."""


class _SetChanged(Exception):
    """Another start took a device of the set; re-evaluate availability."""


class BindClient:
    """Requests placement for sets of devices. One instance serves all requests of a replica.

    `new_id` generates request ids. `on_bind(outcome, seconds)` is called when a start ends, with `Bound` or a reason
    (N4). `on_conflict()` is called when a write conflicts.
    """

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        *,
        check_start: CheckStart,
        check_device: CheckDevice,
        new_id: Callable[[], str],
        clock: Clock | None = None,
        on_bind: Callable[[str, float], None] = lambda outcome, seconds: None,
        on_conflict: Callable[[], None] = lambda: None,
        log: Any = None,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._reader = DeviceReader(cluster, view)
        self._check_start = check_start
        self._check_device = check_device
        self._new_id = new_id
        self._clock = clock or Clock()
        self._answers = Answers(self._reader, view, self._clock)
        self._on_bind = on_bind
        self._on_conflict = on_conflict
        self._log = log or structlog.get_logger("webhooks.binding")
        self._undoing: set[asyncio.Task[None]] = set()

    async def bind(
        self, wanted: DeviceSet, *, seconds: float, dry_run: bool, expires_seconds: float = math.inf
    ) -> None:
        """Return once every device of the set is placed for this VMI; in a dry run, once the checks pass (B5). Adopts a
        recent start of the same VMI without writing, and takes over from one that is older than `expires_seconds` and
        cannot be adopted (B4). Raises `Denied`; anything written by then is undone in the background (B3)."""
        begun = self._clock.monotonic()
        until = begun + seconds
        try:
            done = await self._attempt(wanted, until, dry_run, expires_seconds, recheck=False)
            while not done:
                if self._clock.monotonic() >= until:
                    raise late(wanted)
                done = await self._attempt(wanted, until, dry_run, expires_seconds, recheck=True)
        except Denied as denied:
            self._on_bind(denied.reason, self._clock.monotonic() - begun)
            raise
        if not dry_run:
            self._on_bind(Outcome.BOUND, self._clock.monotonic() - begun)

    async def finish_undoing(self) -> None:
        """Wait for background undos to finish; called at shutdown before the event loop ends (N1)."""
        while self._undoing:
            await asyncio.gather(*self._undoing, return_exceptions=True)

    async def _attempt(
        self, wanted: DeviceSet, until: float, dry_run: bool, expires_seconds: float, *, recheck: bool
    ) -> bool:
        """One bind attempt; False means try again. `recheck`: bypass the cache."""
        left = self._left_attached(wanted)
        if left is not None and await self._still_left(left):
            passes = self._expired(left, expires_seconds) and await self._give_way(wanted, left, dry_run)
            if not passes:
                raise held_by_earlier(wanted, left.name)
        devices, availabilities = await self._read_set(wanted, recheck or left is not None)
        requested = sorted({s.request_id for s in availabilities.values() if s.availability is Availability.REQUESTED})
        if requested:
            earlier = [device for device in devices.values() if device is not None and carries(device, requested[0])]
            expired = bool(earlier) and self._expired(earlier[0], expires_seconds)
            wait = 0.0 if expired else until
            try:
                return await self._answers.follow(wanted, requested[0], wait, dry_run and not expired)
            except Denied:
                if not expired or not await self._give_way(wanted, earlier[0], dry_run):
                    raise
            if not dry_run:
                return False
        busy = sorted(name for name, found in availabilities.items() if found.availability is Availability.RELEASING)
        if busy:
            denied = Denied(
                Reason.DEVICE_ATTACHED,
                f"GPUDevice {wanted.namespace}/{busy[0]} is still being released from an earlier run of "
                f"{wanted.vmi}; try again in a moment",
            )
            await pause(self._clock, 0.0 if dry_run else until, denied, READ_SECONDS)
            return False
        held = [device for name in wanted.held if (device := devices[name]) is not None]
        refusal = self._check_start(
            wanted.namespace, wanted.vmi_name, held, tuple(wanted.templates.values()), wanted.constraints
        )
        if refusal is not None:
            raise Denied.because(refusal, self._view.settings)
        if dry_run:
            return True
        return await self._request(wanted, devices, until)

    # Availability

    async def _read_set(
        self, wanted: DeviceSet, recheck: bool
    ) -> tuple[dict[str, Device | None], dict[str, DeviceAvailability]]:
        """Availability of every device. The cache is trusted only if it shows the whole set free, because every write
        is conditional on the cached version; otherwise the devices are read with GET."""
        if not wanted.templates and not recheck:
            devices: dict[str, Device | None] = {n: self._reader.cached(wanted.namespace, n) for n in wanted.held}
            try:
                availabilities = self._availabilities(wanted, devices)
            except Denied:
                availabilities = {}
            if availabilities and all(found.availability is Availability.FREE for found in availabilities.values()):
                return devices, availabilities
        devices = await self._reader.read_all(wanted.namespace, wanted.names)
        return devices, self._availabilities(wanted, devices)

    def _availabilities(self, wanted: DeviceSet, devices: dict[str, Device | None]) -> dict[str, DeviceAvailability]:
        return {
            name: availability_of(wanted, name, devices[name], self._view.seen_vmis, self._check_device)
            for name in wanted.names
        }

    def _left_attached(self, wanted: DeviceSet) -> Device | None:
        """A device outside the set that an earlier start of the same VMI name attached and whose VMI never appeared:
        the new VMI would keep it for its lifetime."""
        for device in self._view.devices_of_vmi(wanted.namespace, wanted.vmi_name):
            assert device.attachment is not None
            seen = self._view.seen_vmis.get(device.uid, "").startswith(f"{device.attachment.request_id}/")
            if device.name not in wanted.names and device.deleting is None and not seen:
                return device
        return None

    async def _still_left(self, left: Device) -> bool:
        """Whether the API server still shows what the cache showed of a device that an earlier start attached."""
        current = await self._reader.read(left.namespace, left.name)
        return current is not None and current.deleting is None and current.attachment == left.attachment

    # An earlier start of the same VMI name

    def _expired(self, device: Device, expires_seconds: float) -> bool:
        """Whether the request that attached the device is too old to succeed, by this replica's clock: no API server
        waits for it any more (B4)."""
        request, since = self._view.attached_since.get(device.uid, ("", 0))
        known = device.attachment is not None and device.attachment.request_id == request
        return known and max(self._view.now, self._clock.now()) - since > expires_seconds * 1000

    async def _give_way(self, wanted: DeviceSet, left: Device, dry_run: bool) -> bool:
        """Release everything that the request which attached `left` holds. False if its VMI is there after all."""
        assert left.attachment is not None
        if await self._reader.vmi_exists(wanted.namespace, wanted.vmi_name):
            return False
        if not dry_run:
            undo = Undo(self._cluster, self._reader, self._clock, wanted, left.attachment.request_id, self._on_conflict)
            attached = self._view.devices_of_vmi(wanted.namespace, wanted.vmi_name)
            undo.touched = sorted({left.name, *wanted.names, *(device.name for device in attached)})
            self._log.info("earlier start gives way", vmi=wanted.vmi, request_id=undo.request_id)
            await asyncio.shield(self._spawn(undo))
        return True

    # Request

    async def _request(self, wanted: DeviceSet, devices: dict[str, Device | None], until: float) -> bool:
        request = BindRequest(
            id=self._new_id(),
            vmi_name=wanted.vmi_name,
            set_size=wanted.size,
            constraints=wanted.constraints,
            requested_at=self._clock.now(),
        )
        undo = Undo(self._cluster, self._reader, self._clock, wanted, request.id, self._on_conflict)
        log = self._log.bind(request_id=request.id, vmi=f"{wanted.namespace}/{wanted.vmi_name}")
        log.info("bind requested", devices=list(wanted.names))
        try:
            await self._make_templates(wanted, devices, undo)
            for name in wanted.names:
                undo.touched.append(name)
                await self._attach(wanted, name, devices[name], request, undo)
            node = await self._answers.wait(wanted, request.id, until)
        except _SetChanged:
            undo.made.clear()  # the start that now owns the set also uses its template devices
            await asyncio.shield(self._spawn(undo))
            return False
        except BaseException as error:
            log.info("bind undone", why=type(error).__name__, reason=getattr(error, "reason", ""))
            undoing = self._spawn(undo)
            if not isinstance(error, asyncio.CancelledError):
                await asyncio.shield(undoing)
            raise
        log.info("bind answered", node=node)
        return True

    def _spawn(self, undo: Undo) -> asyncio.Task[None]:
        """Undo in a separate task, so that cancelling the request does not cancel the undo."""
        task = asyncio.create_task(undo.run(), name=f"undo {undo.request_id}")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        return task

    async def _make_templates(self, wanted: DeviceSet, devices: dict[str, Device | None], undo: Undo) -> None:
        for name, template in wanted.templates.items():
            if devices[name] is not None:
                continue
            undo.made[name] = ""
            try:
                raw = await undo.send(
                    self._cluster.create(DEVICE, wanted.namespace, template_body(wanted.namespace, name, template))
                )
            except AlreadyExists:
                del undo.made[name]
                raise _SetChanged from None
            made = decode_device(raw)
            undo.made[name] = made.uid
            devices[name] = made

    async def _attach(
        self, wanted: DeviceSet, name: str, device: Device | None, request: BindRequest, undo: Undo
    ) -> None:
        """Write the attachment and the request to one device. After a conflict the device is read again and must still
        be free (B1, B6)."""
        attachment = Attachment(wanted.vmi_name, request.id, request.requested_at)
        for _ in range(ATTEMPTS):
            if device is None:
                raise _SetChanged
            try:
                body = attach_body(device, attachment, request)
                await undo.send(self._cluster.patch(DEVICE, wanted.namespace, name, body, subresource="status"))
                return
            except Conflict:
                self._on_conflict()
            except (NotFound, Unavailable):
                pass
            device = await self._reader.read(wanted.namespace, name)
            if device is not None and carries(device, request.id):
                return
            if self._availability(wanted, name, device).availability is not Availability.FREE:
                raise _SetChanged
        raise Denied(
            Reason.DEVICE_ATTACHED,
            f"GPUDevice {wanted.namespace}/{name} is being changed by someone else; try again in a moment",
        )

    def _availability(self, wanted: DeviceSet, name: str, device: Device | None) -> DeviceAvailability:
        return availability_of(wanted, name, device, self._view.seen_vmis, self._check_device)


def template_body(namespace: str, name: str, template: TemplateReference) -> dict[str, Any]:
    """A template device. It has no owner reference: the VMI has no uid yet, and the binder deletes the device with its
    VMI (K2, P5)."""
    return {
        "apiVersion": DEVICE.api_version,
        "kind": DEVICE.name,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {TEMPLATE_LABEL: TRUE},
            "finalizers": [DEVICE_FINALIZER],
        },
        "spec": {"className": template.class_name, "count": template.count},
    }


def attach_body(device: Device, attachment: Attachment, request: BindRequest) -> dict[str, Any]:
    """The B1 status patch, conditional on the version the decision was based on (B6)."""
    status: dict[str, Any] = {
        "attachment": wire.attachment_body(attachment),
        "bindRequest": wire.request_body(request, device.bind_request),
        "bindAnswer": None,
    }
    if device.phase == Phase.HELD:
        status["phase"] = Phase.ATTACHED.value
    return {"metadata": {"resourceVersion": device.resource_version}, "status": status}
