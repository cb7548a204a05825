"""The chart's webhook configurations, led to a URL on loopback instead of a Service.

Owns when a registration is in force: an API server reads configurations by a watch, and requests that come before
it has read them pass. A barrier, registered after them and read in the same order, tells.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import uuid
from collections.abc import AsyncIterator
from typing import Any

from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.port import AlreadyExists, NotFound, Unavailable
from reconciler.core.model.objects import SETTINGS, Kind, Object
from tests.chart.charting import of_kind, render
from tests.realserver.controlplane import ControlPlane

_GROUP = "admissionregistration.k8s.io"
MUTATING = Kind("MutatingWebhookConfiguration", _GROUP, "v1", "mutatingwebhookconfigurations", False, Object)
VALIDATING = Kind("ValidatingWebhookConfiguration", _GROUP, "v1", "validatingwebhookconfigurations", False, Object)
CONFIGURATION = "gpu-binder-by-url"
"""Of both configurations; called before virt-api's, whose name comes later."""
BARRIER_LABEL = "tests.example.org/barrier"
BARRIER_SECONDS = 30.0
NOWHERE = "https://127.0.0.1:1/"
"""Nothing listens there: a request that a barrier selects fails at once."""


async def register_webhooks(
    control_plane: ControlPlane, base_url: str, ca_pem: str, values: dict[str, Any] | None = None
) -> None:
    """Register the chart's four webhooks (/admit/machines, /admit/pods, /admit/devices, /admit/tenants) under
    `base_url`, whose certificate `ca_pem` vouches for. Returns when they are in force. `values`: of the chart."""
    bundle = base64.b64encode(ca_pem.encode()).decode()
    manifests = render(values)
    async with _administrator(control_plane) as port:
        for kind in (MUTATING, VALIDATING):
            (manifest,) = of_kind(manifests, kind.name)
            webhooks = copy.deepcopy(manifest["webhooks"])
            for webhook in webhooks:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": base_url.rstrip("/") + path, "caBundle": bundle}
            await put(port, kind, {"metadata": {"name": CONFIGURATION}, "webhooks": webhooks})
        await in_force(port)


async def unregister(control_plane: ControlPlane) -> None:
    """Remove them; returns when no request is sent to them any more."""
    async with _administrator(control_plane) as port:
        for kind in (MUTATING, VALIDATING):
            await remove(port, kind, CONFIGURATION)
        await in_force(port)


async def put(port: KubeCluster, kind: Kind, body: dict[str, Any]) -> None:
    """Create a configuration, in place of one that has its name."""
    typed = {"apiVersion": kind.api_version, "kind": kind.name, **body}
    with contextlib.suppress(AlreadyExists):
        await port.create(kind, "", typed)
        return
    await remove(port, kind, body["metadata"]["name"])
    await port.create(kind, "", typed)


async def remove(port: KubeCluster, kind: Kind, name: str) -> None:
    with contextlib.suppress(NotFound):
        await port.delete(kind, "", name)


async def in_force(port: KubeCluster) -> None:
    """Wait until the API server has read every webhook configuration there is now."""
    token = uuid.uuid4().hex
    for kind in (MUTATING, VALIDATING):
        name = f"barrier-{token}"
        await port.create(kind, "", _barrier(name, f"{kind.plural}-{token}"[:63]))
        try:
            await _seen(port, f"{kind.plural}-{token}"[:63])
        finally:
            await remove(port, kind, name)


def _barrier(name: str, label: str) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    webhook = {
        "name": "barrier.tests.example.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 1,
        "objectSelector": {"matchLabels": {BARRIER_LABEL: label}},
        "clientConfig": {"url": NOWHERE},
        "rules": [rule],
    }
    return {"metadata": {"name": name}, "webhooks": [webhook]}


async def _seen(port: KubeCluster, label: str) -> None:
    probe = {"metadata": {"generateName": "barrier-", "labels": {BARRIER_LABEL: label}}}
    async with asyncio.timeout(BARRIER_SECONDS):
        while True:
            try:
                await port.create(SETTINGS, "default", probe, dry_run=True)
            except Unavailable as error:
                if "barrier.tests.example.org" in error.message:
                    return
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _administrator(control_plane: ControlPlane) -> AsyncIterator[KubeCluster]:
    port = await KubeCluster.connect(str(control_plane.kubeconfig("admin")))
    try:
        yield port
    finally:
        await port.close()
