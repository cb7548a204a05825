"""Authentication of whoever calls the webhooks: the API server's client certificate or bearer token (W7).

Owns the mode, the accepted names and tokens, and what is done about strangers. TLS verifies the certificate
(`certificates`); an API server presents one only if its admission configuration says so.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from reconciler.core.model.vocabulary import AuthMode

LOGGED_STRANGERS = 100
"""Addresses of strangers that are logged; further ones only count."""
_BEARER = "Bearer "


class Callers:
    """Tells API servers from strangers. `names`: accepted common names, empty for any certificate that the client CA
    signed. `token_file`: accepted bearer tokens, one per line, reread when the file changes. `on_stranger` is called
    for each stranger, `on_error` with a message each time the token file cannot be read."""

    def __init__(
        self,
        mode: AuthMode = AuthMode.IGNORE,
        *,
        client_ca: Path | None = None,
        names: Iterable[str] = (),
        token_file: Path | None = None,
        on_stranger: Callable[[], None] = lambda: None,
        on_error: Callable[[str], None] = lambda message: None,
        log: Any = None,
    ) -> None:
        self.mode = mode
        self._client_ca = client_ca
        self._names = frozenset(names)
        self._token_file = token_file
        self._tokens: list[bytes] = []
        self._on_stranger = on_stranger
        self._on_error = on_error
        self._log = log or structlog.get_logger("webhooks")
        self._strangers: set[str] = set()

    def reload(self) -> None:
        """Read the token file. One that cannot be read leaves the last tokens in use."""
        if self._token_file is None:
            return
        try:
            lines = self._token_file.read_bytes().split()
        except OSError as error:
            self._on_error(f"token file {self._token_file} cannot be read: {error}; the last tokens stay in use")
            return
        if not lines:
            self._on_error(f"token file {self._token_file} holds no token; the last tokens stay in use")
            return
        self._tokens = lines

    def admits(self, request: web.Request) -> bool:
        """Whether the request is served. Counts and logs a stranger, whether served or not."""
        if self.mode is AuthMode.IGNORE or self._has_token(request) or self._has_certificate(request):
            return True
        self._on_stranger()
        address = request.remote or "unknown"
        if address not in self._strangers and len(self._strangers) < LOGGED_STRANGERS:
            self._strangers.add(address)
            self._log.warning("caller is not authenticated", address=address)
        return self.mode is AuthMode.REPORT

    def _has_token(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "")
        if not given.startswith(_BEARER):
            return False
        token = given.removeprefix(_BEARER).strip().encode("utf-8", "surrogateescape")
        # Every token is compared, so that the time tells nothing of which one is close.
        return any([hmac.compare_digest(token, known) for known in self._tokens])  # noqa: C419

    def _has_certificate(self, request: web.Request) -> bool:
        connection = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        if self._client_ca is None or not isinstance(connection, ssl.SSLObject):
            return False
        subject: Any = (connection.getpeercert() or {}).get("subject", ())
        names = {value for part in subject for key, value in part if key == "commonName"}
        return bool(names) and (not self._names or bool(names & self._names))
