"""The port on HTTP: paths, errors, long lines, silence, tokens."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import trustme
import yaml
from aiohttp import web
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from reconciler.cluster.credentials import ClusterConfigError, Credentials
from reconciler.cluster.kube import MAX_RETRY_AFTER_SECONDS, KubeCluster
from reconciler.cluster.port import (
    AlreadyExists,
    Cluster,
    ClusterError,
    Conflict,
    Expired,
    KindMissing,
    NotFound,
    Preconditions,
    Rejected,
    Unauthorized,
    Unavailable,
)
from reconciler.core.model.objects import DEVICE, LEASE, NODE, RELEASE, SETTINGS, VMI, Kind
from tests.edges.fake_api import FakeApi, refusal


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.start()
    yield api
    await api.stop()


@pytest.fixture
async def cluster(api: FakeApi, tmp_path: Path) -> AsyncIterator[KubeCluster]:
    cluster = await KubeCluster.connect(str(kubeconfig(tmp_path, api.url)))
    yield cluster
    await cluster.close()


def kubeconfig(folder: Path, server: str, user: dict[str, str] | None = None) -> Path:
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
async def pod(api_tls: FakeApi, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeCluster]:
    """A cluster found as a pod finds it."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api_tls.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(mounted / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(mounted / "ca.crt"))
    cluster = await KubeCluster.connect()
    yield cluster
    await cluster.close()


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    return tmp_path


@pytest.fixture
async def api_tls(mounted: Path) -> AsyncIterator[FakeApi]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(mounted / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    api = FakeApi()
    api.tokens = {"first"}
    api.install(NODE, LEASE)
    await api.start(context)
    yield api
    await api.stop()


async def lines(cluster: Cluster, kind: Kind, version: str, count: int, **more: str) -> list[bytes]:
    """The first `count` lines of a watch."""
    found: list[bytes] = []
    async with asyncio.timeout(20):
        async for line in cluster.watch(kind, version, timeout_seconds=10, **more):
            found.append(line)
            if len(found) == count:
                break
    return found


async def test_C44_the_installed_client_sends_the_mounted_token(pod: KubeCluster, api_tls: FakeApi) -> None:
    await pod.list(NODE)
    assert api_tls.requests[0].headers["Authorization"] == "bearer first"


async def test_C44_N7_a_refused_token_is_read_again_once(pod: KubeCluster, api_tls: FakeApi, mounted: Path) -> None:
    await pod.list(NODE)
    (mounted / "token").write_text("second\n")
    api_tls.tokens = {"second"}
    await pod.list(NODE)
    assert [request.headers["Authorization"] for request in api_tls.requests] == [
        "bearer first",
        "bearer first",
        "bearer second",
    ]
    await pod.list(NODE)
    assert len(api_tls.requests) == 4


async def test_C44_a_watch_opened_after_rotation_is_let_in(pod: KubeCluster, api_tls: FakeApi, mounted: Path) -> None:
    (mounted / "token").write_text("second\n")
    api_tls.tokens = {"second"}
    await api_tls.put(NODE, "n1")
    assert b'"n1"' in (await lines(pod, NODE, "1", 1))[0]


async def test_C44_a_rotated_token_is_used_within_a_minute_without_a_refusal(
    pod: KubeCluster, api_tls: FakeApi, mounted: Path, freezer_after: Tick
) -> None:
    await pod.list(NODE)
    (mounted / "token").write_text("second\n")
    api_tls.tokens = {"first", "second"}
    freezer_after(timedelta(seconds=60))
    await pod.list(NODE)
    assert api_tls.requests[-1].headers["Authorization"] == "bearer second"
    assert len(api_tls.requests) == 2


async def test_C44_a_token_refused_again_is_told_and_not_tried_for_ever(pod: KubeCluster, api_tls: FakeApi) -> None:
    api_tls.tokens = {"other"}
    with pytest.raises(Unauthorized):
        await pod.get(NODE, "", "n1")
    assert len(api_tls.requests) == 2


async def test_C44_while_the_token_file_is_swapped_the_last_token_is_used(
    pod: KubeCluster, api_tls: FakeApi, mounted: Path, freezer_after: Tick
) -> None:
    await pod.list(NODE)
    (mounted / "token").unlink()
    freezer_after(timedelta(seconds=61))
    await pod.list(NODE)
    (mounted / "token").write_text("")
    await pod.list(NODE)
    assert {request.headers["Authorization"] for request in api_tls.requests} == {"bearer first"}


class Tick:
    """Moves the client library's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, passed: timedelta) -> None:
        real = incluster_config.datetime

        class Later(real.datetime):  # type: ignore[name-defined,misc]
            @classmethod
            def now(cls, tz=None):  # type: ignore[no-untyped-def]
                return super().now(tz) + passed

        class Module:
            datetime = Later
            timedelta = real.timedelta

        self._monkeypatch.setattr(incluster_config, "datetime", Module)


@pytest.fixture
def freezer_after(monkeypatch: pytest.MonkeyPatch) -> Tick:
    return Tick(monkeypatch)


async def test_C44_a_kubeconfig_token_that_was_replaced_is_read_again(api: FakeApi, tmp_path: Path) -> None:
    api.install(NODE)
    api.tokens = {"new"}
    path = kubeconfig(tmp_path, api.url, {"token": "old"})
    cluster = await KubeCluster.connect(str(path))
    kubeconfig(tmp_path, api.url, {"token": "new"})
    await cluster.list(NODE)
    await cluster.close()
    assert api.requests[-1].headers["Authorization"] == "Bearer new"


@pytest.mark.parametrize(
    ("status", "reason", "message", "error"),
    [
        (409, "Conflict", "the object has been modified", Conflict),
        (409, "AlreadyExists", 'gpudevices "d" already exists', AlreadyExists),
        (404, "NotFound", 'gpudevices "d" not found', NotFound),
        (404, "NotFound", "the server could not find the requested resource", KindMissing),
        (404, "", "404 page not found\n", KindMissing),
        (410, "Expired", "too old resource version", Expired),
        (403, "Forbidden", "not allowed", Rejected),
        (422, "Invalid", "spec.count: must be positive", Rejected),
        (301, "", "moved", Rejected),
        (429, "TooManyRequests", "slow down", Unavailable),
        (500, "InternalError", "failed calling webhook", Unavailable),
        (503, "", "shutting down", Unavailable),
    ],
)
async def test_N7_N8_answers_in_the_ports_words(
    cluster: KubeCluster, api: FakeApi, status: int, reason: str, message: str, error: type[ClusterError]
) -> None:
    api.next.append(refusal(status, reason, message))
    with pytest.raises(error) as raised:
        await cluster.create(DEVICE, "tenant-a", {"metadata": {"name": "d"}})
    assert type(raised.value) is error
    assert message.strip() in raised.value.message


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "7"}, {}, 7.0),
        ({"Retry-After": "86400"}, {}, MAX_RETRY_AFTER_SECONDS),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, 0.0),
        ({}, {"details": {"retryAfterSeconds": 3}}, 3.0),
        ({}, {"details": {"retryAfterSeconds": -3}}, 0.0),
    ],
)
async def test_a_server_that_asks_to_be_left_alone_is_obeyed_within_bounds(
    cluster: KubeCluster, api: FakeApi, headers: dict[str, str], details: dict[str, object], seconds: float
) -> None:
    api.next.append(refusal(429, "TooManyRequests", "slow down", headers, **details))
    with pytest.raises(Unavailable) as raised:
        await cluster.get(NODE, "", "n1")
    assert raised.value.retry_after_seconds == seconds


async def test_N8_a_collection_that_is_not_there_is_a_missing_kind_an_object_is_not(
    cluster: KubeCluster, api: FakeApi
) -> None:
    with pytest.raises(KindMissing, match=r"virtualmachineinstances\.kubevirt\.io/v1"):
        await cluster.list(VMI)
    with pytest.raises(KindMissing):
        await lines(cluster, VMI, "1", 1)
    api.install(VMI, NODE)
    with pytest.raises(NotFound):
        await cluster.get(VMI, "tenant-a", "vm")
    with pytest.raises(NotFound):
        await cluster.get(NODE, "", "nodes")


async def test_a_refused_connection_is_unavailable(api: FakeApi, tmp_path: Path) -> None:
    cluster = await KubeCluster.connect(str(kubeconfig(tmp_path, "http://127.0.0.1:9")))
    with pytest.raises(Unavailable):
        await cluster.list(NODE)
    with pytest.raises(Unavailable):
        await lines(cluster, NODE, "1", 1)
    await cluster.close()


async def test_C41_B6_requests_as_the_api_server_expects_them(cluster: KubeCluster, api: FakeApi) -> None:
    api.install(DEVICE, NODE, RELEASE, SETTINGS)
    await api.put(DEVICE, "d", "tenant-a")
    await cluster.list(RELEASE, label_selector="kind=Tenant")
    await cluster.list(SETTINGS, namespace="here", name="gpu-settings")
    await cluster.patch(DEVICE, "tenant-a", "d", {"status": {"phase": "Held"}}, subresource="status")
    api.next.append(web.json_response({}, status=201))
    await cluster.create(DEVICE, "tenant-a", {"metadata": {"name": "d"}}, dry_run=True)
    await cluster.delete(DEVICE, "tenant-a", "d", preconditions=Preconditions(uid="u1"))
    sent = [(request.method, request.path) for request in api.requests]
    assert sent == [
        ("GET", "/apis/helm.toolkit.fluxcd.io/v2/helmreleases"),
        ("GET", "/api/v1/namespaces/here/configmaps"),
        ("PATCH", "/apis/gpu.cozystack.io/v1alpha1/namespaces/tenant-a/gpudevices/d/status"),
        ("POST", "/apis/gpu.cozystack.io/v1alpha1/namespaces/tenant-a/gpudevices"),
        ("DELETE", "/apis/gpu.cozystack.io/v1alpha1/namespaces/tenant-a/gpudevices/d"),
    ]
    assert api.queries[:2] == [{"labelSelector": "kind=Tenant"}, {"fieldSelector": "metadata.name=gpu-settings"}]
    assert api.queries[3]["dryRun"] == "All"
    assert api.requests[2].headers["Content-Type"] == "application/merge-patch+json"
    assert msgspec.json.decode(api.bodies[2]) == {"status": {"phase": "Held"}}
    assert msgspec.json.decode(api.bodies[4])["preconditions"] == {"uid": "u1"}


async def test_N7_a_watch_asks_for_bookmarks_and_an_end(cluster: KubeCluster, api: FakeApi) -> None:
    api.install(NODE)
    await api.put(NODE, "n1")
    await lines(cluster, NODE, "7", 1)
    assert api.queries[-1] == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "10",
    }


async def test_lines_far_longer_than_a_chunk_come_whole(cluster: KubeCluster, api: FakeApi) -> None:
    api.install(NODE)
    big = await api.put(NODE, "big", metadata={"annotations": {"note": "x" * 3_000_000}})
    small = await api.put(NODE, "small")
    found = await lines(cluster, NODE, "1", 2)
    assert [msgspec.json.decode(line)["object"] for line in found] == [big, small]


async def test_N7_an_orderly_end_ends_the_iteration(cluster: KubeCluster, api: FakeApi) -> None:
    api.install(NODE)
    await api.put(NODE, "n1")
    async with asyncio.timeout(20):
        found = []
        async for line in cluster.watch(NODE, "1", timeout_seconds=10):
            found.append(line)
            await api.cut()
    assert len(found) == 1


async def test_C39_an_expired_version_as_a_status(cluster: KubeCluster, api: FakeApi) -> None:
    api.install(NODE)
    api.forget()
    with pytest.raises(Expired):
        await lines(cluster, NODE, "1", 1)


async def test_C38_a_watch_that_stays_open_and_silent_is_given_up(api: FakeApi) -> None:
    api.install(NODE)
    cluster = await impatient(api)
    with pytest.raises(Unavailable, match="no answer in time"):
        async for _ in cluster.watch(NODE, "100", timeout_seconds=0.1):
            pytest.fail("a mute server said something")
    await cluster.close()


async def impatient(api: FakeApi) -> KubeCluster:
    """A cluster whose watches may be silent for a moment only."""

    async def nothing(configuration: Configuration) -> None:
        return None

    configuration = Configuration(host=api.url)
    return KubeCluster(configuration, Credentials(configuration, nothing), watch_slack_seconds=0.1)


async def test_a_stream_that_breaks_within_a_line_is_unavailable(cluster: KubeCluster, api: FakeApi) -> None:
    api.install(NODE)
    api.history["/api/v1/nodes"].append((101, b'{"type": "ADDED", "obj'))
    api.version = 101
    with pytest.raises(Unavailable, match="within a line"):
        async with asyncio.timeout(20):
            reading = asyncio.ensure_future(lines(cluster, NODE, "100", 1))
            await api.asked(1)
            await api.cut()
            await reading


async def test_a_missing_or_broken_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterConfigError, match=r"nowhere.*--kubeconfig"):
        await KubeCluster.connect(str(tmp_path / "nowhere"))
    broken = tmp_path / "broken"
    for text in ("", "- 1\n", "a: [", "clusters: 7\n", "current-context: x\nclusters: []\ncontexts: []\n"):
        broken.write_text(text)
        with pytest.raises(ClusterConfigError, match="broken cannot be used"):
            await KubeCluster.connect(str(broken))
    path = kubeconfig(tmp_path, "http://127.0.0.1:9")
    with pytest.raises(ClusterConfigError, match="elsewhere"):
        await KubeCluster.connect(str(path), "elsewhere")
