"""A private certificate authority and the certificates it signs, as PEM, and the stages of its rotation (N6).

Owns keys, certificates and the order in which an authority is replaced. Pure except for key generation: callers
pass the time in. Knows nothing of Secrets, files or webhook configurations: that is `certificates`. Times are ms since
the Unix epoch, UTC.

Rotation without a gap in trust: the next authority is published alongside the current one; once every configuration
has carried both for a settling time, it signs the serving certificate; the old one stays published until the last
certificate it signed has expired, so that even a replica that missed the rotation is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = 86_400_000
SKEW = 300_000
"""A certificate is valid from a little before now, to tolerate lagging clocks."""


class Lifetimes(msgspec.Struct, frozen=True):
    """ms. `settle`: how long both authorities are published before the new one signs; API servers see a changed
    configuration within seconds. `leaf_renew` before its end a serving certificate is replaced, `authority_renew`
    before its end an authority."""

    authority: int = 5 * 365 * DAY
    authority_renew: int = 180 * DAY
    leaf: int = 90 * DAY
    leaf_renew: int = 30 * DAY
    settle: int = 300_000


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Keyring(msgspec.Struct, frozen=True):
    """The state shared by all replicas. `following`: the next authority, published but not signing yet, trusted by
    every configuration since `trusted_since` (0: not yet). `retiring`: certificates of former authorities, published
    until `retire_at`."""

    authority: Pair | None = None
    leaf: Pair | None = None
    following: Pair | None = None
    trusted_since: int = 0
    retiring: tuple[bytes, ...] = ()
    retire_at: int = 0

    @property
    def bundle(self) -> bytes:
        """All trusted authorities, the signing one first."""
        signing = (self.authority.certificate,) if self.authority is not None else ()
        coming = (self.following.certificate,) if self.following is not None else ()
        return b"".join((*signing, *coming, *self.retiring))


class RotationStage(StrEnum):
    """The step `advance` took."""

    KEPT = "kept"
    NEW_AUTHORITY = "new authority"
    NEW_LEAF = "new certificate"
    NEXT_AUTHORITY = "next authority published"
    NEXT_TRUSTED = "next authority trusted"
    ROTATED = "signed by the next authority"
    RETIRED = "old authority dropped"


def advance(
    keyring: Keyring, now: int, names: Sequence[str], published: bool, lifetimes: Lifetimes
) -> tuple[Keyring, RotationStage]:
    """Advance the keyring by one step; returns the step. `names`: DNS names of the serving certificate. `published`:
    every webhook configuration carries `keyring.bundle`."""
    authority, leaf, following = keyring.authority, keyring.leaf, keyring.following
    change = msgspec.structs.replace
    if authority is None or not _usable(authority, now):
        fresh = new_authority(now, lifetimes.authority)
        signed = new_leaf(fresh, names, now, lifetimes.leaf)
        return Keyring(authority=fresh, leaf=signed), RotationStage.NEW_AUTHORITY
    if leaf is None or _due(leaf, authority, names, now, lifetimes):
        return change(keyring, leaf=new_leaf(authority, names, now, lifetimes.leaf)), RotationStage.NEW_LEAF
    if following is None or not _usable(following, now):
        if not _lasts(authority, now + lifetimes.authority_renew):
            fresh = new_authority(now, lifetimes.authority)
            return change(keyring, following=fresh, trusted_since=0), RotationStage.NEXT_AUTHORITY
    elif published and not keyring.trusted_since:
        return change(keyring, trusted_since=now), RotationStage.NEXT_TRUSTED
    elif published and now >= keyring.trusted_since + lifetimes.settle:
        rotated = Keyring(
            authority=following,
            leaf=new_leaf(following, names, now, lifetimes.leaf),
            retiring=(authority.certificate, *keyring.retiring),
            retire_at=max(keyring.retire_at, expiry(leaf.certificate)),
        )
        return rotated, RotationStage.ROTATED
    if keyring.retiring and now >= keyring.retire_at:
        return change(keyring, retiring=(), retire_at=0), RotationStage.RETIRED
    return keyring, RotationStage.KEPT


def new_authority(now: int, valid: int) -> Pair:
    """A self-signed authority, ECDSA P-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpu-binder webhooks {_time(now):%Y-%m-%d}")])
    usage = _usage(key_cert_sign=True, crl_sign=True)
    made = (
        _builder(name, name, key, now, now + valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(made.public_bytes(Encoding.PEM), _pem(key))


def new_leaf(authority: Pair, names: Sequence[str], now: int, valid: int) -> Pair:
    """A serving certificate for DNS names, never longer valid than its authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = _key(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + valid, expiry(authority.certificate))
    # A common name has 64 characters at most, and nobody reads it: the names are in the extension.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    made = (
        _builder(name, issuer.subject, key, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Pair(made.public_bytes(Encoding.PEM), _pem(key))


def expiry(certificate: bytes) -> int:
    """End of validity. Raises ValueError if it is not a certificate."""
    return int(x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp() * 1000)


def _key(pair: Pair) -> ec.EllipticCurvePrivateKey:
    """Raises ValueError if it is not an unencrypted key of the expected type."""
    try:
        key = load_pem_private_key(pair.key, None)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic curve key")
    return key


def _usable(pair: Pair, now: int) -> bool:
    """A certificate with its own key that is valid now."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        own = _bytes(certificate.public_key()) == _bytes(_key(pair).public_key())
    except ValueError:
        return False
    return own and _lasts(pair, now)


def _lasts(pair: Pair, until: int) -> bool:
    return expiry(pair.certificate) > until


def is_certificate(certificate: bytes) -> bool:
    try:
        x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return False
    return True


def _due(leaf: Pair, authority: Pair, names: Sequence[str], now: int, lifetimes: Lifetimes) -> bool:
    """Whether the serving certificate must be replaced: it is unusable, or it expires soon and a new one would last
    longer."""
    if not _serves(leaf, authority, names, now):
        return True
    end = expiry(leaf.certificate)
    return end <= now + lifetimes.leaf_renew and end < expiry(authority.certificate)


def _serves(leaf: Pair, authority: Pair, names: Sequence[str], now: int) -> bool:
    """Valid now, signed by the authority, for all of the names."""
    if not _usable(leaf, now):
        return False
    certificate = x509.load_pem_x509_certificate(leaf.certificate)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return set(names) <= set(found.get_values_for_type(x509.DNSName))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: int, until: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now - SKEW))
        .not_valid_after(_time(until))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _bytes(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]


def _time(at: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)
