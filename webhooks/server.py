"""HTTPS server of the webhooks: routes, deadlines, size limits, readiness, drain.

Owns everything between the socket and a webhook: every review gets an answer, a denial or a 4xx, never a crash or a
hang (W5). Knows nothing of GPUs. Neighbours: `certificates` (TLS), `review` (JSON).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

import structlog
from aiohttp import web

from reconciler.core.model.vocabulary import Reason
from webhooks.callers import Callers
from webhooks.certificates import Certificates
from webhooks.review import (
    MAX_REVIEW_BYTES,
    Answer,
    Denied,
    MalformedReview,
    Request,
    read_review,
    render_allowed,
    render_denied,
)

DEFAULT_TIMEOUT_SECONDS = 10.0
"""Kubernetes' default webhook timeout, used if the call carries none."""
MARGIN_SECONDS = 0.5
"""Answer this long before the API server's timeout: a late answer surfaces as an error without a reason."""

DRAIN_SECONDS = 30.0
"""Maximum timeout of a webhook configuration; upper bound of any review."""

ALLOWED_OUTCOME = "Allowed"
FAILED_OUTCOME = "Failed"


Page = Callable[[web.Request], Awaitable[web.Response]]
"""Pages served beside the webhooks, GET only."""


class Webhook(Protocol):
    """One admission webhook. Raises `Denied`; any other exception is an internal error."""

    async def __call__(self, request: Request, seconds: float) -> Answer:
        """`seconds`: time limit of the answer."""
        ...


class Server:
    """Serves the webhooks of `routes` (path to webhook) over TLS.

    `ready`: the caches are synced (W6). `pages`: further GET paths, which authenticate their own callers. `callers`:
    who may send reviews (W7), by default anybody. `on_answer(path, outcome)` is called for each answer with `Allowed`,
    a `Reason`, or `Failed` for an internal error.
    """

    def __init__(
        self,
        routes: Mapping[str, Webhook],
        certificates: Certificates,
        *,
        ready: Callable[[], bool],
        pages: Mapping[str, Page] | None = None,
        on_answer: Callable[[str, str], None] = lambda path, outcome: None,
        callers: Callers | None = None,
        log: Any = None,
    ) -> None:
        self._routes = routes
        self._certificates = certificates
        self._ready = ready
        self._pages = pages or {}
        self._on_answer = on_answer
        self._callers = callers or Callers()
        self._log = log or structlog.get_logger("webhooks")
        self._draining = False
        self._runner: web.AppRunner | None = None
        self._polling: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether a certificate is loaded, the caches are synced and no shutdown is in progress (W6, N1)."""
        return self._certificates.loaded and self._ready() and not self._draining

    def application(self) -> web.Application:
        """The routes as an aiohttp application."""
        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        for path in self._routes:
            app.router.add_post(path, self._review)
        for path, page in self._pages.items():
            app.router.add_get(path, page)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        return app

    async def start(
        self,
        host: str,
        port: int,
        *,
        certificate_poll_seconds: float = 10.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> int:
        """Listen and return the port (useful if 0 was requested). Handshakes fail until a certificate is loaded. Raises
        OSError if the address is in use."""
        self._certificates.reload()
        self._callers.reload()
        self._polling = asyncio.create_task(self._poll(sleep, certificate_poll_seconds), name="certificates")
        # Cancel the handler when the client disconnects: its start is undone immediately, not after the bind deadline.
        self._runner = web.AppRunner(
            self.application(), handler_cancellation=True, access_log=None, shutdown_timeout=DRAIN_SECONDS
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=self._certificates.context)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def drain(
        self, *, linger_seconds: float = 0.0, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Become unready, keep serving for `linger_seconds` while endpoints are updated, then stop accepting and let
        running reviews finish (N1)."""
        self._draining = True
        await sleep(linger_seconds)
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _poll(self, sleep: Callable[[float], Awaitable[None]], seconds: float) -> None:
        """Reload certificates and tokens forever. Polls because a kubelet swaps a directory symlink, which a file watch
        would miss."""
        while True:
            await asyncio.to_thread(self._certificates.reload)
            await asyncio.to_thread(self._callers.reload)
            await sleep(seconds)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self.ready:
            return web.Response(text="ok")
        if self._draining:
            why = "shutting down"
        elif not self._certificates.loaded:
            why = "no certificate is loaded"
        else:
            why = "the caches are not synced"
        return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=why)

    async def _review(self, request: web.Request) -> web.Response:
        if not self._callers.admits(request):
            return web.Response(status=HTTPStatus.UNAUTHORIZED)
        seconds = answer_within(request.query.get("timeout", ""))
        uid, about = "", {}
        try:
            async with asyncio.timeout(seconds):
                review = read_review(await _body(request))
                uid, about = review.uid, {"namespace": review.namespace, "name": review.name}
                with structlog.contextvars.bound_contextvars(review=uid, webhook=request.path, **about):
                    return await self._answer(request.path, review, seconds)
        except MalformedReview as error:
            if not error.uid:
                self._on_answer(request.path, Reason.MALFORMED_REVIEW)
                return web.Response(status=HTTPStatus.BAD_REQUEST, text=error.message)
            denied = Denied(Reason.MALFORMED_REVIEW, error.message, HTTPStatus.BAD_REQUEST)
            return self._denied(request.path, error.uid, denied, about)
        except TimeoutError:
            if not uid:
                return web.Response(status=HTTPStatus.REQUEST_TIMEOUT, text="the review did not arrive in time")
            denied = Denied(
                Reason.BIND_TIMEOUT,
                f"no answer within {seconds:g} s; what was begun is undone, try again",
                HTTPStatus.GATEWAY_TIMEOUT,
            )
            return self._denied(request.path, uid, denied, about)

    async def _answer(self, path: str, review: Request, seconds: float) -> web.Response:
        try:
            if not self._ready():
                raise Denied(
                    Reason.NOT_READY,
                    "this replica has not read the cluster yet; try again in a moment",
                    HTTPStatus.SERVICE_UNAVAILABLE,
                )
            answer = await self._routes[path](review, seconds)
        except Denied as denied:
            return self._denied(path, review.uid, denied, {"namespace": review.namespace, "name": review.name})
        except TimeoutError:
            raise
        except Exception:
            self._log.exception("webhook failed", user=review.user, namespace=review.namespace, name=review.name)
            self._on_answer(path, FAILED_OUTCOME)
            failed = Denied(
                Reason.NOT_READY,
                "gpu-binder failed on this request, nothing was allowed; its log has the details under "
                f"review {review.uid}",
                HTTPStatus.INTERNAL_SERVER_ERROR,
            )
            return _json(render_denied(review.uid, failed))
        self._on_answer(path, ALLOWED_OUTCOME)
        return _json(render_allowed(review.uid, answer))

    def _denied(self, path: str, uid: str, denied: Denied, about: Mapping[str, str]) -> web.Response:
        """`about`: namespace and name of the denied object, as far as known."""
        self._on_answer(path, denied.reason)
        said = {**about, "reason": str(denied.reason), "message": denied.detail}
        self._log.info("denied", webhook=path, review=uid, **said)
        return _json(render_denied(uid, denied))


def answer_within(timeout: str) -> float:
    """Time limit in seconds: the call's `timeout` parameter (a Go duration such as `10s`, `1m0s`, `500ms`) less a
    margin."""
    seconds = _go_duration(timeout)
    if seconds is None or seconds <= 0:
        seconds = DEFAULT_TIMEOUT_SECONDS
    return seconds - MARGIN_SECONDS if seconds > 2 * MARGIN_SECONDS else seconds / 2


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)(ms|h|m|s)")


def _go_duration(text: str) -> float | None:
    if len(text) > 40 or not re.fullmatch(rf"(?:{_PART.pattern})+", text):
        return None
    return sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(text))


async def _body(request: web.Request) -> bytes:
    if request.content_length is not None and request.content_length > MAX_REVIEW_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_REVIEW_BYTES, request.content_length)
    try:
        return await request.read()
    except web.RequestPayloadError:
        raise MalformedReview("the body is not in the encoding that the request's headers name") from None


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
