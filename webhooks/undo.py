"""Rolls back what a start wrote (B3).

Owns the rollback of the bind protocol: read the device, send one conditional write, repeat until the device no longer
carries the request. A binder answer that lands in between causes a conflict and is rolled back too; the binder releases
placements of devices without an attachment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from reconciler.cluster.port import Cluster, ClusterError, Conflict, NotFound, Preconditions
from reconciler.cluster.retry_policies import UNDO
from reconciler.core.model.objects import DEVICE, Device
from reconciler.core.model.vocabulary import Phase
from webhooks.clock import Clock
from webhooks.reader import DeviceReader, decode_device
from webhooks.review import Denied
from webhooks.sets import DeviceSet


class Undo:
    """Rollback of one request. `touched`: names that may carry it. `made`: template devices it created, with their uid
    ("" if the API server did not answer)."""

    def __init__(
        self,
        cluster: Cluster,
        reader: DeviceReader,
        clock: Clock,
        wanted: DeviceSet,
        request_id: str,
        on_conflict: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._clock = clock
        self._wanted = wanted
        self._on_conflict = on_conflict
        vmi = f"{wanted.namespace}/{wanted.vmi_name}"
        self._log = structlog.get_logger("webhooks.undo").bind(request_id=request_id, vmi=vmi)
        self.request_id = request_id
        self.touched: list[str] = []
        self.made: dict[str, str] = {}
        self._writes: list[asyncio.Task[bytes]] = []

    async def send(self, write: Coroutine[Any, Any, bytes]) -> bytes:
        """Send one write of the request. If the request is cancelled, the write still completes before the rollback
        reads anything, or it could land afterwards."""
        task = asyncio.create_task(write)
        self._writes.append(task)
        return await asyncio.shield(task)

    async def run(self) -> None:
        """Roll everything back; failures are logged and left to the binder."""
        await asyncio.gather(*self._writes, return_exceptions=True)
        names = sorted({*self.touched, *self.made})
        await asyncio.gather(*(self._undo_one(name) for name in names))

    async def _undo_one(self, name: str) -> None:
        def failed(error: BaseException) -> None:
            if not isinstance(error, Conflict):
                self._log.warning("undo failed, trying again", device=name, error=str(error))

        try:
            await UNDO.call(partial(self._attempt, name), self._clock.sleep, also=(Denied,), failed=failed)
        except NotFound:
            return
        except (ClusterError, Denied):
            self._log.error("undo given up, the binder releases the device after its grace time", device=name)

    async def _attempt(self, name: str) -> None:
        """Read the device and roll it back. Raises `NotFound` if it is gone, `Conflict` if it changed."""
        device = await self._reader.read(self._wanted.namespace, name)
        if device is None:
            return
        try:
            await self._step(name, device)
        except Conflict:
            self._on_conflict()
            raise

    async def _step(self, name: str, device: Device) -> None:
        """Detach or delete the device; nothing if it does not carry the request. A template that has its units is
        detached first: attached, it would keep them until its VMI's time to appear is over."""
        carries = device.attachment is not None and device.attachment.request_id == self.request_id
        if name in self._wanted.templates or device.template:
            ours = carries or (device.attachment is None and self.made.get(name) in ("", device.uid))
            if not ours or device.deleting is not None:
                return
            # A grant that landed since is deleted with the device; another start's attachment must not be.
            version = "" if carries else device.resource_version
            if carries and device.placement is not None:
                body = detach_body(device)
                patched = await self._cluster.patch(DEVICE, device.namespace, name, body, subresource="status")
                version = decode_device(patched).resource_version
            await self._cluster.delete(
                DEVICE,
                device.namespace,
                name,
                preconditions=Preconditions(uid=device.uid, resource_version=version),
            )
        elif carries:
            await self._cluster.patch(DEVICE, device.namespace, name, detach_body(device), subresource="status")


def detach_body(device: Device) -> dict[str, Any]:
    """Status patch that detaches the device; its hold is kept. The binder clears the placement (B2)."""
    status: dict[str, Any] = {"attachment": None, "bindRequest": None, "bindAnswer": None}
    if device.phase in (Phase.ATTACHED, Phase.BOUND):
        status["phase"] = Phase.HELD.value
    return {"metadata": {"resourceVersion": device.resource_version}, "status": status}
