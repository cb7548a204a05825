"""The port to a cluster: what the loop, the informers and the webhooks may ask of an API server.

Owns the verbs, the errors and the shape of what comes back (raw JSON bytes, so that one decoder reads both
adapters). `kube` speaks to an API server, `memory` is a cluster in this process with the same manners.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from reconciler.core.model.objects import Kind


class ClusterError(Exception):
    """Base of all answers that are not a success; `message` is the API server's."""

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
    """404 on a whole resource: the kind is not installed (N8)."""


class Expired(ClusterError):
    """410, as a status or as an ERROR event inside a stream: list again (N7)."""


class Rejected(ClusterError):
    """Any other 4xx: invalid, forbidden, refused by admission. Sending it again changes nothing."""


class Unauthorized(ClusterError):
    """401 after the token was read again once."""


class Unavailable(ClusterError):
    """5xx, 429, a timeout or a broken connection: the outcome is unknown; sending the same write with the same
    precondition again is safe. `retry_after_seconds`: how long the server asked to be left alone, 0 when it
    did not say."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Preconditions(msgspec.Struct, frozen=True):
    uid: str = ""
    resource_version: str = ""


class Cluster(Protocol):
    """The verbs. Bodies in are plain dicts; objects out are the API server's JSON bytes."""

    async def list(self, kind: Kind, *, namespace: str = "", name: str = "", label_selector: str = "") -> bytes:
        """The whole list as one JSON document, read consistently (resourceVersion unset). `namespace`, `name`
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
        """Watch lines (`{"type": …, "object": …}`) with bookmarks, until the server ends the stream. The
        client's own deadline lies above `timeout_seconds` (N7). Raises `Expired`, `KindMissing`,
        `Unavailable`, `Unauthorized`."""
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
