"""Events, certificates, reports and the uninstall on a real API server, which checks what they send (N4-N6)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.port import AlreadyExists, NotFound
from reconciler.core.model import wire
from reconciler.core.model.objects import (
    CLASS,
    DEVICE,
    EVENT,
    GPU_NODE,
    KUBEVIRT,
    MUTATING_WEBHOOKS,
    NAMESPACE,
    SECRET,
    STATEFUL_SET,
    VALIDATING_WEBHOOKS,
    GpuNode,
    Kind,
)
from reconciler.core.model.vocabulary import DEVICE_FINALIZER
from reconciler.node_agent.agent import Agent
from reconciler.runtime.certificates import CertificateKeeper
from reconciler.runtime.observability.event_messages import WARNING, Notice, Regarding
from reconciler.runtime.observability.event_recorder import EventRecorder
from reconciler.runtime.uninstall import Uninstalled, uninstall
from tests.edges.memory_cluster import named
from tests.edges.test_agent import A10, FakeSysfs
from tests.realserver.controlplane import ControlPlane

pytestmark = pytest.mark.realserver
NS = "edges"
CONFIG = "edges-gpu-binder"


def clock() -> int:
    return int(time.time() * 1000)


def read(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


def typed(kind: Kind, name: str, **rest: Any) -> dict[str, Any]:
    """An object with its type, without which the API server takes no custom one."""
    return {"apiVersion": f"{kind.group}/{kind.version}".lstrip("/"), "kind": kind.name, **named(name, **rest)}


class OwnNamespace:
    """The port with lists of this suite's objects only, as the API server is shared."""

    def __init__(self, cluster: KubeCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def list(self, kind: Kind) -> bytes:
        return await self._cluster.list(kind, namespace=NS, name="" if kind.namespaced else "edges-class")


@pytest.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[KubeCluster]:
    """The API server as its administrator; the namespace is there."""
    made = await KubeCluster.connect(str(control_plane.kubeconfig("admin")))
    with contextlib.suppress(AlreadyExists):
        await made.create(NAMESPACE, "", named(NS))
    yield made
    await made.close()


async def test_N4_the_api_server_takes_events_their_repetition_and_those_on_cluster_objects(
    cluster: KubeCluster, control_plane: ControlPlane
) -> None:
    device = read(await cluster.create(DEVICE, NS, typed(DEVICE, "told", spec={"className": "a10"})))
    regarding = Regarding(DEVICE, NS, "told", device["metadata"]["uid"])
    event_recorder = EventRecorder(cluster, identity="gpu-binder-0", clock=clock)
    refused = Notice(regarding, WARNING, "RefuseOrder", "NoFreeUnits", "ü" * 2_000)
    on_class = Notice(Regarding(CLASS, "", "edges-class", "u"), WARNING, "SetPermitted", "NotListed", "not listed")
    for _ in range(2):
        for notice in (refused, refused, on_class):
            event_recorder._put(notice, clock())
        await event_recorder.flush()
    found = [one for one in read(await cluster.list(EVENT, namespace=NS))["items"] if one["reason"] == "NoFreeUnits"]
    assert [one["series"]["count"] for one in found] == [4]
    told = control_plane.kubectl("-n", NS, "describe", "gpudevice", "told").stdout
    assert "NoFreeUnits" in told
    events = read(await cluster.list(EVENT, namespace="default"))["items"]
    assert [one["series"]["count"] for one in events if one["regarding"].get("name") == "edges-class"] == [2]
    await cluster.delete(DEVICE, NS, "told")


async def test_N6_replicas_agree_on_one_secret_and_the_configurations_carry_its_authority(
    cluster: KubeCluster, tmp_path: Path
) -> None:
    await cluster.create(SECRET, NS, named("edges-cert", type="Opaque"))
    hook = {
        "name": "none.edges.example",
        "clientConfig": {"service": {"namespace": NS, "name": "gpu-binder", "path": "/x"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": [],
    }
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        await cluster.create(kind, "", named(CONFIG, webhooks=[hook, {**hook, "name": "more.edges.example"}]))
    keepers = []
    for name in ("a", "b"):
        at = tmp_path / name
        keepers.append(
            CertificateKeeper(
                cluster,
                namespace=NS,
                secret_name="edges-cert",
                service_name="gpu-binder",
                webhook_config_name=CONFIG,
                certificate=at / "tls.crt",
                key=at / "tls.key",
                authority=at / "ca.crt",
            )
        )
    await asyncio.gather(*(keeper.keep() for keeper in keepers))
    for keeper in keepers:
        await keeper.keep()
    for name in ("tls.crt", "tls.key", "ca.crt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    secret = read(await cluster.get(SECRET, NS, "edges-cert"))
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        hooks = read(await cluster.get(kind, "", CONFIG))["webhooks"]
        assert [one["clientConfig"]["caBundle"] for one in hooks] == [secret["data"]["ca.crt"]] * 2
        assert hooks[0]["clientConfig"]["service"]["path"] == "/x"
    assert base64.b64decode(secret["data"]["tls.crt"]) == (tmp_path / "a/tls.crt").read_bytes()
    before = secret["metadata"]["resourceVersion"]
    await keepers[0].keep()
    assert read(await cluster.get(SECRET, NS, "edges-cert"))["metadata"]["resourceVersion"] == before
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        await cluster.delete(kind, "", CONFIG)


async def test_N5_the_report_fits_the_schema_and_is_read_back_as_it_was_meant(
    cluster: KubeCluster, tmp_path: Path
) -> None:
    sysfs = FakeSysfs(tmp_path / "sys")
    sysfs.add("0000:3b:00.0", serial="a1", driver="nvidia")
    sysfs.add("0000:5e:00.0", driver="nvidia", sriov_numvfs="1")
    sysfs.add_virtual("0000:5e:00.0", 0, "0000:5e:00.4")
    sysfs.add_type("0000:5e:00.4", name="NVIDIA A10-4Q", available=1, used=2)
    table = {
        "pciHostDevices": [{"pciVendorSelector": "10DE:2236", "resourceName": A10}],
        "mediatedDevices": [{"mdevNameSelector": "NVIDIA A10-4Q", "resourceName": "nvidia.com/A10-4Q"}],
    }
    body = typed(KUBEVIRT, "edges", spec={"configuration": {"permittedHostDevices": table}})
    await cluster.create(KUBEVIRT, NS, body)
    try:
        agent = Agent(cluster, node_name="edges-node", sysfs=sysfs.root, clock=clock)
        await agent.report()
        functions = await agent.report()
    finally:
        await cluster.delete(KUBEVIRT, NS, "edges")
    report = wire.decode_object(GPU_NODE, await cluster.get(GPU_NODE, "", "edges-node"))
    assert isinstance(report, GpuNode) and report.functions == functions and report.reported_at
    assert [one.kind for one in functions] == ["Physical", "Physical", "MdevParent"]
    await cluster.delete(GPU_NODE, "", "edges-node")


async def test_C47_the_uninstall_scales_the_controller_down_and_frees_what_is_being_deleted(
    cluster: KubeCluster,
) -> None:
    labels = {"app": "edges"}
    container = {"name": "c", "image": "none"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "nodeSelector": {"no": "where"}}}
    spec = {"serviceName": "x", "replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    await cluster.create(STATEFUL_SET, NS, named("edges", spec=spec))
    for _ in range(200):
        if read(await cluster.get(STATEFUL_SET, NS, "edges")).get("status", {}).get("replicas"):
            break
        await asyncio.sleep(0.1)
    kept = typed(DEVICE, "kept", spec={"className": "a10"})
    kept["metadata"]["finalizers"] = [DEVICE_FINALIZER]
    await cluster.create(DEVICE, NS, kept)
    await cluster.delete(DEVICE, NS, "kept")
    assert await cluster.get(DEVICE, NS, "kept"), "its finalizer holds it"
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        await cluster.create(kind, "", named(f"{CONFIG}-gone", webhooks=[]))
    port: Any = OwnNamespace(cluster)
    done = await uninstall(port, f"{CONFIG}-gone", namespace=NS, workload="edges")
    assert done == Uninstalled(configurations=2, stopped=True, devices=1)
    assert not read(await cluster.get(STATEFUL_SET, NS, "edges"))["status"]["replicas"]
    with pytest.raises(NotFound):
        await cluster.get(DEVICE, NS, "kept")
