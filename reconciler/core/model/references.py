"""The only parser of the K1 annotation, which lists the devices a VMI refers to.

Owns the annotation's JSON format and its errors, with their position. Knows nothing of whether a
device exists; `webhooks.machines` asks that. The tenant-facing chart's examples are tested against it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from reconciler.core.model.objects import Model
from reconciler.core.model.vocabulary import DEVICES_ANNOTATION, Reason

MAX_REFERENCES = 64
"""No board holds more GPUs; a longer list would only cost writes, one per device."""
MAX_COUNT = 1024
"""Units of one template; the limit in the GPUDevice CRD."""
MAX_CHARACTERS = 64 * 1024
"""64 references with names of 253 characters fit in 20 KiB; longer text is not parsed."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_NAME = 253
_MAX_DIGITS = 20


class DeviceReference(Model, frozen=True):
    """A device the tenant holds, by name, in the VMI's namespace."""

    device: str


class TemplateReference(Model, frozen=True):
    """A device created when the VMI starts and deleted with it."""

    class_name: str
    count: int = 1


Reference = DeviceReference | TemplateReference


class ReferencesError(ValueError):
    """The annotation is invalid. `reason` is stable; the text names the position."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def parse_references(text: str) -> tuple[Reference, ...]:
    """The references in their order (K1).

    An item is exactly `{"device": NAME}` or `{"template": {"className": NAME, "count": N}}` (`count` defaults
    to 1, as in a GPUDevice). Any other key is refused, since a typing error would order something
    else. Raises `ReferencesError` with line and column, or with the item and the field.
    """
    if len(text) > MAX_CHARACTERS:
        raise _malformed(f"is longer than {MAX_CHARACTERS} characters")
    items = _load(text)
    if not isinstance(items, list) or isinstance(items, _Pairs):
        raise _malformed(f'must be a JSON list such as [{{"device": "NAME"}}], not {_kind(items)}')
    if not items:
        raise ReferencesError(
            Reason.MISSING_REFERENCES,
            f"annotation {DEVICES_ANNOTATION} is an empty list; name a device, or remove the annotation and "
            "the label of the same name",
        )
    if len(items) > MAX_REFERENCES:
        raise _malformed(f"has {len(items)} items, at most {MAX_REFERENCES} are allowed")
    references = tuple(_item(f"item {index}", item) for index, item in enumerate(items))
    _refuse_duplicates(references)
    return references


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys as written, so that repeated keys are detected."""


class _Constant:
    """NaN or Infinity, which Python's decoder reads and JSON does not have; kept, so that the error names its place."""

    def __init__(self, written: str) -> None:
        self.written = written


def _load(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_constant=_Constant, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise _malformed(f"is not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise _malformed("is nested too deeply") from None


def _whole(digits: str) -> int:
    """The first digits of a number: enough to tell that a long one is out of range, and Python converts no longer ones
    than 4300."""
    return int(digits[:_MAX_DIGITS])


def _item(where: str, item: Any) -> Reference:
    fields = _object(where, item)
    if sorted(fields) == ["device"]:
        return DeviceReference(_name(f"{where}, device", fields["device"]))
    if sorted(fields) == ["template"]:
        return _template(f"{where}, template", fields["template"])
    found = ", ".join(repr(key) for key in sorted(fields)) or "no key"
    raise _malformed(f'{where}: must have exactly one of the keys "device" and "template", it has {found}')


def _template(where: str, value: Any) -> TemplateReference:
    fields = _object(where, value)
    for key in sorted(fields):
        if key not in ("className", "count"):
            raise _malformed(f'{where}: unknown key {key!r}, a template has "className" and "count"')
    if "className" not in fields:
        raise _malformed(f'{where}: "className" is missing')
    return TemplateReference(
        _name(f"{where}, className", fields["className"]), _count(f"{where}, count", fields.get("count", 1))
    )


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, _Pairs):
        raise _malformed(f"{where}: must be an object, not {_kind(value)}")
    fields: dict[str, Any] = {}
    for key, content in value:
        if key in fields:
            raise _malformed(f"{where}: key {key!r} stands twice")
        fields[key] = content
    return fields


def _name(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _malformed(f"{where}: must be a name, not {_kind(value)}")
    if len(value) > _MAX_NAME or not _NAME.fullmatch(value):
        shown = value if len(value) <= 60 else value[:60] + "…"
        raise _malformed(
            f"{where}: {shown!r} is no object name (lower case letters, digits, '-' and '.', at most "
            f"{_MAX_NAME} characters)"
        )
    return value


def _count(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _malformed(f"{where}: must be a whole number, not {_kind(value)}")
    if not 1 <= value <= MAX_COUNT:
        raise _malformed(f"{where}: must be from 1 to {MAX_COUNT}")
    return value


def _refuse_duplicates(references: tuple[Reference, ...]) -> None:
    first: dict[str, int] = {}
    for index, reference in enumerate(references):
        if not isinstance(reference, DeviceReference):
            continue
        if reference.device in first:
            raise ReferencesError(
                Reason.DUPLICATE_REFERENCE,
                f"annotation {DEVICES_ANNOTATION}: items {first[reference.device]} and {index} both name "
                f"device {reference.device}; a device can be given to a VM once",
            )
        first[reference.device] = index


def _malformed(problem: str) -> ReferencesError:
    return ReferencesError(Reason.MALFORMED_REFERENCES, f"annotation {DEVICES_ANNOTATION}: {problem}")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, _Pairs):
        return "an object"
    if isinstance(value, _Constant):
        return f"{value.written}, which is no JSON value"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "a text", list: "a list", int: "a number", float: "a fraction"}
    return names.get(type(value), "that")
