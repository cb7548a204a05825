"""The cluster port: the API server operations that the loop, the informers and the webhooks use.

Owns the verbs, the errors and the result types (raw JSON bytes, so that one decoder serves both adapters). `kube`
implements it on an API server, `memory` on an in-process cluster with the same semantics.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from reconciler.core.model.objects import Kind


class ClusterError(Exception):
    """Base of all unsuccessful responses; `message` is the API server's."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Conflict(ClusterError):
    """409: the resourceVersion or uid precondition did not hold."""


class AlreadyExists(ClusterError):
    """409 on create: the name is taken."""


class NotFound(ClusterError):
    """404: the object is not there."""


class KindMissing(ClusterError):
    """404 on a resource type: the kind is not installed (N8)."""


class Expired(ClusterError):
    """410, as a status or as an ERROR event in a stream: list again (N7)."""


class Rejected(ClusterError):
    """Any other 4xx: invalid, forbidden, denied by admission. Not worth retrying."""


class Unauthorized(ClusterError):
    """401 even with a freshly read token."""


class Unavailable(ClusterError):
    """5xx, 429, a timeout or a broken connection: the outcome is unknown; repeating the same write with the same
    precondition is safe. `retry_after_seconds`: the server's Retry-After, 0 if absent."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Preconditions(msgspec.Struct, frozen=True):
    uid: str = ""
    resource_version: str = ""


class Cluster(Protocol):
    """The verbs. Bodies in are plain dicts; objects out are the API server's JSON bytes."""

    async def list(self, kind: Kind, *, namespace: str = "", name: str = "", label_selector: str = "") -> bytes:
        """The whole list as one JSON document, a consistent read (resourceVersion unset). `namespace`, `name`
        (fieldSelector metadata.name) and `label_selector` (as kubectl's -l) narrow it."""
        ...

    def watch(
        self,
        kind: Kind,
        resource_version: str,
        *,
        namespace: str = "",
        name: str = "",
        label_selector: str = "",
        timeout_seconds: float,
    ) -> AsyncIterator[bytes]:
        """Watch lines (`{"type": …, "object": …}`) with bookmarks, until the server ends the stream. The client's own
        deadline is longer than `timeout_seconds` (N7). Raises `Expired`, `KindMissing`, `Unavailable`,
        `Unauthorized`."""
        ...

    async def get(self, kind: Kind, namespace: str, name: str) -> bytes: ...

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any], *, dry_run: bool = False) -> bytes: ...

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: dict[str, Any], *, subresource: str = ""
    ) -> bytes:
        """A JSON merge patch. With `metadata.resourceVersion` in the body the write is conditional and
        raises `Conflict` when the object has moved on."""
        ...

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, preconditions: Preconditions | None = None
    ) -> None: ...
