"""The control plane as a fixture of the whole session, for every suite that wants a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.realserver import binaries
from tests.realserver.controlplane import ControlPlane, running


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail where they are required, without the binaries. In a hook and not in the fixture: pytest
    reports a fixture's skip once for every test, and those of one place as one line."""
    if "control_plane" not in getattr(item, "fixturenames", ()):
        return
    lacking = binaries.missing(*binaries.SERVER)
    if lacking and binaries.required():
        pytest.fail(f"{binaries.REASON}; lacking: {', '.join(lacking)}", pytrace=False)
    if lacking:
        pytest.skip(binaries.REASON)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver, scheduler and controllers, once for all suites; tests keep apart by namespace."""
    with running(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane
