"""Shared by the tests of the in-memory cluster: a start time and helpers for JSON responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from reconciler.cluster.memory import MemoryCluster
from reconciler.demo.virtual_time import VirtualTime

START_MS = 1_700_000_000_000


def cluster() -> MemoryCluster:
    return MemoryCluster(VirtualTime(START_MS).clock)


def read(raw: bytes) -> dict[str, Any]:
    return msgspec.json.decode(raw)


def named(name: str, **rest: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **rest}


def device(name: str, class_name: str = "a100", **spec: Any) -> dict[str, Any]:
    return named(name, spec={"className": class_name, **spec})


def version(document: dict[str, Any]) -> str:
    return document["metadata"]["resourceVersion"]


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)


class Collected:
    """Reads a watch in a task and keeps its lines."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self.lines: list[dict[str, Any]] = []
        self.task = asyncio.ensure_future(self._read(lines))

    async def _read(self, lines: AsyncIterator[bytes]) -> None:
        async for line in lines:
            self.lines.append(read(line))

    @property
    def seen(self) -> list[tuple[str, str]]:
        """(type, name) of every line, bookmarks as (BOOKMARK, version)."""
        return [
            (
                line["type"],
                line["object"]["metadata"].get("name") or line["object"]["metadata"].get("resourceVersion"),
            )
            for line in self.lines
        ]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
