"""Every scenario prints what its file says. `GPU_BINDER_REWRITE=1` rewrites the files; review the diff."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.scenarios.runner import Scenario

FILES = sorted(Path(__file__).parent.glob("*.txt"))


async def played(text: str) -> str:
    """The file as it reads when its commands are played."""
    scenario = Scenario()
    lines: list[str] = []
    printing = False
    for line in text.splitlines():
        if line.startswith("$ "):
            lines.append(line)
            lines.extend(await scenario.run(line[2:]))
            printing = True
        elif printing and line.strip():
            continue
        else:
            printing = False
            lines.append(line)
    await scenario.close()
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    found = asyncio.run(played(text))
    if os.environ.get("GPU_BINDER_REWRITE"):
        path.write_text(found)
    assert found == text or os.environ.get("GPU_BINDER_REWRITE")
