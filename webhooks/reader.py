"""Reading devices: from the folded state where it is current, from the API server where there is doubt.

Owns when a cached device may be trusted. A cache in another replica than the leader's lags, and the leader's own
runs ahead with writes whose outcome it does not know yet (J4); both are told by `View.settled` or by a GET.
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
    """Devices as the API server has them. Raises `Denied` for a device that cannot be read (R10), and the
    port's errors."""

    def __init__(self, cluster: Cluster, view: View) -> None:
        self._cluster = cluster
        self._view = view

    def cached(self, namespace: str, name: str) -> Device | None:
        """The device of the cache where the API server has shown it, else None."""
        found = self._view.device(namespace, name)
        return found if found is not None and self._view.settled(found) else None

    async def read(self, namespace: str, name: str) -> Device | None:
        """The device of the API server, None where there is none."""
        try:
            raw = await self._cluster.get(DEVICE, namespace, name)
        except NotFound:
            return None
        return decode_device(raw)

    async def read_all(self, namespace: str, names: Iterable[str]) -> dict[str, Device | None]:
        """Several devices of one namespace, read at once."""
        wanted = list(names)
        found = await asyncio.gather(*(self.read(namespace, name) for name in wanted))
        return dict(zip(wanted, found, strict=True))

    async def attached(self, namespace: str, vmi_name: str) -> list[Device]:
        """Devices attached to a VMI's name, by name, as the API server has them now: a launcher comes within
        a moment of its placement, and another replica's cache may still show the node of the run before."""
        known = [device.name for device in self._view.devices_of_vmi(namespace, vmi_name)]
        found = [device for device in (await self.read_all(namespace, known)).values() if device is not None]
        if not any(_attached_to(device, vmi_name) for device in found):
            listed = wire.decode_list(DEVICE, await self._cluster.list(DEVICE, namespace=namespace))
            found = [device for device in listed.objects if isinstance(device, Device)]
        return sorted((device for device in found if _attached_to(device, vmi_name)), key=lambda device: device.name)

    async def vmi_exists(self, namespace: str, name: str) -> bool:
        """Whether the API server has a VMI of this name, whatever the cache says."""
        try:
            await self._cluster.get(VMI, namespace, name)
        except (NotFound, KindMissing):
            return False
        return True


def _attached_to(device: Device, vmi_name: str) -> bool:
    return device.attachment is not None and device.attachment.vmi_name == vmi_name


def decode_device(raw: bytes) -> Device:
    """A device from the API server's JSON. Raises `Denied` naming the field that does not fit (R10)."""
    found = wire.decode_object(DEVICE, raw)
    if isinstance(found, wire.Unreadable):
        raise Denied(
            Reason.DEVICE_NOT_HELD,
            f"{found.key} cannot be read ({found.error}); ask the hoster to repair it, or order another",
        )
    assert isinstance(found, Device)
    return found
