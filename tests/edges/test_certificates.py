"""The self-signed certificate: one authority for all replicas, rotated without a gap in trust (N6)."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from freezegun import freeze_time
from freezegun.api import FrozenDateTimeFactory

from reconciler.cluster.memory import Call, Fault, MemoryCluster
from reconciler.cluster.port import Rejected
from reconciler.core.model.objects import MUTATING_WEBHOOKS, NAMESPACE, SECRET, VALIDATING_WEBHOOKS
from reconciler.runtime.certificate_authority import (
    DAY,
    Keyring,
    Lifetimes,
    Pair,
    RotationStage,
    advance,
    expiry,
    new_authority,
    new_leaf,
)
from reconciler.runtime.certificates import CertificateKeeper, read_keyring, service_names, write_keyring
from reconciler.runtime.wall_clock import now_ms
from tests.edges.memory_cluster import START_MS, named
from webhooks.certificates import Certificates

NS, SECRET_NAME, SERVICE, CONFIG = "cozy-gpu-binder", "gpu-binder-webhook-cert", "gpu-binder", "cozy-gpu-binder-x"
NAMES = service_names(SERVICE, NS)
LIFETIMES = Lifetimes()


class FrozenClock:
    """The frozen wall clock, in ms since the epoch."""

    def __init__(self, frozen: FrozenDateTimeFactory) -> None:
        self._frozen = frozen

    def __call__(self) -> int:
        return now_ms()

    def set(self, at: int) -> None:
        self._frozen.move_to(datetime.fromtimestamp(at / 1000, UTC))

    def advance(self, seconds: float) -> None:
        self._frozen.tick(seconds)


class Replica:
    """A keeper with its own files, and the server side that reloads them."""

    def __init__(self, installed: Installed, name: str) -> None:
        self.directory = installed.path / name
        self.directory.mkdir()
        self.keeper = CertificateKeeper(
            installed.cluster.as_user(name),
            namespace=NS,
            secret_name=SECRET_NAME,
            service_name=SERVICE,
            webhook_config_name=CONFIG,
            certificate=self.directory / "tls.crt",
            key=self.directory / "tls.key",
            authority=self.directory / "ca.crt",
            sleep=self._sleep,
        )
        self.refused: list[str] = []
        self.serving = Certificates(
            self.directory / "tls.crt", self.directory / "tls.key", on_error=self.refused.append
        )
        self.slept: list[float] = []
        self.round = asyncio.Event()

    async def _sleep(self, seconds: float) -> None:
        if not seconds:
            await asyncio.sleep(0)
            return
        self.slept.append(seconds)
        await self.round.wait()
        self.round.clear()

    async def keep(self) -> bytes:
        """One round and a reload; the certificate that is served."""
        await self.keeper.keep()
        self.serving.reload()
        return self.leaf

    @property
    def leaf(self) -> bytes:
        return (self.directory / "tls.crt").read_bytes()


class Installed:
    """A cluster with the chart's Secret and its two configurations."""

    def __init__(self, path: Path, frozen: FrozenDateTimeFactory) -> None:
        self.path = path
        self.clock = FrozenClock(frozen)
        self.cluster = MemoryCluster(self.clock)

    async def open(self) -> Installed:
        await self.cluster.create(NAMESPACE, "", named(NS))
        await self.cluster.create(SECRET, NS, named(SECRET_NAME, type="Opaque"))
        for kind, names in ((MUTATING_WEBHOOKS, ("machines", "pods")), (VALIDATING_WEBHOOKS, ("devices", "tenants"))):
            hooks = [
                {"name": f"{name}.x", "clientConfig": {"service": {"name": SERVICE, "path": f"/admit/{name}"}}, "n": 1}
                for name in names
            ]
            await self.cluster.create(kind, "", named(CONFIG, webhooks=hooks))
        return self

    def data(self) -> dict[str, str]:
        found = self.cluster.peek(SECRET, NS, SECRET_NAME)
        assert found is not None
        return found.get("data") or {}

    @property
    def keyring(self) -> Keyring:
        return read_keyring(self.data())

    def bundles(self) -> list[bytes]:
        """What each of the four webhooks is trusted by."""
        found = []
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            stored = self.cluster.peek(kind, "", CONFIG)
            assert stored is not None
            found += [base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in stored["webhooks"]]
        return found

    def trusted(self, leaf: bytes) -> bool:
        """Whether an API server would accept the certificate from every webhook now."""
        return all(verifies(leaf, bundle, self.clock()) for bundle in self.bundles())


def verifies(leaf: bytes, bundle: bytes, now: int) -> bool:
    certificate = x509.load_pem_x509_certificate(leaf)
    if not expiry(leaf) > now or not bundle:
        return False
    for authority in x509.load_pem_x509_certificates(bundle):
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, InvalidSignature):
            continue
        return expiry_of(authority) > now
    return False


def expiry_of(certificate: x509.Certificate) -> int:
    return int(certificate.not_valid_after_utc.timestamp() * 1000)


async def rounds(replica: Replica, count: int) -> None:
    """Let the replica's task come to rest that often."""
    for _ in range(1_000):
        if len(replica.slept) >= count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(replica.slept)} rounds of {count}")


@pytest.fixture
async def installed(tmp_path: Path) -> AsyncIterator[Installed]:
    new_authority(START_MS, DAY)  # cryptography keeps the datetime type it meets first, which must be the real one
    with freeze_time(datetime.fromtimestamp(START_MS / 1000, UTC), real_asyncio=True) as frozen:
        yield await Installed(tmp_path, frozen).open()


async def test_N6_a_first_replica_makes_everything_and_the_second_takes_it(installed: Installed) -> None:
    first, second = Replica(installed, "a"), Replica(installed, "b")
    leaf = await first.keep()
    assert await second.keep() == leaf
    assert first.serving.loaded and second.serving.loaded and not first.refused
    assert installed.trusted(leaf)
    assert (first.directory / "ca.crt").read_bytes() == installed.keyring.bundle
    assert (first.directory / "tls.key").stat().st_mode & 0o077 == 0


async def test_N6_the_certificate_is_one_that_an_api_server_accepts(installed: Installed) -> None:
    replica = Replica(installed, "a")
    certificate = x509.load_pem_x509_certificate(await replica.keep())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {
        "gpu-binder.cozy-gpu-binder.svc",
        "gpu-binder.cozy-gpu-binder.svc.cluster.local",
        "gpu-binder.cozy-gpu-binder",
    }
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    public = certificate.public_key()
    assert public.curve.name == "secp256r1"  # type: ignore[union-attr]
    context = ssl.create_default_context(cadata=installed.keyring.bundle.decode())
    (authority,) = context.get_ca_certs()
    assert "gpu-binder" in str(authority["subject"])


async def test_N6_nothing_is_written_while_nothing_changes(installed: Installed) -> None:
    """J3: an idle cluster writes nothing."""
    first, second = Replica(installed, "a"), Replica(installed, "b")
    await first.keep()
    before = len(installed.cluster.writes)
    for _ in range(3):
        await first.keep()
        await second.keep()
    assert len(installed.cluster.writes) == before


async def test_N6_replicas_that_begin_at_once_agree_on_one_authority(installed: Installed) -> None:
    replicas = [Replica(installed, name) for name in "abc"]
    await asyncio.gather(*(replica.keep() for replica in replicas))
    leaves = {await replica.keep() for replica in replicas}
    assert len(leaves) == 1 and installed.trusted(leaves.pop())
    assert len(x509.load_pem_x509_certificates(installed.keyring.bundle)) == 1


async def test_N6_an_upgrade_or_a_reinstalled_configuration_keeps_the_authority(installed: Installed) -> None:
    replica = Replica(installed, "a")
    leaf = await replica.keep()
    stored = installed.cluster.peek(MUTATING_WEBHOOKS, "", CONFIG)
    assert stored is not None
    hooks = [{**hook, "clientConfig": {"service": hook["clientConfig"]["service"]}} for hook in stored["webhooks"]]
    await installed.cluster.patch(MUTATING_WEBHOOKS, "", CONFIG, {"webhooks": hooks})
    assert not installed.trusted(leaf)
    restarted = Replica(installed, "after-upgrade")
    assert await restarted.keep() == leaf
    assert installed.trusted(leaf)
    stored = installed.cluster.peek(MUTATING_WEBHOOKS, "", CONFIG)
    assert stored is not None and all(hook["n"] == 1 for hook in stored["webhooks"]), "the rest stays as it was"


async def test_N6_the_serving_certificate_is_renewed_by_the_same_authority(installed: Installed) -> None:
    replica = Replica(installed, "a")
    leaf = await replica.keep()
    bundle = installed.keyring.bundle
    installed.clock.advance(59 * 86_400)
    assert await replica.keep() == leaf
    installed.clock.advance(2 * 86_400)
    renewed = await replica.keep()
    assert renewed != leaf and installed.keyring.bundle == bundle
    assert installed.trusted(renewed) and installed.trusted(leaf)
    assert replica.serving.expires_at == expiry(renewed)


async def test_N6_a_rotation_serves_with_both_authorities_until_every_replica_has_the_new_one(
    installed: Installed,
) -> None:
    quick, slow = Replica(installed, "quick"), Replica(installed, "slow")
    await quick.keep()
    await slow.keep()
    old = installed.keyring.authority
    assert old is not None
    installed.clock.set(expiry(old.certificate) - LIFETIMES.authority_renew - 1)
    await quick.keep()
    await slow.keep()
    installed.clock.advance(1)
    served_by_slow = slow.leaf
    leaf = await quick.keep()
    assert leaf == served_by_slow, "the new authority signs nothing before it is trusted"
    assert {len(x509.load_pem_x509_certificates(bundle)) for bundle in installed.bundles()} == {2}
    installed.clock.advance(LIFETIMES.settle / 1000 - 1)
    assert await quick.keep() == leaf
    installed.clock.advance(2)
    rotated = await quick.keep()
    new = installed.keyring.authority
    assert rotated != leaf and new is not None and new != old
    assert installed.trusted(rotated) and installed.trusted(served_by_slow), "slow has seen nothing of it yet"
    installed.clock.set(expiry(served_by_slow) - 1)
    await quick.keep()
    assert installed.trusted(served_by_slow)
    installed.clock.advance(1)
    await quick.keep()
    assert installed.keyring.bundle == new.certificate
    assert set(installed.bundles()) == {new.certificate}
    assert installed.trusted(await slow.keep())


async def test_N6_every_certificate_served_is_trusted_over_twelve_years_and_two_rotations(installed: Installed) -> None:
    replicas = [Replica(installed, name) for name in "ab"]
    authorities = set()
    for step in range(12 * 365 // 2):
        await replicas[step % 5 == 0].keep()
        keyring = installed.keyring
        if keyring.authority is not None and replicas[0].serving.loaded and replicas[1].serving.loaded:
            authorities.add(keyring.authority.certificate)
            assert all(installed.trusted(replica.leaf) for replica in replicas), step
        installed.clock.advance(2 * 86_400)
    assert len(authorities) == 3
    assert len(x509.load_pem_x509_certificates(installed.keyring.bundle)) <= 2


async def test_N6_a_replica_that_is_behind_never_puts_an_older_bundle_over_a_newer(installed: Installed) -> None:
    behind, ahead = Replica(installed, "behind"), Replica(installed, "ahead")
    await ahead.keep()
    await behind.keep()
    old = installed.keyring.authority
    assert old is not None
    installed.clock.set(expiry(old.certificate) - LIFETIMES.authority_renew)
    stop = asyncio.Event()

    async def overtaken() -> None:
        await ahead.keep()
        stop.set()

    real = behind.keeper._write

    async def held(version: str, keyring: Keyring) -> None:
        if not stop.is_set():
            await overtaken()
        await real(version, keyring)

    behind.keeper._write = held  # type: ignore[method-assign]
    await behind.keep()
    assert stop.is_set()
    assert set(installed.bundles()) == {installed.keyring.bundle}


async def test_an_emptied_secret_makes_a_new_authority(installed: Installed) -> None:
    """N6: the runbook's way out of a lost or stolen key."""
    replica = Replica(installed, "a")
    leaf = await replica.keep()
    await installed.cluster.patch(SECRET, NS, SECRET_NAME, {"data": None})
    fresh = await replica.keep()
    assert fresh != leaf and installed.trusted(fresh) and not installed.trusted(leaf)


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("value", ["%%%", base64.b64encode(b"no pem").decode(), ""])
async def test_R10_a_broken_secret_is_repaired(installed: Installed, key: str, value: str) -> None:
    replica = Replica(installed, "a")
    await replica.keep()
    await installed.cluster.patch(SECRET, NS, SECRET_NAME, {"data": {key: value}})
    assert installed.trusted(await replica.keep())
    assert not replica.refused


async def test_R10_a_broken_next_authority_is_made_anew(installed: Installed) -> None:
    replica = Replica(installed, "a")
    await replica.keep()
    old = installed.keyring.authority
    assert old is not None
    installed.clock.set(expiry(old.certificate) - LIFETIMES.authority_renew)
    await replica.keep()
    other = new_authority(installed.clock(), DAY)
    data = {"next.key": base64.b64encode(other.key).decode()}
    await installed.cluster.patch(SECRET, NS, SECRET_NAME, {"data": data})
    await replica.keep()
    installed.clock.advance(LIFETIMES.settle / 1000 + 1)
    assert installed.trusted(await replica.keep())
    assert installed.keyring.authority != old


async def test_another_service_name_gets_a_certificate_of_the_same_authority(installed: Installed) -> None:
    """N6: an upgrade that renames the Service."""
    replica = Replica(installed, "a")
    await replica.keep()
    before = installed.keyring
    replica.keeper.names = service_names("renamed", NS)
    leaf = x509.load_pem_x509_certificate(await replica.keep())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "renamed.cozy-gpu-binder.svc" in names.get_values_for_type(x509.DNSName)
    assert installed.keyring.authority == before.authority


async def test_without_the_charts_secret_one_is_made(installed: Installed) -> None:
    await installed.cluster.delete(SECRET, NS, SECRET_NAME)
    first, second = Replica(installed, "a"), Replica(installed, "b")
    await asyncio.gather(first.keep(), second.keep())
    assert await first.keep() == await second.keep()


async def test_configurations_that_are_not_there_yet_are_filled_when_they_come(installed: Installed) -> None:
    stored = installed.cluster.peek(VALIDATING_WEBHOOKS, "", CONFIG)
    assert stored is not None
    await installed.cluster.delete(VALIDATING_WEBHOOKS, "", CONFIG)
    replica = Replica(installed, "a")
    leaf = await replica.keep()
    await installed.cluster.create(VALIDATING_WEBHOOKS, "", named(CONFIG, webhooks=stored["webhooks"]))
    assert not installed.trusted(leaf)
    await replica.keep()
    assert installed.trusted(leaf)


async def test_nothing_is_served_that_is_not_published(installed: Installed) -> None:
    """N6: a certificate whose authority no configuration carries would only break calls."""
    replica = Replica(installed, "a")
    leaf = await replica.keep()

    def no_configurations(call: Call) -> Fault | None:
        return Fault.UNAVAILABLE if call.kind != SECRET.name and call.verb == "patch" else None

    await installed.cluster.patch(SECRET, NS, SECRET_NAME, {"data": None})
    installed.cluster.faults = no_configurations
    with pytest.raises(Exception, match="connection refused"):
        await replica.keep()
    assert replica.leaf == leaf
    installed.cluster.faults = None
    assert await replica.keep() != leaf


async def test_N6_the_task_goes_on_after_whatever_the_api_server_says(installed: Installed) -> None:
    replica = Replica(installed, "a")
    installed.cluster.faults = lambda call: Fault.UNAVAILABLE
    running = asyncio.ensure_future(replica.keeper.run())
    await rounds(replica, 1)
    assert replica.slept[0] == 1.0, "soon again while there is nothing to serve with"
    installed.cluster.faults = None
    replica.round.set()
    await rounds(replica, 2)
    assert replica.slept[1] == 10.0 and installed.trusted(replica.leaf)
    running.cancel()


async def test_a_forbidden_secret_is_told(installed: Installed) -> None:
    """N2: rights that are missing show in the log."""
    told: list[dict[str, Any]] = []

    class Log:
        def error(self, event: str, **fields: Any) -> None:
            told.append(fields)

        info = error

    class Forbidding:
        def __getattr__(self, name: str) -> Any:
            async def call(*args: Any, **more: Any) -> bytes:
                raise Rejected("secrets is forbidden: User cannot get resource")

            return call

    replica = Replica(installed, "a")
    replica.keeper._log, replica.keeper._cluster = Log(), Forbidding()  # type: ignore[assignment]
    running = asyncio.ensure_future(replica.keeper.run())
    await rounds(replica, 1)
    running.cancel()
    assert told[0]["name"] == SECRET_NAME and "forbidden" in told[0]["error"]


# The stages, one by one


def test_N6_a_keyring_survives_its_secret() -> None:
    now = 1_700_000_000_000
    authority, following, former = (new_authority(now, DAY) for _ in range(3))
    leaf = new_leaf(authority, NAMES, now, DAY)
    keyring = Keyring(
        authority=authority,
        leaf=leaf,
        following=following,
        trusted_since=now + 5,
        retiring=(former.certificate,),
        retire_at=now + 7,
    )
    data = write_keyring(keyring)
    assert read_keyring({key: value for key, value in data.items() if value}) == keyring
    assert write_keyring(Keyring()) == dict.fromkeys(data)


def test_N6_the_next_authority_waits_for_every_configuration() -> None:
    now = 1_700_000_000_000
    authority = new_authority(now, LIFETIMES.authority_renew)
    keyring = Keyring(authority=authority, leaf=new_leaf(authority, NAMES, now, LIFETIMES.leaf))
    keyring, stage = advance(keyring, now, NAMES, True, LIFETIMES)
    assert stage is RotationStage.NEXT_AUTHORITY
    later = now + 10 * LIFETIMES.settle
    assert advance(keyring, later, NAMES, False, LIFETIMES)[1] is RotationStage.KEPT
    keyring, stage = advance(keyring, later, NAMES, True, LIFETIMES)
    assert stage is RotationStage.NEXT_TRUSTED
    assert advance(keyring, later + LIFETIMES.settle - 1, NAMES, True, LIFETIMES)[1] is RotationStage.KEPT
    assert advance(keyring, later + LIFETIMES.settle, NAMES, False, LIFETIMES)[1] is RotationStage.KEPT
    assert advance(keyring, later + LIFETIMES.settle, NAMES, True, LIFETIMES)[1] is RotationStage.ROTATED


def test_N6_an_authority_near_its_end_does_not_sign_without_end() -> None:
    """A certificate that cannot last longer than its authority is not renewed at every look."""
    now = 1_700_000_000_000
    authority = new_authority(now, LIFETIMES.leaf_renew - DAY)
    keyring, _ = advance(Keyring(authority=authority), now, NAMES, False, LIFETIMES)
    assert keyring.leaf is not None and expiry(keyring.leaf.certificate) == expiry(authority.certificate)
    _, stage = advance(keyring, now, NAMES, False, LIFETIMES)
    assert stage is RotationStage.NEXT_AUTHORITY


def test_N6_an_expired_authority_is_replaced_at_once() -> None:
    now = 1_700_000_000_000
    authority = new_authority(now, DAY)
    keyring = Keyring(authority=authority, leaf=new_leaf(authority, NAMES, now, DAY))
    fresh, stage = advance(keyring, now + 2 * DAY, NAMES, False, LIFETIMES)
    assert stage is RotationStage.NEW_AUTHORITY and fresh.authority != authority


def test_R10_a_key_of_another_kind_is_no_key() -> None:
    now = 1_700_000_000_000
    foreign = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    keyring = Keyring(authority=Pair(new_authority(now, DAY).certificate, foreign))
    assert advance(keyring, now, NAMES, False, LIFETIMES)[1] is RotationStage.NEW_AUTHORITY
