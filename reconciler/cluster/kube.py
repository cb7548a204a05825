"""The cluster port on a real API server.

Owns HTTP: paths, headers, deadlines, and the mapping of status codes to the port's errors. Configuration, credentials
and TLS come from the official client (`kubernetes.aio`); requests use a bare aiohttp session, bytes in and bytes out,
because the generated API classes would decode every object a second time. Never retries, except once after a 401 with
a reread token: retrying is the caller's decision.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from yarl import URL

from reconciler.cluster.credentials import ClusterConfigError, Credentials, discover, proxy_from_environment
from reconciler.cluster.port import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Expired,
    KindMissing,
    NotFound,
    Preconditions,
    Rejected,
    Unauthorized,
    Unavailable,
)
from reconciler.core.model.objects import Kind

FIELD_MANAGER = "gpu-binder"

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 30.0
"""Whole request but a list or a watch. Above the 10 s the API server gives a webhook call by default."""
LIST_SECONDS = 120.0
"""A list of 100,000 pods takes the server tens of seconds."""
WATCH_SLACK_SECONDS = 15.0
"""How much longer than the server's own timeout a watch may be silent; below it, healthy watches would be cut
whenever the server is slow to end them (N7)."""
MAX_RETRY_AFTER_SECONDS = 30.0
"""An overloaded server is obeyed, a nonsensical one does not stop the controller for an hour."""
MAX_MESSAGE_CHARACTERS = 2_000

_MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct):
    """The API server's `Status`, reduced to what an error needs."""

    message: str | None = None
    reason: str | None = None
    details: _Details | None = None


class KubeCluster:
    """`reconciler.cluster.port.Cluster` on an API server. Close it when done."""

    def __init__(
        self,
        configuration: Configuration,
        credentials: Credentials,
        *,
        watch_slack_seconds: float = WATCH_SLACK_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        """Needs a running event loop. Raises `ClusterConfigError` when certificates cannot be loaded."""
        try:
            transport = RESTClientObject(configuration)
        except (OSError, ValueError) as error:
            raise ClusterConfigError(f"certificates for {configuration.host}: {error}") from error
        self._base = configuration.host.rstrip("/")
        self._credentials = credentials
        self._watch_slack_seconds = watch_slack_seconds
        self._request = aiohttp.ClientTimeout(total=request_seconds, sock_connect=CONNECT_SECONDS)
        self._listing = aiohttp.ClientTimeout(total=max(LIST_SECONDS, request_seconds), sock_connect=CONNECT_SECONDS)
        self._options: dict[str, Any] = {"allow_redirects": False}
        if configuration.tls_server_name:
            self._options["server_hostname"] = configuration.tls_server_name
        if proxy := configuration.proxy or proxy_from_environment(self._base):
            self._options["proxy"] = proxy
            self._options["proxy_headers"] = configuration.proxy_headers
        self._session = aiohttp.ClientSession(
            # Unbounded: the callers bound what is under way, and no crowd of them may starve the lease.
            connector=aiohttp.TCPConnector(ssl=transport.ssl_context, limit=0),
            # Inside a cluster compression costs the API server more time than it saves on the wire.
            headers={"User-Agent": FIELD_MANAGER, "Accept": _JSON, "Accept-Encoding": "identity"},
            read_bufsize=2**20,
        )

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> KubeCluster:
        """Connect as kubectl does: `kubeconfig`, else $KUBECONFIG, else the pod's service account, else
        ~/.kube/config. Sends no request. Raises `ClusterConfigError`."""

        configuration, credentials = await discover(kubeconfig, context)
        return cls(configuration, credentials)

    async def close(self) -> None:
        await self._session.close()

    async def list(self, kind: Kind, *, namespace: str = "", name: str = "", label_selector: str = "") -> bytes:
        """See the port. One document without chunks, so that no continue token can expire."""
        query = _selectors(name, label_selector)
        return await self._call("GET", kind, _path(kind, namespace), query, timeout=self._listing, collection=True)

    async def watch(
        self,
        kind: Kind,
        resource_version: str,
        *,
        namespace: str = "",
        name: str = "",
        label_selector: str = "",
        timeout_seconds: float,
    ) -> AsyncGenerator[bytes, None]:
        """See the port. Yields lines of any length, including ERROR lines; raises `Unavailable` if the stream is
        silent for longer than the server's own timeout plus slack, or breaks within a line (N7)."""
        query = _selectors(name, label_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, math.ceil(timeout_seconds))),
        }
        silence = timeout_seconds + self._watch_slack_seconds
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        try:
            answer = await self._send("GET", _path(kind, namespace), query, timeout=timeout)
            async with answer:
                if answer.status != HTTPStatus.OK:
                    raise _error(answer, await answer.read(), kind, collection=True)
                async for line in _lines(answer.content):
                    yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"watch of {kind.plural}: {_say(error)}") from error

    async def get(self, kind: Kind, namespace: str, name: str) -> bytes:
        return await self._call("GET", kind, _path(kind, namespace, name))

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any], *, dry_run: bool = False) -> bytes:
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return await self._call("POST", kind, _path(kind, namespace), query, body=body)

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: dict[str, Any], *, subresource: str = ""
    ) -> bytes:
        return await self._call(
            "PATCH",
            kind,
            _path(kind, namespace, name, subresource),
            {"fieldManager": FIELD_MANAGER},
            body=body,
            content_type=_MERGE_PATCH,
        )

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, preconditions: Preconditions | None = None
    ) -> None:
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions is not None:
            named = {"uid": preconditions.uid, "resourceVersion": preconditions.resource_version}
            body["preconditions"] = {key: value for key, value in named.items() if value}
        await self._call("DELETE", kind, _path(kind, namespace, name), body=body)

    async def _call(
        self,
        method: str,
        kind: Kind,
        path: str,
        query: dict[str, str] | None = None,
        *,
        body: dict[str, Any] | None = None,
        content_type: str = _JSON,
        timeout: aiohttp.ClientTimeout | None = None,
        collection: bool = False,
    ) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        try:
            answer = await self._send(method, path, query or {}, data=data, content_type=content_type, timeout=timeout)
            async with answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"{method} {path}: {_say(error)}") from error
        if answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return content
        raise _error(answer, content, kind, collection=collection)

    async def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        *,
        data: bytes | None = None,
        content_type: str = _JSON,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        """The response with its body unread; after a 401 the token is reread and the request sent once more (C44)."""
        url = URL(f"{self._base}{path}?{urlencode(query)}" if query else f"{self._base}{path}", encoded=True)
        for again in (True, False):
            headers = {"Content-Type": content_type} if data is not None else {}
            token = await self._credentials.header()
            if token:
                headers["Authorization"] = token
            answer = await self._session.request(
                method, url, data=data, headers=headers, timeout=timeout or self._request, **self._options
            )
            if answer.status != HTTPStatus.UNAUTHORIZED or not again:
                break
            answer.release()
            await self._credentials.renew(token)
        return answer


def _path(kind: Kind, namespace: str = "", name: str = "", subresource: str = "") -> str:
    parts = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
    if kind.namespaced and namespace:
        parts += ["namespaces", namespace]
    parts += [kind.plural, name, subresource]
    return "/" + "/".join(quote(part, safe="") for part in parts if part)


def _selectors(name: str, label_selector: str) -> dict[str, str]:
    query = {"fieldSelector": f"metadata.name={name}"} if name else {}
    return query | ({"labelSelector": label_selector} if label_selector else {})


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Whole lines of a stream, however long (aiohttp's own `readline` has a limit). Raises
    `ClientPayloadError` when the stream ends within a line."""
    begun: list[bytes] = []
    async for chunk in content.iter_any():
        first, *rest = chunk.split(b"\n")
        begun.append(first)
        if not rest:
            continue
        for line in (b"".join(begun), *rest[:-1]):
            if line:
                yield line
        begun = [rest[-1]]
    if any(begun):
        raise aiohttp.ClientPayloadError("the stream ended within a line")


def _say(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in time ({error})" if str(error) else "no answer in time"
    return str(error) or type(error).__name__


def _error(answer: aiohttp.ClientResponse, content: bytes, kind: Kind, *, collection: bool) -> ClusterError:
    """The port's error for an unsuccessful response.

    A 404 without a `Status` comes from the server's router, and a 404 on a whole collection can only mean the kind:
    in both cases the kind is not installed (N8).
    """
    try:
        status = msgspec.json.decode(content, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = None
    text = content[:MAX_MESSAGE_CHARACTERS].decode(errors="replace").strip()
    message = (status.message if status and status.message else text) or f"HTTP {answer.status}"
    code = answer.status
    if code == HTTPStatus.UNAUTHORIZED:
        return Unauthorized(message)
    if code == HTTPStatus.NOT_FOUND:
        if collection or status is None or "could not find the requested resource" in message:
            return KindMissing(f"{kind.plural}.{kind.group or 'core'}/{kind.version}: {message}")
        return NotFound(message)
    if code == HTTPStatus.CONFLICT:
        return (AlreadyExists if status and status.reason == "AlreadyExists" else Conflict)(message)
    if code == HTTPStatus.GONE:
        return Expired(message)
    if code == HTTPStatus.TOO_MANY_REQUESTS or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(message, _retry_after(answer, status))
    return Rejected(message)


def _retry_after(answer: aiohttp.ClientResponse, status: _Status | None) -> float:
    """Seconds from the header or the Status, bounded; 0 if neither is present."""
    told = answer.headers.get("Retry-After", "")
    seconds = float(told) if told.isascii() and told.isdigit() else None
    if seconds is None and status is not None and status.details is not None:
        seconds = status.details.retry_after_seconds
    return min(max(seconds or 0.0, 0.0), MAX_RETRY_AFTER_SECONDS)
