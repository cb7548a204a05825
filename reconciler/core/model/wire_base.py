"""Base wire structs common to every kind: metadata, times, errors.

Owns the rule that fields not declared are skipped unread (J3). Knows no kind; the `decode_*` modules do.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias

import msgspec

Time: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_DEPTH = 100
"""Levels kept by `shallow`: the deepest field the model reads is at the tenth, the decoder fails near the
thousandth, and the API server stores up to ten thousand."""
_MILLISECOND = timedelta(milliseconds=1)


class ShapeError(ValueError):
    """A field the model needs is missing or invalid; the message names it."""


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of the wire structs: every field may be absent; undeclared fields are skipped unread."""


class Meta(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None


class Plain(Wire, frozen=True):
    """Any object, reduced to its metadata."""

    metadata: Meta | None = None


def ms(time: datetime | None) -> int:
    """Milliseconds since the Unix epoch; 0 for no time."""
    return 0 if time is None else (time - _EPOCH) // _MILLISECOND


def common(meta: Meta | None) -> dict[str, Any]:
    """The fields common to every stored object. Raises `ShapeError` without a name or a uid, which is the identity."""
    meta = meta or Meta()
    for name, value in (("name", meta.name), ("uid", meta.uid)):
        if not value:
            raise ShapeError(f"metadata.{name} is missing")
    return {
        "name": meta.name,
        "namespace": meta.namespace,
        "uid": meta.uid,
        "resource_version": meta.resource_version,
        "created": ms(meta.creation_timestamp),
        "deleting": None if meta.deletion_timestamp is None else ms(meta.deletion_timestamp),
    }


def to_ms(time: str) -> int:
    """RFC 3339 (seconds or fractions, Z or offset) as milliseconds since the Unix epoch, rounded down. Raises
    `ValueError` for anything else."""
    try:
        return ms(msgspec.convert(time, Time))
    except msgspec.ValidationError:
        raise ValueError(f"{time!r} is not an RFC 3339 time such as 2024-01-31T12:00:00Z") from None


def from_ms(time: int) -> str:
    """Milliseconds since the Unix epoch as RFC 3339 in UTC, with the six decimals that Kubernetes' MicroTime
    requires and its Time accepts."""
    moment = _EPOCH + timedelta(milliseconds=time)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}Z"


def shallow(body: bytes) -> bytes:
    """JSON with everything below `_DEPTH` levels removed: a map or list at that depth remains, but empty."""
    kept = []
    depth = start = 0
    for token in _TOKEN.finditer(body):
        opening = token[0]
        if opening in (b"{", b"["):
            depth += 1
            if depth == _DEPTH:
                kept.append(body[start : token.end()])
        elif opening in (b"}", b"]"):
            if depth == _DEPTH:
                start = token.start()
            depth -= 1
    if depth < _DEPTH:
        kept.append(body[start:])
    return b"".join(kept)
