"""A webhook's side of the bind protocol (B1, B3, B4, B5): ask for a set of devices, wait, take it or undo.

Owns the order of the writes and what is done about each of their outcomes. The binder decides; the channel is
GPUDevice status, so the webhook and the leader may run in different replicas. Neighbours: `sets` (where a device
stands), `answers` (what the binder says), `undo` (taking it back), `reader` (cache or GET).

Invariant: whoever wrote attachments of a request takes them back unless its answer is Bound. A crash in between
is the binder's to repair: it releases an attachment whose VMI never appeared (P5).
"""

from __future__ import annotations

import asyncio
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
"""Versions of one device we decide on before we give way: the binder writes to it at most twice meanwhile."""


class _LookAgain(Exception):
    """Something else has the set now; where its devices stand has to be seen anew."""


class BindClient:
    """Gets sets of devices placed. One instance serves all requests of a replica.

    `new_id`: fresh request ids. `on_bind(outcome, seconds)`: one start is over, outcome `Bound` or a reason (N4).
    `on_conflict()`: a device had moved on.
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

    async def bind(self, wanted: DeviceSet, *, seconds: float, dry_run: bool) -> None:
        """Returns when every device of the set is placed for this VMI (dry run: when nothing speaks against it,
        B5). Takes a recent start of the same VMI as its own and then writes nothing (B4). Raises `Denied`;
        whatever was written by then is being undone (B3)."""
        begun = self._clock.monotonic()
        until = begun + seconds
        try:
            done = await self._attempt(wanted, until, dry_run, recheck=False)
            while not done:
                if self._clock.monotonic() >= until:
                    raise late(wanted)
                done = await self._attempt(wanted, until, dry_run, recheck=True)
        except Denied as denied:
            self._on_bind(denied.reason, self._clock.monotonic() - begun)
            raise
        if not dry_run:
            self._on_bind(Outcome.BOUND, self._clock.monotonic() - begun)

    async def finish_undoing(self) -> None:
        """Wait for what is being undone in the background: at shutdown, before the loop ends (N1)."""
        while self._undoing:
            await asyncio.gather(*self._undoing, return_exceptions=True)

    async def _attempt(self, wanted: DeviceSet, until: float, dry_run: bool, *, recheck: bool) -> bool:
        """One try from looking to binding; False: look again. `recheck`: the cache has been wrong before."""
        devices, availabilities = await self._look(wanted, recheck)
        requested = sorted({s.request_id for s in availabilities.values() if s.availability is Availability.REQUESTED})
        if requested:
            return await self._answers.follow(wanted, requested[0], until, dry_run)
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
            raise Denied(refusal.reason, refusal.message)
        if dry_run:
            return True
        return await self._request(wanted, devices, until)

    # Looking

    async def _look(
        self, wanted: DeviceSet, recheck: bool
    ) -> tuple[dict[str, Device | None], dict[str, DeviceAvailability]]:
        """Where every device stands. The cache is believed only where it says that the whole set is free: every
        write is conditional on the version it showed. A doubt is settled by GET."""
        earlier = self._left_attached(wanted)
        if not wanted.templates and earlier is None and not recheck:
            devices: dict[str, Device | None] = {n: self._reader.cached(wanted.namespace, n) for n in wanted.held}
            try:
                availabilities = self._availabilities(wanted, devices)
            except Denied:
                availabilities = {}
            if availabilities and all(found.availability is Availability.FREE for found in availabilities.values()):
                return devices, availabilities
        if earlier is not None:
            current = await self._reader.read(wanted.namespace, earlier.name)
            if current is not None and current.attachment == earlier.attachment:
                raise held_by_earlier(wanted, earlier.name)
        devices = await self._reader.read_all(wanted.namespace, wanted.names)
        return devices, self._availabilities(wanted, devices)

    def _availabilities(self, wanted: DeviceSet, devices: dict[str, Device | None]) -> dict[str, DeviceAvailability]:
        return {
            name: availability_of(wanted, name, devices[name], self._view.seen_vmis, self._check_device)
            for name in wanted.names
        }

    def _left_attached(self, wanted: DeviceSet) -> Device | None:
        """A device outside the set that a start of the same name attached, whose VMI never came: the new VMI
        would keep it for its whole life."""
        for device in self._view.devices_of_vmi(wanted.namespace, wanted.vmi_name):
            assert device.attachment is not None
            seen = self._view.seen_vmis.get(device.uid, "").startswith(f"{device.attachment.request_id}/")
            if device.name not in wanted.names and device.deleting is None and not seen:
                return device
        return None

    # A request of our own

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
        except _LookAgain:
            undo.made.clear()  # whoever has the set now uses the templates too
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
        """Undo in a task of its own: a cancelled request must not cancel it."""
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
                raise _LookAgain from None
            made = decode_device(raw)
            undo.made[name] = made.uid
            devices[name] = made

    async def _attach(
        self, wanted: DeviceSet, name: str, device: Device | None, request: BindRequest, undo: Undo
    ) -> None:
        """Write attachment and request to one device. A conflict is no reason to try again blindly: the device
        is read and has to be free still (B1, B6)."""
        attachment = Attachment(wanted.vmi_name, request.id, request.requested_at)
        for _ in range(ATTEMPTS):
            if device is None:
                raise _LookAgain
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
                raise _LookAgain
        raise Denied(
            Reason.DEVICE_ATTACHED,
            f"GPUDevice {wanted.namespace}/{name} is being changed by someone else; try again in a moment",
        )

    def _availability(self, wanted: DeviceSet, name: str, device: Device | None) -> DeviceAvailability:
        return availability_of(wanted, name, device, self._view.seen_vmis, self._check_device)


def template_body(namespace: str, name: str, template: TemplateReference) -> dict[str, Any]:
    """A template device. No owner: the VMI has no uid yet, and the binder ends it with its VMI (K2, P5)."""
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
    """The status patch of B1, on the version the decision was taken on (B6)."""
    status: dict[str, Any] = {
        "attachment": wire.attachment_body(attachment),
        "bindRequest": wire.request_body(request, device.bind_request),
        "bindAnswer": None,
    }
    if device.phase == Phase.HELD:
        status["phase"] = Phase.ATTACHED.value
    return {"metadata": {"resourceVersion": device.resource_version}, "status": status}
