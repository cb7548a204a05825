"""Fixtures of the real-server suites: the played ecosystem and a name of the test's own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.realserver.controlplane import ControlPlane
from tests.realserver.ecosystem import RealEcosystem


@pytest_asyncio.fixture
async def ecosystem(control_plane: ControlPlane) -> AsyncIterator[RealEcosystem]:
    made = RealEcosystem(control_plane)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
def name() -> str:
    """Part of every name of a test."""
    return uuid.uuid4().hex[:6]
