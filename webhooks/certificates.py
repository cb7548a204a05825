"""Serving certificate, reloaded without a restart when its files change (W5).

Owns one outer TLS context whose handshakes use the newest pair that loaded. A pair is loaded into a fresh context and
then swapped in, so a partially written secret (mismatched, empty or truncated) leaves the old pair serving. Open
connections keep the context they started with. Neighbour: `server`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from cryptography import x509


class Certificates:
    """`certificate` (PEM chain) and `key` (PEM, unencrypted) on disk, usually symlinks of a mounted secret.

    `client_ca`: PEM of the authorities of client certificates, which callers may present (`callers` decides who has
    to); a certificate of another authority fails the handshake. `on_error` is called with a message each time the
    files cannot be loaded; the next poll tries again.
    """

    def __init__(
        self, certificate: Path, key: Path, *, on_error: Callable[[str], None], client_ca: Path | None = None
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._on_error = on_error
        self._seen: tuple[bytes, ...] | None = None
        self._current: ssl.SSLContext | None = None
        self._expires_at: int | None = None
        self.context = self._fresh_context()
        self.context.sni_callback = self._choose

    @property
    def loaded(self) -> bool:
        """Whether a pair is loaded; until then every handshake fails (W6)."""
        return self._current is not None

    @property
    def expires_at(self) -> int | None:
        """Expiry of the serving certificate, ms since the epoch; None before the first load (N4)."""
        return self._expires_at

    def reload(self) -> bool:
        """Load the files if they changed and form a valid pair. Returns whether a new pair is serving."""
        try:
            # Compute the fingerprint before loading: a change in between is picked up by the next poll.
            found = tuple(path.read_bytes() for path in (self._certificate, self._key, self._client_ca) if path)
            if found == self._seen:
                return False
            fresh = self._fresh_context()
            fresh.load_cert_chain(self._certificate, self._key, password=_refuse_password)
            if self._client_ca is not None:
                fresh.load_verify_locations(self._client_ca)
            expires_at = _expiry(found[0])
        except (OSError, ValueError) as error:
            authority = "" if self._client_ca is None else f", client CA {self._client_ca}"
            self._on_error(
                f"certificate {self._certificate}, key {self._key}{authority} cannot be used: {error}; "
                + ("the pair before them stays in use" if self.loaded else "nothing can be served")
            )
            return False
        self._current, self._expires_at, self._seen = fresh, expires_at, found
        return True

    def _fresh_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_NONE if self._client_ca is None else ssl.CERT_OPTIONAL
        return context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def _refuse_password() -> bytes:
    raise ValueError("the key is encrypted; a serving key must not be")


def _expiry(chain: bytes) -> int:
    leaf = x509.load_pem_x509_certificates(chain)[0]
    return int(leaf.not_valid_after_utc.timestamp() * 1000)
