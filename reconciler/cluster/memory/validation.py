"""Immutable fields and bounds of our own kinds (O1, O2), as far as the CRDs' schema and CEL rules state them.

Covers what callers of the in-memory cluster can violate; the real API server enforces the whole schema.
"""

from __future__ import annotations

from typing import Any

from reconciler.cluster.memory.json_objects import Document, qualified
from reconciler.cluster.port import Rejected
from reconciler.core.model.objects import CLASS, DEVICE, Kind
from reconciler.core.model.vocabulary import Mode

MAX_COUNT = 1024
_IMMUTABLE = {
    DEVICE.name: {
        "className": "className is immutable; order a new device of the other class",
        "count": "count is immutable; order a new device with the other count",
    },
    CLASS.name: {
        "resourceName": "resourceName is immutable; make a new class for another resource",
        "mode": "mode is immutable; make a new class for another mode",
    },
}


def validate(kind: Kind, new: Document, old: Document | None) -> None:
    """Raise `Rejected` (422) with every field that is wrong."""
    if kind.name not in _IMMUTABLE:
        return
    spec = new.get("spec")
    if not isinstance(spec, dict):
        raise _invalid(kind, new, ["spec: Required value"])
    problems = _device(spec) if kind.name == DEVICE.name else _class(spec)
    before = (old or {}).get("spec") or {}
    for field, message in _IMMUTABLE[kind.name].items():
        if field in before and spec.get(field) != before[field]:
            problems.append(f'spec.{field}: Invalid value: "{spec.get(field)}": {message}')
    if problems:
        raise _invalid(kind, new, problems)


def _invalid(kind: Kind, document: Document, problems: list[str]) -> Rejected:
    listed = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    group = f"{kind.name}.{kind.group}" if kind.group else qualified(kind)
    return Rejected(f'{group} "{document["metadata"].get("name", "")}" is invalid: {listed}')


def _device(spec: dict[str, Any]) -> list[str]:
    return _text(spec, "className") + _count(spec, "count")


def _class(spec: dict[str, Any]) -> list[str]:
    problems = _text(spec, "resourceName")
    name = spec.get("resourceName")
    if not problems and "/" not in str(name):
        problems.append(f'spec.resourceName: Invalid value: "{name}": must be an extended resource, DOMAIN/NAME')
    mode = spec.get("mode")
    if mode not in list(Mode):
        supported = ", ".join(f'"{known}"' for known in Mode)
        problems.append(f'spec.mode: Unsupported value: "{mode}": supported values: {supported}')
    return problems + (_count(spec, "maxCount") if "maxCount" in spec else [])


def _text(spec: dict[str, Any], field: str) -> list[str]:
    value = spec.get(field)
    if value is None:
        return [f"spec.{field}: Required value"]
    if not isinstance(value, str):
        return [f'spec.{field}: Invalid value: "{type(value).__name__}": must be of type string']
    return [] if value else [f'spec.{field}: Invalid value: "": should be at least 1 chars long']


def _count(spec: dict[str, Any], field: str) -> list[str]:
    value = spec.get(field)
    if not isinstance(value, int) or isinstance(value, bool):
        return [f'spec.{field}: Invalid value: "{type(value).__name__}": must be of type integer']
    if value < 1:
        return [f"spec.{field}: Invalid value: {value}: should be greater than or equal to 1"]
    if value > MAX_COUNT:
        return [f"spec.{field}: Invalid value: {value}: should be less than or equal to {MAX_COUNT}"]
    return []
