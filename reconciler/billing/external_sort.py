"""Sorting more usage records than fit in memory.

Sorted runs are written to temporary files and merged on reading; a small export needs no disk. Memory holds one run
plus one record per run, whatever the size of the journals (U3).
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Any, Generic, TypeVar

import msgspec

RUN_RECORDS = 50_000
"""About 50 MB of records; a month of a large cluster is one run."""
_LENGTH_BYTES = 4

Item = TypeVar("Item", bound=msgspec.Struct)


class ExternalSort(Generic[Item]):
    """Add in any order, iterate in the order of `key`. A context manager: leaving it removes what is on disk."""

    def __init__(self, item: type[Item], key: Callable[[Item], Any], *, run_records: int = RUN_RECORDS) -> None:
        self._decoder = msgspec.msgpack.Decoder(item)
        self._key = key
        self._run_records = run_records
        self._latest: list[Item] = []
        self._files: list[IO[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> ExternalSort[Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(self, item: Item) -> None:
        self._latest.append(item)
        if len(self._latest) >= self._run_records:
            self._write()

    def __iter__(self) -> Iterator[Item]:
        self._latest.sort(key=self._key)
        return heapq.merge(*(self._read(file) for file in self._files), self._latest, key=self._key)

    def _write(self) -> None:
        self._latest.sort(key=self._key)
        file: IO[bytes] = tempfile.TemporaryFile(prefix="gpu-binder-usage-")  # noqa: SIM115 (the stack closes it)
        self._stack.enter_context(file)
        encode = msgspec.msgpack.Encoder().encode
        for item in self._latest:
            body = encode(item)
            file.write(len(body).to_bytes(_LENGTH_BYTES, "big"))
            file.write(body)
        self._files.append(file)
        self._latest = []

    def _read(self, file: IO[bytes]) -> Iterator[Item]:
        file.seek(0)
        while length := file.read(_LENGTH_BYTES):
            yield self._decoder.decode(file.read(int.from_bytes(length, "big")))
