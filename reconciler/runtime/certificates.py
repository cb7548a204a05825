"""The webhooks' self-signed certificate: one Secret shared by all replicas, the files they serve with, and the
caBundle of the webhook configurations (N6).

Owns the Secret's layout and the coordination of replicas: one advances the keyring under the Secret's resourceVersion,
the others adopt the result. The stages are in `certificate_authority`; `webhooks.certificates` reloads the files and
serves them. Unused with cert-manager.

The configurations are read before the Secret, so that a lagging replica cannot overwrite a newer bundle with an older
one: the newer bundle was written after the Secret, so the patch conflicts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from reconciler.cluster.port import Cluster, ClusterError, NotFound
from reconciler.cluster.retry_policies import CERTIFICATE
from reconciler.core.model.objects import MUTATING_WEBHOOKS, SECRET, VALIDATING_WEBHOOKS, Kind
from reconciler.core.model.wire_base import from_ms, to_ms
from reconciler.runtime.certificate_authority import Keyring, Lifetimes, Pair, RotationStage, advance, is_certificate
from reconciler.runtime.wall_clock import now_ms

POLL_SECONDS = 10.0
"""Poll interval, by which every replica adopts a change; far below the settling time of a rotation."""
FIRST_SECONDS = 1.0
"""Retry interval while there is no certificate to serve."""

TRUSTED_SINCE = "trusted-since"
RETIRE_AT = "retire-at"
_PAIRS = {"authority": "ca", "leaf": "tls", "following": "next"}
"""Pair of the keyring to the stem of its two keys in the Secret. `ca.crt` is the whole bundle, the signing
authority first, as everything that reads such Secrets expects."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    data: dict[str, str] | None = None


class CertificateKeeper:
    """Reconciles one replica's files and the shared Secret and configurations. `run` is one task."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        secret_name: str,
        service_name: str,
        webhook_config_name: str,
        certificate: Path,
        key: Path,
        authority: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lifetimes: Lifetimes | None = None,
        log: Any = None,
    ) -> None:
        """`certificate`, `key`, `authority`: the files to write, PEM."""
        self._cluster = cluster
        self._namespace = namespace
        self._secret_name = secret_name
        self._config_name = webhook_config_name
        self._files = (authority, key, certificate)
        self._sleep = sleep
        self._lifetimes = lifetimes or Lifetimes()
        self._log = log or structlog.get_logger("certificates")
        self.names = service_names(service_name, namespace)

    async def run(self) -> None:
        """Reconcile until cancelled. Errors of the API server are logged and retried."""
        while True:
            try:
                await self.keep()
            except (ClusterError, OSError, msgspec.DecodeError) as error:
                self._log.error(
                    "certificate not kept", namespace=self._namespace, name=self._secret_name, error=str(error)
                )
            served = all(path.exists() for path in self._files)
            await self._sleep(POLL_SECONDS if served else FIRST_SECONDS)

    async def keep(self) -> None:
        """Take rotation steps until none is due. Raises the port's errors, OSError for the files."""
        for _ in RotationStage:
            if await CERTIFICATE.call(self._step, self._sleep) is RotationStage.KEPT:
                return

    async def _step(self) -> RotationStage:
        configurations = [
            (kind, found)
            for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
            if (found := await self._configuration(kind)) is not None
        ]
        version, keyring = await self._read()
        published = all(_carries(found, keyring.bundle) for _, found in configurations)
        keyring, stage = advance(keyring, now_ms(), self.names, published, self._lifetimes)
        if stage is not RotationStage.KEPT:
            await self._write(version, keyring)
            self._log.info("certificate", stage=stage.value, namespace=self._namespace, name=self._secret_name)
        for kind, found in configurations:
            await self._publish(kind, found, keyring.bundle)
        self._write_files(keyring)
        return stage

    # The Secret

    async def _read(self) -> tuple[str, Keyring]:
        """(resourceVersion, "" if there is no Secret yet; the keyring)."""
        try:
            body = await self._cluster.get(SECRET, self._namespace, self._secret_name)
        except NotFound:
            return "", Keyring()
        secret = msgspec.json.decode(body, type=_Secret)
        return secret.metadata.resource_version, read_keyring(secret.data or {})

    async def _write(self, version: str, keyring: Keyring) -> None:
        data = write_keyring(keyring)
        if version:
            body: dict[str, Any] = {"metadata": {"resourceVersion": version}, "data": data}
            await self._cluster.patch(SECRET, self._namespace, self._secret_name, body)
            return
        metadata = {"name": self._secret_name, "namespace": self._namespace}
        held = {key: value for key, value in data.items() if value is not None}
        head = {"apiVersion": SECRET.api_version, "kind": SECRET.name, "metadata": metadata}
        body = {**head, "type": "Opaque", "data": held}
        await self._cluster.create(SECRET, self._namespace, body)

    # The configurations

    async def _configuration(self, kind: Kind) -> dict[str, Any] | None:
        try:
            body = await self._cluster.get(kind, "", self._config_name)
        except NotFound:
            return None
        found: dict[str, Any] = msgspec.json.decode(body)
        return found

    async def _publish(self, kind: Kind, found: dict[str, Any], bundle: bytes) -> None:
        """Set the bundle on every webhook of a configuration that lacks it."""
        if _carries(found, bundle):
            return
        encoded = base64.b64encode(bundle).decode()
        webhooks = [
            {**hook, "clientConfig": {**hook.get("clientConfig", {}), "caBundle": encoded}}
            for hook in found.get("webhooks") or []
        ]
        version = found["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "webhooks": webhooks}
        await self._cluster.patch(kind, "", self._config_name, body)

    # The files

    def _write_files(self, keyring: Keyring) -> None:
        """Write changed files, the certificate last so that its key is already there."""
        if keyring.leaf is None:
            return
        for path, content in zip(
            self._files, (keyring.bundle, keyring.leaf.key, keyring.leaf.certificate), strict=True
        ):
            if not path.exists() or path.read_bytes() != content:
                _replace(path, content)


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """DNS names of the Service, short and fully qualified."""
    name = f"{service}.{namespace}.svc"
    return name, f"{name}.cluster.local", f"{service}.{namespace}"


def read_keyring(data: dict[str, str]) -> Keyring:
    """The keyring in a Secret's data. Parts that cannot be decoded count as missing and are recreated."""
    pairs = {
        field: Pair(certificate, key)
        for field, stem in _PAIRS.items()
        if (certificate := _value(data, f"{stem}.crt")) and (key := _value(data, f"{stem}.key"))
    }
    following = pairs.get("following")
    signing, *others = _split(_value(data, "ca.crt")) or [b""]
    if "authority" in pairs:
        pairs["authority"] = Pair(signing, pairs["authority"].key)
    return Keyring(
        **pairs,
        trusted_since=_time_of(data, TRUSTED_SINCE),
        retiring=tuple(
            found for found in others if is_certificate(found) and (following is None or found != following.certificate)
        ),
        retire_at=_time_of(data, RETIRE_AT),
    )


def write_keyring(keyring: Keyring) -> dict[str, str | None]:
    """The Secret's data as a merge patch, with null for removed keys."""
    values: dict[str, bytes] = {}
    for field, stem in _PAIRS.items():
        pair: Pair | None = getattr(keyring, field)
        values[f"{stem}.crt"], values[f"{stem}.key"] = (pair.certificate, pair.key) if pair else (b"", b"")
    values["ca.crt"] = keyring.bundle
    values[TRUSTED_SINCE] = from_ms(keyring.trusted_since).encode() if keyring.trusted_since else b""
    values[RETIRE_AT] = from_ms(keyring.retire_at).encode() if keyring.retire_at else b""
    return {key: base64.b64encode(value).decode() if value else None for key, value in values.items()}


def _value(data: dict[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key, ""), validate=True)
    except binascii.Error:
        return b""


def _time_of(data: dict[str, str], key: str) -> int:
    value = _value(data, key)
    try:
        return to_ms(value.decode()) if value else 0
    except ValueError:
        return 0


_END = b"-----END CERTIFICATE-----\n"


def _split(bundle: bytes) -> list[bytes]:
    """The certificates in a bundle, each as PEM."""
    return [part + _END for part in bundle.split(_END) if part.strip()]


def _carries(found: dict[str, Any], bundle: bytes) -> bool:
    """Whether every webhook of a configuration trusts exactly the bundle."""
    encoded = base64.b64encode(bundle).decode()
    return all((hook.get("clientConfig") or {}).get("caBundle", "") == encoded for hook in found.get("webhooks") or [])


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically; readable by this user only."""
    fresh = path.with_name(f".{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(content)
    fresh.replace(path)
