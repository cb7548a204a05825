"""Decodes watch lines, lists and single objects in one pass into the few fields the model reads.

Owns the handling of objects that cannot be decoded: each is set aside with what could be read of it and does not
affect the others (R10). The wire structs are in `decode_workload`, `decode_platform` and `decode_gpu`. Does not
know who fetches the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from reconciler.core.model import decode_gpu, decode_platform, decode_workload, objects
from reconciler.core.model.objects import GpuNode, Key, Kind, Object
from reconciler.core.model.status_patches import (
    answer_body,
    attachment_body,
    condition_body,
    constraints_body,
    placement_body,
    request_body,
)
from reconciler.core.model.wire_base import Meta, Plain, ShapeError, Wire, from_ms, shallow, to_ms

__all__ = [
    "Bookmark",
    "Changed",
    "Failed",
    "Line",
    "Listed",
    "Removed",
    "Unreadable",
    "WireError",
    "answer_body",
    "attachment_body",
    "condition_body",
    "constraints_body",
    "decode_line",
    "decode_list",
    "decode_object",
    "from_ms",
    "placement_body",
    "request_body",
    "significant",
    "to_ms",
]

T = TypeVar("T")

GONE = 410
"""HTTP status for a resourceVersion that the server no longer has (N7)."""
_EXPIRED_REASONS = ("Expired", "Gone")
_UNFIT = (msgspec.DecodeError, UnicodeDecodeError, ShapeError)
"""Errors raised when decoding untrusted bytes."""


class Changed(msgspec.Struct, frozen=True):
    """ADDED or MODIFIED: the object, reduced to the fields the model reads."""

    object: Object


class Removed(msgspec.Struct, frozen=True):
    """DELETED. The uid identifies which object of that name is gone (R10)."""

    key: Key
    uid: str
    resource_version: str = ""


class Bookmark(msgspec.Struct, frozen=True):
    """Advances the resourceVersion the watch resumes from (C39)."""

    resource_version: str


class Failed(msgspec.Struct, frozen=True):
    """ERROR: the stream has ended. `code` is the HTTP status, 0 if none is given; 410: list again (N7)."""

    code: int
    message: str


class Unreadable(msgspec.Struct, frozen=True):
    """An object that could not be decoded, with what could be read of its identity ("" if nothing);
    `error` names the field (R10)."""

    key: Key
    uid: str
    resource_version: str
    error: str


Line: TypeAlias = Changed | Removed | Bookmark | Failed | Unreadable


class Listed(msgspec.Struct, frozen=True):
    """A whole list: its resourceVersion, its objects, and those set aside."""

    resource_version: str
    objects: list[Object]
    unreadable: list[Unreadable]


class WireError(ValueError):
    """The response is not a usable list; list again."""


class WatchLine(msgspec.Struct, Generic[T]):
    type: str
    object: T


class ItemList(msgspec.Struct, Generic[T]):
    metadata: Meta | None = None
    items: list[T] | None = None


class Status(Wire, frozen=True):
    """The fields of `metav1.Status` that an ERROR event needs; any may be absent (C39)."""

    code: int | None = None
    message: str | None = None
    reason: str | None = None


class Reader(NamedTuple):
    """How one kind is decoded: the prepared decoders and the conversion to the model, which raises `ShapeError`."""

    line: msgspec.json.Decoder[Any]
    list: msgspec.json.Decoder[Any]
    object: msgspec.json.Decoder[Any]
    reduce: Callable[[Any], Object]


_SHAPES: dict[str, tuple[type[Wire], Callable[[Any], Object]]] = {
    objects.NODE.name: (decode_workload.NodeWire, decode_workload.node),
    objects.POD.name: (decode_workload.PodWire, decode_workload.pod),
    objects.VMI.name: (decode_workload.VmiWire, decode_workload.vmi),
    objects.NAMESPACE.name: (decode_platform.NamespaceWire, decode_platform.namespace),
    objects.SETTINGS.name: (decode_platform.SettingsWire, decode_platform.settings),
    objects.KUBEVIRT.name: (decode_platform.KubeVirtWire, decode_platform.kubevirt),
    objects.RELEASE.name: (decode_platform.ReleaseWire, decode_platform.release),
    objects.DEVICE.name: (decode_gpu.DeviceWire, decode_gpu.device),
    objects.CLASS.name: (decode_gpu.ClassWire, decode_gpu.gpu_class),
    objects.GPU_NODE.name: (decode_gpu.ReportWire, decode_gpu.gpu_node),
}


@cache
def _reader(kind_name: str) -> Reader:
    shape, reduce = _SHAPES[kind_name]
    return Reader(
        msgspec.json.Decoder(WatchLine[shape]),  # type: ignore[valid-type]
        msgspec.json.Decoder(ItemList[shape]),  # type: ignore[valid-type]
        msgspec.json.Decoder(shape),
        reduce,
    )


_LOOSE_LINE = msgspec.json.Decoder(WatchLine[msgspec.Raw])
_LOOSE_LIST = msgspec.json.Decoder(ItemList[msgspec.Raw])
_PLAIN = msgspec.json.Decoder(Plain)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Decode JSON. Content nested too deeply for the decoder is cut, far below any field the model reads, so that
    no tenant's object can make a whole list unreadable (R10)."""
    try:
        return decoder.decode(body)
    except RecursionError:
        return decoder.decode(shallow(bytes(body)))


def decode_line(kind: Kind, line: bytes) -> Line:
    """Decode one watch line of a kind in `objects.KINDS`. Never raises for the line's content: a field of the wrong
    type makes the object `Unreadable` (R10), a deletion needs only the metadata, an error event may lack
    every field (C39)."""
    reader = _reader(kind.name)
    try:
        read = _decode(reader.line, line)
        if read.type in ("ADDED", "MODIFIED"):
            return Changed(reader.reduce(read.object))
    except _UNFIT as error:
        return _loose_line(kind, line, _explained(error, "$.object"))
    if read.type == "ERROR":
        return _loose_line(kind, line, "")
    return _unreduced(kind, read.type, read.object.metadata or Meta(), "")


def _loose_line(kind: Kind, line: bytes, error: str) -> Line:
    """Decode a line whose object does not match its kind, or that holds no object."""
    try:
        read = _decode(_LOOSE_LINE, line)
    except _UNFIT as broken:
        return Unreadable(Key(kind.name, "", ""), "", "", _explained(broken, "$"))
    if read.type == "ERROR":
        return _failed(read.object)
    return _unreduced(kind, read.type, _identity(read.object), error)


def _unreduced(kind: Kind, type_: str, meta: Meta, error: str) -> Line:
    """The event of a watch line, from its object's metadata alone."""
    if type_ == "BOOKMARK":
        if meta.resource_version:
            return Bookmark(meta.resource_version)
        error = "a bookmark without metadata.resourceVersion"
    elif type_ == "DELETED":
        if meta.name and meta.uid:
            return Removed(Key(kind.name, meta.namespace, meta.name), meta.uid, meta.resource_version)
        error = "a deleted object without metadata.name or metadata.uid"
    return _unreadable(kind, meta, error or f"a watch line of the unknown type {type_[:64]!r}")


def _failed(raw: msgspec.Raw) -> Failed:
    try:
        status = msgspec.json.decode(raw, type=Status | None) or Status()
    except _UNFIT:
        return Failed(0, "an error event whose status cannot be read")
    code = status.code or (GONE if status.reason in _EXPIRED_REASONS else 0)
    return Failed(code, status.message or status.reason or "an error event without a message")


def decode_list(kind: Kind, body: bytes) -> Listed:
    """Decode a whole list, whose items carry no kind of their own. Items are decoded one by one only if one of them
    is invalid. Raises `WireError` if the body is not a list or has no resourceVersion to watch from."""
    reader = _reader(kind.name)
    try:
        read = _decode(reader.list, body)
        items: list[Any] = read.items or []
        fits = True
    except _UNFIT:
        try:
            read = _decode(_LOOSE_LIST, body)
        except _UNFIT as error:
            raise WireError(f"the list of {kind.plural} cannot be read: {_explained(error, '$')}") from None
        items = read.items or []
        fits = False
    version = read.metadata.resource_version if read.metadata is not None else ""
    if not version:
        raise WireError(f"the list of {kind.plural} has no metadata.resourceVersion to watch from")
    listed = Listed(version, [], [])
    for item in items:
        if fits:
            try:
                listed.objects.append(reader.reduce(item))
            except ShapeError as error:
                listed.unreadable.append(_unreadable(kind, item.metadata or Meta(), str(error)))
            continue
        found = decode_object(kind, item)
        if isinstance(found, Unreadable):
            listed.unreadable.append(found)
        else:
            listed.objects.append(found)
    return listed


def decode_object(kind: Kind, body: bytes | msgspec.Raw) -> Object | Unreadable:
    """Decode one object as returned by a GET or a write."""
    reader = _reader(kind.name)
    try:
        return reader.reduce(_decode(reader.object, body))
    except _UNFIT as error:
        return _unreadable(kind, _identity(body), _explained(error, "$"))


def _unreadable(kind: Kind, meta: Meta, error: str) -> Unreadable:
    return Unreadable(Key(kind.name, meta.namespace, meta.name), meta.uid, meta.resource_version, error)


def _identity(body: bytes | msgspec.Raw) -> Meta:
    """An object's metadata, or as much of its identity as can be read."""
    try:
        return _decode(_PLAIN, body).metadata or Meta()
    except _UNFIT:
        pass
    try:
        values = _decode(_FIELDS, body)
        metadata = _decode(_FIELDS, values["metadata"])
    except (*_UNFIT, KeyError):
        return Meta()
    return Meta(
        name=_text(metadata, "name"),
        namespace=_text(metadata, "namespace"),
        uid=_text(metadata, "uid"),
        resource_version=_text(metadata, "resourceVersion"),
    )


def _text(values: dict[str, msgspec.Raw], key: str) -> str:
    try:
        return msgspec.json.decode(values.get(key, b""), type=str)
    except _UNFIT:
        return ""


def _explained(error: Exception, root: str) -> str:
    """The error, prefixed with the field: "spec.count: Expected `int`, got `str`"."""
    text, separator, path = str(error).rpartition(" - at `")
    if not separator:
        return str(error)
    return f"{path.rstrip('`').removeprefix(root).lstrip('.')}: {text}".removeprefix(": ")


def significant(kind: Kind, a: Object, b: Object) -> bool:
    """Whether two observations of one object differ in a field the model reads (J3). The resourceVersion counts
    only for kinds the binder writes (B6); the time of an agent's report never counts."""
    if a == b:
        return False
    same: dict[str, Any] = {} if kind.written else {"resource_version": a.resource_version}
    if isinstance(a, GpuNode) and isinstance(b, GpuNode):
        same["reported_at"] = a.reported_at
    return a != msgspec.structs.replace(b, **same)
