"""A fake API server on loopback: lists, watches, Status responses, tokens.

Tests script its next responses, stall it or expire its history. It validates nothing.
"""

from __future__ import annotations

import asyncio
import copy
import ssl
from collections import deque
from typing import Any

import msgspec
from aiohttp import web

from reconciler.core.model.objects import Kind


def collection(kind: Kind) -> str:
    """The path of all objects of a kind."""
    return f"/apis/{kind.group}/{kind.version}/{kind.plural}" if kind.group else f"/api/{kind.version}/{kind.plural}"


def status(code: int, reason: str, message: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        **more,
    }


class FakeApi:
    """Objects by collection, one version counter, a history of watch lines."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        self.history: dict[str, list[tuple[int, bytes]]] = {}
        self.forgotten = 0
        self.mute: set[str] = set()
        self.tokens: set[str] | None = None
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.queries: list[dict[str, str]] = []
        self.next: deque[web.Response] = deque()
        self.cut_watches = 0
        self._news = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, ssl_context: ssl.SSLContext | None = None) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=ssl_context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def install(self, *kinds: Kind) -> None:
        for kind in kinds:
            self.objects.setdefault(collection(kind), {})
            self.history.setdefault(collection(kind), [])

    def uninstall(self, kind: Kind) -> None:
        del self.objects[collection(kind)]

    async def put(
        self, kind: Kind, name: str, namespace: str = "", *, uid: str = "", told: bool = True, **body: Any
    ) -> dict[str, Any]:
        """Create or replace an object; `told` False: without any watch event."""
        known = self.objects[collection(kind)].get((namespace, name))
        self.version += 1
        metadata = {
            "labels": {},
            **body.pop("metadata", {}),
            "name": name,
            "uid": uid or (known["metadata"]["uid"] if known else f"uid-{self.version}"),
            "resourceVersion": str(self.version),
        }
        if namespace:
            metadata["namespace"] = namespace
        item = {"metadata": metadata, **body}
        self.objects[collection(kind)][(namespace, name)] = item
        if told:
            await self._record(kind, {"type": "MODIFIED" if known else "ADDED", "object": item})
        return item

    async def remove(self, kind: Kind, name: str, namespace: str = "", *, told: bool = True) -> None:
        item = copy.deepcopy(self.objects[collection(kind)].pop((namespace, name)))
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        if told:
            await self._record(kind, {"type": "DELETED", "object": item})

    async def say(self, kind: Kind, line: Any) -> None:
        """Append any line to the history, with its own version."""
        self.version += 1
        await self._record(kind, line)

    async def _record(self, kind: Kind, line: Any) -> None:
        self.history[collection(kind)].append((self.version, msgspec.json.encode(line) + b"\n"))
        await self.wake()

    async def wake(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def asked(self, count: int) -> None:
        """Wait until this many requests have arrived."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.requests) >= count)

    async def cut(self) -> None:
        """End every open watch in an orderly way."""
        self.cut_watches += 1
        await self.wake()

    def forget(self) -> None:
        """Versions up to now are no longer served: 410."""
        self.forgotten = self.version

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.queries.append(dict(request.query))
        self.bodies.append(await request.read())
        await self.wake()
        if self.tokens is not None:
            token = request.headers.get("Authorization", "").split(" ", 1)[-1]
            if token not in self.tokens:
                return _answer(401, status(401, "Unauthorized", "Unauthorized"))
        if self.next:
            return self.next.popleft()
        found = self._address(request.path)
        if found is None:
            return web.Response(status=404, text="404 page not found\n")
        path, namespace, name = found
        if request.method == "GET" and not name:
            return await (self._watch(request, path) if "watch" in request.query else self._list(path, request))
        item = self.objects[path].get((namespace, name))
        if item is None:
            return _answer(404, status(404, "NotFound", f'"{name}" not found'))
        return _answer(200, item)

    def _address(self, path: str) -> tuple[str, str, str] | None:
        """(collection, namespace, name) of a path, None where no such kind is installed."""
        parts = path.strip("/").split("/")
        head, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        found = "/" + "/".join([*head, rest[0]])
        return (found, namespace, rest[1] if len(rest) > 1 else "") if found in self.objects else None

    async def _list(self, path: str, request: web.Request) -> web.Response:
        items = [self.objects[path][address] for address in sorted(self.objects[path])]
        return _answer(200, {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        if at < self.forgotten:
            return _answer(410, status(410, "Expired", f"too old resource version: {at}"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        cuts, sent = self.cut_watches, 0
        while True:
            lines = [(version, line) for version, line in self.history[path] if version > at]
            if path not in self.mute:
                for _, line in lines[sent:]:
                    await response.write(line)
                sent = len(lines)
            if self.cut_watches > cuts or path not in self.objects:
                return response
            async with self._news:
                await self._news.wait()


def _answer(code: int, body: dict[str, Any]) -> web.Response:
    return web.Response(status=code, body=msgspec.json.encode(body), content_type="application/json")


def refusal(
    code: int, reason: str = "", message: str = "", headers: dict[str, str] | None = None, **more: Any
) -> web.Response:
    """An answer to put into `FakeApi.next`; without a reason it is plain text, as from the server's router."""
    if not reason:
        return web.Response(status=code, text=message, headers=headers)
    return web.Response(
        status=code,
        body=msgspec.json.encode(status(code, reason, message, **more)),
        content_type="application/json",
        headers=headers,
    )
