"""Reads devices from the cache if it is current, otherwise from the API server.

Owns when a cached device may be trusted. The cache of a follower lags behind the leader, and the leader's own cache
includes writes with unknown outcome (J4); `View.settled` or a GET tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from reconciler.cluster.port import Cluster, KindMissing, NotFound
from reconciler.core.model import wire
from reconciler.core.model.objects import DEVICE, VMI, Device
from reconciler.core.model.vocabulary import Reason
from webhooks.review import Denied
from webhooks.view import View


class DeviceReader:
    """Reads devices. Raises `Denied` for a device that cannot be decoded (R10), and the port's errors."""

    def __init__(self, cluster: Cluster, view: View) -> None:
        self._cluster = cluster
        self._view = view

    def cached(self, namespace: str, name: str) -> Device | None:
        """The cached device if the API server has confirmed it, else None."""
        found = self._view.device(namespace, name)
        return found if found is not None and self._view.settled(found) else None

    async def read(self, namespace: str, name: str) -> Device | None:
        """The device from the API server, None if it does not exist."""
        try:
            raw = await self._cluster.get(DEVICE, namespace, name)
        except NotFound:
            return None
        return decode_device(raw)

    async def read_all(self, namespace: str, names: Iterable[str]) -> dict[str, Device | None]:
        """Read several devices of one namespace concurrently."""
        wanted = list(names)
        found = await asyncio.gather(*(self.read(namespace, name) for name in wanted))
        return dict(zip(wanted, found, strict=True))

    async def attached(self, namespace: str, vmi_name: str) -> list[Device]:
        """Devices attached to a VMI, sorted by name, read from the API server: a launcher is created within moments of
        placement, and another replica's cache may still show the node of the previous run."""
        known = [device.name for device in self._view.devices_of_vmi(namespace, vmi_name)]
        found = [device for device in (await self.read_all(namespace, known)).values() if device is not None]
        if not any(_attached_to(device, vmi_name) for device in found):
            listed = wire.decode_list(DEVICE, await self._cluster.list(DEVICE, namespace=namespace))
            found = [device for device in listed.objects if isinstance(device, Device)]
        return sorted((device for device in found if _attached_to(device, vmi_name)), key=lambda device: device.name)

    async def vmi_exists(self, namespace: str, name: str) -> bool:
        """Whether the API server has a VMI of this name, bypassing the cache."""
        try:
            await self._cluster.get(VMI, namespace, name)
        except (NotFound, KindMissing):
            return False
        return True


def _attached_to(device: Device, vmi_name: str) -> bool:
    return device.attachment is not None and device.attachment.vmi_name == vmi_name


def decode_device(raw: bytes) -> Device:
    """Decode a device from the API server's JSON. Raises `Denied` naming the invalid field (R10)."""
    found = wire.decode_object(DEVICE, raw)
    if isinstance(found, wire.Unreadable):
        raise Denied(
            Reason.DEVICE_NOT_HELD,
            f"{found.key} cannot be read ({found.error}); ask the hoster to repair it, or order another",
        )
    assert isinstance(found, Device)
    return found
