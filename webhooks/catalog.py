"""Catalog over HTTPS: what a namespace can order and reference, for callers allowed to read it (C1).

Owns authentication and authorization (TokenReview, then SubjectAccessReview on the namespace's devices) and the
response format: options as Cozystack forms expect them (`value`, `label`, `description`). The content comes from
`core.catalog`.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from aiohttp import web

from reconciler.cluster.port import Cluster, ClusterError
from reconciler.core.admission import catalog
from reconciler.core.admission.catalog import Offer, Referable
from reconciler.core.model.objects import ACCESS_REVIEW, DEVICE, TOKEN_REVIEW
from reconciler.core.model.vocabulary import TenantDetail
from reconciler.core.state.placement_state import PlacementState

PATH = "/catalog/{namespace}"
MAX_TOKEN_CHARACTERS = 16_384
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Option(msgspec.Struct, frozen=True):
    """One form option."""

    value: str
    label: str
    description: str


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


class Catalog:
    """Handler of `PATH`. Responds with the catalog as JSON, or 400, 401, 403 or 503 with a message."""

    def __init__(self, state: PlacementState, cluster: Cluster) -> None:
        self._state = state
        self._cluster = cluster
        self._log = structlog.get_logger("catalog")

    async def handle(self, request: web.Request) -> web.Response:
        """Handle a GET of the catalog."""
        namespace = request.match_info["namespace"]
        if not _NAME.fullmatch(namespace):
            return _error(HTTPStatus.BAD_REQUEST, f"{namespace[:80]!r} is no namespace's name")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
            return _error(HTTPStatus.UNAUTHORIZED, "send a bearer token of the Kubernetes API")
        if not self._state.synced:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "this replica has not read the cluster yet; try again")
        try:
            user = await self._authenticate(token)
            if user is None:
                return _error(HTTPStatus.UNAUTHORIZED, "the token is not valid")
            if not await self._may_read(user, namespace):
                return _error(
                    HTTPStatus.FORBIDDEN, f"{user.username} may not list {DEVICE.plural} in namespace {namespace}"
                )
        except ClusterError as error:
            self._log.warning("catalog unavailable", error=error.message)
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "the API server does not answer; try again")
        body = msgspec.json.encode(answer(self._state, namespace))
        return web.Response(body=body, content_type="application/json")

    async def _authenticate(self, token: str) -> _User | None:
        review = await self._review(TOKEN_REVIEW, {"token": token})
        found = msgspec.json.decode(review, type=_TokenReview).status
        return found.user if found.authenticated else None

    async def _may_read(self, user: _User, namespace: str) -> bool:
        attributes = {"namespace": namespace, "verb": "list", "group": DEVICE.group, "resource": DEVICE.plural}
        spec: dict[str, Any] = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": user.extra,
            "resourceAttributes": attributes,
        }
        return msgspec.json.decode(await self._review(ACCESS_REVIEW, spec), type=_AccessReview).status.allowed

    async def _review(self, kind: Any, spec: dict[str, Any]) -> bytes:
        body = {"apiVersion": kind.api_version, "kind": kind.name, "spec": spec}
        return await self._cluster.create(kind, "", body)


def answer(state: PlacementState, namespace: str) -> dict[str, Any]:
    """`classes` and `devices` as options; `limits` maps a class to the maximum count of one order and what limits
    it."""
    offers = catalog.offers(state, namespace)
    detail = state.settings.tenant_detail
    return {
        "classes": [_class_option(found, detail) for found in offers],
        "devices": [_device_option(found) for found in catalog.referable(state, namespace)],
        "limits": {
            found.class_name: {
                "orderable": found.orderable,
                "reason": found.limit.reason.value,
                "message": found.limit.text_for(detail),
            }
            for found in offers
        },
    }


def _class_option(found: Offer, detail: TenantDetail) -> Option:
    now = f"{found.orderable} can be ordered now" if found.orderable else "none can be ordered now"
    parts = [found.description, f"{now}: {found.limit.reason.value}: {found.limit.text_for(detail)}"]
    return Option(found.class_name, found.display_name, "; ".join(part for part in parts if part))


def _device_option(found: Referable) -> Option:
    whose = f"attached to {found.vmi}" if found.vmi else "free"
    units = "1 unit" if found.units == 1 else f"{found.units} units"
    return Option(found.name, f"{found.name} ({found.display_name}, {units})", f"{found.phase}, {whose}")


def _error(status: HTTPStatus, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
