"""The journal used by the command tests."""

from __future__ import annotations

import asyncio
from io import StringIO
from pathlib import Path

import pytest
import structlog
from rich.console import Console

from reconciler.demo.story import demo


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's journal. The demo silences logs for its process; other tests read them."""
    path = tmp_path_factory.mktemp("demo") / "journal.db"
    before = structlog.get_config()
    asyncio.run(demo(path, Console(file=StringIO())))
    structlog.configure(**before)
    return path
