"""The node agent: reads the node's GPUs and writes them into its GPUNode (N5, O3).

Owns the interval, the name tables (KubeVirt's permittedHostDevices, a map file) and the write. `sysfs` reads the
facts, `inventory` evaluates them. If the bus cannot be read it does not report: a missing report means unknown, an
empty one would mean no GPUs (R5).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from reconciler.cluster.port import AlreadyExists, Cluster, ClusterError, KindMissing, NotFound
from reconciler.cluster.retry_policies import REPORT
from reconciler.core.model.decode_platform import KubeVirtSpec, PermittedHostDevices
from reconciler.core.model.objects import GPU_NODE, KUBEVIRT, Function
from reconciler.core.model.vocabulary import Mode
from reconciler.core.model.wire_base import from_ms
from reconciler.node_agent.inventory import NameMap, report, type_key
from reconciler.node_agent.sysfs import SysfsError, read_bus

SYSFS = Path("/sys")


class MapError(ValueError):
    """A map file that cannot be used; the message names the file and the field."""


class MapFile(PermittedHostDevices, frozen=True):
    """KubeVirt's `permittedHostDevices`, and `modes`: PCI address, serial or vendor:device to the mode a card is
    configured for."""

    modes: dict[str, Mode] = {}


class _KubeVirt(msgspec.Struct):
    spec: KubeVirtSpec | None = None


class _KubeVirts(msgspec.Struct):
    items: list[_KubeVirt] | None = None


def read_map(path: Path) -> NameMap:
    """A map file, YAML or JSON, of the shape of `MapFile`. Raises `MapError`."""
    try:
        found = msgspec.yaml.decode(path.read_bytes(), type=MapFile)
    except (OSError, msgspec.DecodeError) as error:
        raise MapError(
            f"map file {path}: {error}; it holds pciHostDevices and mediatedDevices as KubeVirt's "
            "permittedHostDevices does, and modes: {ADDRESS: VGPU}"
        ) from error
    return msgspec.structs.replace(
        _names(found), modes={key.strip().lower(): mode for key, mode in found.modes.items()}
    )


def _names(table: PermittedHostDevices) -> NameMap:
    """The name table, keyed by what identifies a function; entries without a name are left out."""
    return NameMap(
        pci={
            entry.pci_vendor_selector.strip().upper(): entry.resource_name
            for entry in table.pci_host_devices or ()
            if entry.pci_vendor_selector and entry.resource_name
        },
        mediated={
            type_key(entry.mdev_name_selector): entry.resource_name
            for entry in table.mediated_devices or ()
            if entry.mdev_name_selector and entry.resource_name
        },
    )


class Agent:
    """Reports one node. `run` is one task."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        node_name: str,
        sysfs: Path = SYSFS,
        map_file: Path | None = None,
        clock: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        log: Any = None,
    ) -> None:
        """`map_file` takes precedence over KubeVirt's table; it is reread for every report. `clock`: ms since the
        epoch."""
        self._cluster = cluster
        self._node = node_name
        self._sysfs = sysfs
        self._map_file = map_file
        self._clock = clock
        self._sleep = sleep
        self._log = log or structlog.get_logger("node-agent")
        self._permitted: NameMap | None = None
        self._type_names: dict[str, str] = {}

    async def run(self, interval_seconds: float) -> None:
        """Report every `interval_seconds` until cancelled. Failures are logged and retried; a report that is too late
        counts as stale."""
        while True:
            try:
                functions = await REPORT.call(self.report, self._sleep)
                self._log.debug("reported", node=self._node, functions=len(functions))
            except (ClusterError, SysfsError, MapError, msgspec.DecodeError) as error:
                self._log.error("not reported", node=self._node, error=str(error))
            await self._sleep(interval_seconds)

    async def report(self) -> tuple[Function, ...]:
        """Read sysfs once and write the report. Raises `SysfsError`, `MapError` and the port's errors."""
        names = await self._name_map()
        bus = await asyncio.to_thread(read_bus, self._sysfs)
        at = self._clock()
        for found in bus.gpus:
            self._type_names.update(found.creatable)
        functions = report(bus, names, self._type_names)
        await self._write(functions, at)
        return functions

    async def _name_map(self) -> NameMap:
        """The map file merged over KubeVirt's table. If the table cannot be read the last known one is used; before
        the first read there is nothing to report, unless a map file gives the names (P6)."""
        try:
            body = await self._cluster.list(KUBEVIRT)
            self._permitted = _permitted(body) or self._permitted
        except (ClusterError, msgspec.DecodeError) as error:
            if self._permitted is None and self._map_file is None and not isinstance(error, KindMissing):
                raise
            self._log.warning("KubeVirt's table not read", node=self._node, error=str(error))
        permitted = self._permitted or NameMap()
        return permitted if self._map_file is None else read_map(self._map_file).over(permitted)

    async def _write(self, functions: tuple[Function, ...], at: int) -> None:
        """Replace the status; creates the object if it does not exist."""
        status = {"reportedAt": from_ms(at), "functions": [_body(function) for function in functions]}
        try:
            await self._patch(status)
        except NotFound:
            body = {"apiVersion": GPU_NODE.api_version, "kind": GPU_NODE.name, "metadata": {"name": self._node}}
            with contextlib.suppress(AlreadyExists):
                await self._cluster.create(GPU_NODE, "", body)
            await self._patch(status)

    async def _patch(self, status: dict[str, Any]) -> None:
        await self._cluster.patch(GPU_NODE, "", self._node, {"status": status}, subresource="status")


def _permitted(body: bytes) -> NameMap | None:
    """The tables of the KubeVirt objects listed, None if there is no object (a reinstall: C36)."""
    listed = msgspec.json.decode(body, type=_KubeVirts).items or []
    names: NameMap | None = None
    for found in listed:
        configuration = found.spec.configuration if found.spec is not None else None
        table = configuration.permitted_host_devices if configuration is not None else None
        names = _names(table or PermittedHostDevices()).over(names or NameMap())
    return names


def _body(function: Function) -> dict[str, Any]:
    """Every field in full: a merge patch replaces lists as a whole."""
    return {
        "id": function.id,
        "stableID": function.stable_id,
        "parent": function.parent,
        "kind": function.kind,
        "resourceName": function.resource_name,
        "healthy": function.healthy,
        "message": function.message,
        "profiles": [
            {"resourceName": profile.resource_name, "used": profile.used, "remaining": profile.remaining}
            for profile in function.profiles
        ],
    }
