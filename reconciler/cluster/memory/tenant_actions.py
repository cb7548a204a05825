"""Shorthand for what tenants do to a cluster, on the in-memory port or a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reconciler.cluster.memory.json_objects import Document
from reconciler.cluster.memory.manifests import device_body, pod_body, vmi_body
from reconciler.cluster.port import Cluster
from reconciler.core.model.objects import DEVICE, POD, VMI


def document(raw: bytes) -> Document:
    """An API server's response as plain values."""
    found: Document = msgspec.json.decode(raw)
    return found


class Tenants:
    """Acts as a tenant; `tenant_port` is theirs."""

    tenant_port: Cluster

    async def order(self, namespace: str, name: str, class_name: str, count: int = 1) -> Document:
        """Order a device. Raises `Rejected` with the refusal."""
        return document(await self.tenant_port.create(DEVICE, namespace, device_body(name, class_name, count)))

    async def vmi(
        self,
        namespace: str,
        name: str,
        devices: Sequence[str | Mapping[str, Any]] = (),
        *,
        memory: str = "4Gi",
        spec: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> Document:
        """Start a VM. Returns when admission has answered; raises `Rejected` with the refusal."""
        body = vmi_body(name, devices, memory=memory, spec=spec)
        return document(await self.tenant_port.create(VMI, namespace, body, dry_run=dry_run))

    async def pod(self, namespace: str, name: str, requests: Mapping[str, int], node: str = "") -> Document:
        """Create an ordinary pod that requests resources by name; `node`: already bound to it."""
        return document(await self.tenant_port.create(POD, namespace, pod_body(name, requests, node)))
