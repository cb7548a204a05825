"""Targets: the references annotation (K1), Kubernetes quantities, and budgets in a release's values (R3, K3)."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import strategies as st

from journal import events
from reconciler.cluster.memory.manifests import release_body
from reconciler.core.model import wire
from reconciler.core.model.objects import RELEASE, Release
from reconciler.core.model.quantities import MAX_QUANTITY, QuantityError, quantity, whole_bytes, whole_units
from reconciler.core.model.references import DeviceReference, ReferencesError, parse_references
from reconciler.core.model.vocabulary import DEVICES_ANNOTATION
from reconciler.core.tenancy.tenants import parse_budgets
from tests.fuzz.mutations import ODD, bodies, values, written
from tests.fuzz.targets import Target

A10 = "nvidia.com/A10"
LISTS: list[Any] = [
    [{"device": "render-1"}],
    [{"device": "d1"}, {"template": {"className": "a10", "count": 2}}, {"template": {"className": "l4"}}],
    [{"template": {"className": "a-100.x", "count": 1024}}] * 3,
]
POSITION = re.compile(
    r"line \d+, column \d+|items? \d+|has \d+ items|must be a JSON list|is an empty list|is longer than \d+|nested too"
)
"""Where an error is; the last five are about the annotation as a whole."""


def check_references(text: str) -> None:
    """The text is read as it stands, or refused with the place of the error."""
    try:
        found = parse_references(text)
    except ReferencesError as error:
        assert error.reason and DEVICES_ANNOTATION in str(error)
        assert POSITION.search(str(error)), f"an error without a position: {error}"
        assert len(str(error)) < 2_000, "an error longer than anybody reads"
        str(error).encode()
        return
    again = [
        {"device": one.device}
        if isinstance(one, DeviceReference)
        else {"template": {"className": one.class_name, "count": one.count}}
        for one in found
    ]
    told = json.loads(text)
    for one in told:
        if "template" in one:
            one["template"].setdefault("count", 1)
    assert again == told


def check_quantity(value: Any) -> None:
    """A value is a bounded exact number or an error that names it."""
    for read in (quantity, whole_units, whole_bytes):
        try:
            found: Fraction | int = read(value)
        except QuantityError as error:
            assert len(str(error)) < 200
            str(error).encode()
            continue
        assert -MAX_QUANTITY <= found <= MAX_QUANTITY


QUOTAS: list[Any] = [
    {"gpu.cozystack.io/a10": "8", A10: 4, f"requests.{A10}": "2", "cpu": "10", "limits.gpu.cozystack.io/a10": 1.5},
    {"gpu.cozystack.io/a10": None, f"limits.{A10}": "1k", "gpu.cozystack.io/typo": 1, "NVIDIA.com/a10": "0"},
]
RELEASES: list[Any] = [
    {**body, "metadata": {**body["metadata"], "namespace": "tenant-root", "uid": "u-1", "resourceVersion": "7"}}
    for body in (release_body("tenant-acme", quotas) for quotas in QUOTAS)
]


def check_release(body: bytes) -> None:
    """Budgets are whole units, an error for their key, or an error for the whole; a journal keeps them as they are."""
    found = wire.decode_object(RELEASE, body)
    if isinstance(found, wire.Unreadable):
        assert found.error
        return
    assert isinstance(found, Release)
    told = budgets_of(found)
    for units in told.limits.values():
        assert isinstance(units, int) and 0 <= units <= MAX_QUANTITY
    assert not told.limits.keys() & told.unreadable.keys()
    assert all(told.unreadable.values())
    kept = msgspec.json.decode(journaled(found), type=Release)
    assert budgets_of(kept) == told, "the journal keeps another budget than was read"


def budgets_of(release: Release) -> Any:
    names = frozenset({A10})
    return parse_budgets(release.quotas, class_names={"a10"}, effective_names=names, error=release.error)


def journaled(release: Release) -> bytes:
    """The release as it comes back from a journal."""
    raw = msgspec.Raw(msgspec.json.encode(release))
    event = events.ObjectObserved(RELEASE.name, release.namespace, release.name, release.uid, "7", "watch", raw)
    again = events.decode(*events.encode(event))
    assert again == event
    return bytes(again.object)


annotations = (
    bodies(LISTS).map(lambda body: body.decode(errors="surrogateescape")) | st.text(max_size=40) | values.map(written)
)
quantities = (
    st.sampled_from(ODD)
    | st.from_regex(r"[+-]?[0-9]{0,30}\.?[0-9]{0,30}([eE][+-]?[0-9]{0,8}|[numkKMGTPE]i?)?", fullmatch=True)
    | values
)

REFERENCES = Target("references", annotations, check_references, 150)
QUANTITIES = Target("quantities", quantities, check_quantity, 150)
BUDGETS = Target("budgets", bodies(RELEASES), check_release, 100)
