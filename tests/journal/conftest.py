from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.sqlite import SqliteJournal
from journal.store import Journal, MemoryJournal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, path: Path) -> Iterator[Journal]:
    """Both journal implementations in turn."""
    opened: Journal = MemoryJournal() if request.param == "memory" else SqliteJournal(path)
    yield opened
    opened.close()
