"""Requests to the webhook server without a socket: bytes are fed to its HTTP protocol and its answer is collected."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from aiohttp import web

from webhooks.server import Server


class Response(NamedTuple):
    status: int
    body: bytes


class Pipe(asyncio.Transport):
    """A connection that keeps what the server sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False
        self._changed = asyncio.Event()

    def write(self, data: Any) -> None:
        self.sent += data
        self._changed.set()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        self._changed.set()

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    async def end(self) -> Response | None:
        """The answer once it is complete, None if the connection is closed before."""
        while (found := self.response) is None and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        return found

    @property
    def response(self) -> Response | None:
        """The answer, None until it is complete."""
        head, end, body = bytes(self.sent).partition(b"\r\n\r\n")
        if not end:
            return None
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(body) < int(headers.get("content-length", "0")):
            return None
        return Response(int(status.split()[1]), body)


class Client:
    """Sends requests to a server, each on a connection of its own."""

    def __init__(self, server: Server) -> None:
        self._runner = web.AppRunner(server.application(), handler_cancellation=True, access_log=None)

    async def open(self) -> None:
        await self._runner.setup()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def send(self, request: bytes) -> Response | None:
        """The answer; None if the server closed the connection without one, as it may if the request is not HTTP."""
        assert self._runner.server is not None
        protocol, pipe = self._runner.server(), Pipe()
        protocol.connection_made(pipe)
        protocol.data_received(request)
        try:
            return await pipe.end()
        finally:
            protocol.connection_lost(None)


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """One HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: gpu-binder", *(f"{key}: {value}" for key, value in headers.items())]
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body
