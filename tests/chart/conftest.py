"""Fixtures of the real-server chart tests: the shared control plane, the foreign kinds, the installed chart."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.chart.api import Api, Refused, wait_until
from tests.chart.charting import CHART, ENABLED, NAMESPACE, RELEASE, ROOT, flags, helm
from tests.realserver.controlplane import ControlPlane

FOREIGN = ROOT / "tests/realserver/foreign_crds"


@pytest.fixture(scope="session")
def server(control_plane: ControlPlane) -> Api:
    """The API server as cluster administrator, with our CRDs and the foreign kinds."""
    api = Api(control_plane.kubeconfig("admin"))
    files = [*FOREIGN.glob("*.yaml"), *(CHART / "files/crds").glob("*.yaml")]
    wanted = [crd for path in sorted(files) for crd in yaml.safe_load_all(path.read_text()) if crd]
    for crd in wanted:
        if not api.exists("CustomResourceDefinition", crd["metadata"]["name"]):
            api.create(crd)
    for crd in wanted:
        wait_until(lambda crd=crd: _served(api, crd), "the CRD is served")
    return api


@pytest.fixture(scope="module")
def tenant(server: Api) -> Iterator[str]:
    """A tenant namespace of the module."""
    name = f"tenant-{uuid.uuid4().hex[:8]}"
    make_namespace(server, name)
    yield name
    server.delete("Namespace", name)


@pytest.fixture(scope="module")
def installed(server: Api) -> Iterator[Api]:
    """The chart on the API server, its pods never run: what holds here holds while every replica is down."""
    with release_on(server):
        yield server


@contextmanager
def release_on(server: Api, **values: Any) -> Iterator[None]:
    """The chart installed inside; whatever happens there, the release is gone afterwards."""
    make_namespace(server, NAMESPACE)
    try:
        install(server, **values)
        yield
    finally:
        if helm_on(server, "status", RELEASE, check=False) == 0:
            helm_on(server, "uninstall", RELEASE, "--no-hooks")
        if server.exists("ConfigMap", "gpu-settings", NAMESPACE):
            server.delete("ConfigMap", "gpu-settings", NAMESPACE)


def install(server: Api, **values: Any) -> None:
    """Install the chart over CRDs that other suites applied, its Service led to this machine."""
    given = flags(ENABLED | values)
    helm_on(server, "install", RELEASE, str(CHART), "--take-ownership", *given)
    # No request of a test leaves the loopback: nothing would carry it to a cluster address.
    local = {"type": "ExternalName", "externalName": "localhost", "clusterIP": None, "clusterIPs": None}
    server.patch("Service", RELEASE, {"spec": local}, NAMESPACE)


def helm_on(server: Api, *arguments: str, check: bool = True) -> int:
    """Helm against the API server, in the release's namespace; its exit code."""
    where = ("--kubeconfig", str(server.kubeconfig), "--namespace", NAMESPACE)
    return helm(*arguments, *where, check=check).returncode


def make_namespace(server: Api, name: str, **labels: str) -> None:
    """A namespace whose default service account exists, so that pods can be created in it. One that is still
    being deleted is waited for."""
    wait_until(lambda: _namespace_made(server, name, labels), f"namespace {name}", 60)
    wait_until(lambda: server.exists("ServiceAccount", "default", name), "the default service account")


def _namespace_made(server: Api, name: str, labels: dict[str, str]) -> bool:
    try:
        server.create({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    except Refused as refused:
        if refused.code != 409:
            raise
        return "deletionTimestamp" not in server.get("Namespace", name)["metadata"]
    return True


def _served(api: Api, crd: dict[str, Any]) -> bool:
    return api.list(crd["spec"]["names"]["kind"]) is not None
