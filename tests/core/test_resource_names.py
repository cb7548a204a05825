"""Effective and permitted resource names (R1, O1, K4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.model import resource_names
from reconciler.core.model.objects import Function, GpuNode, PermittedDevice, Profile

MEDIATED = PermittedDevice("nvidia.com/A40-24Q", mediated=True)
CARD = PermittedDevice("nvidia.com/A40", vendor="10de")
NETWORK = PermittedDevice("intel.com/vf", vendor="8086")


def test_all_four_sources_count() -> None:
    """R1."""
    found = resource_names.effective_names(["h/x", ""], ["c/x"], ["r/x", "c/x"], [MEDIATED, CARD, NETWORK])
    assert found == ("c/x", "h/x", "nvidia.com/A40", "nvidia.com/A40-24Q", "r/x")


@pytest.mark.parametrize("hoster", [[], ["h/x"]])
def test_permitted_gpus_count_whether_the_hoster_lists_names_or_not(hoster: list[str]) -> None:
    """R1."""
    found = resource_names.effective_names(hoster, [], [], [MEDIATED, CARD])
    assert set(found) == {MEDIATED.resource_name, CARD.resource_name, *hoster}


@pytest.mark.parametrize("vendor", ["10DE", "10de", "10De"])
def test_the_vendor_is_read_in_any_case(vendor: str) -> None:
    """R1."""
    assert resource_names.effective_names([], [], [], [PermittedDevice("n/x", vendor=vendor)]) == ("n/x",)


def test_another_vendor_is_no_gpu_but_is_permitted() -> None:
    """R1, O1: a network function stays out of the set and a class may still name it."""
    assert resource_names.effective_names([], [], [], [NETWORK]) == ()
    assert resource_names.permitted_names([NETWORK, CARD]) == {"intel.com/vf", "nvidia.com/A40"}


def test_another_vendors_mediated_entry_is_a_gpu() -> None:
    """R1: every mediated entry counts."""
    assert resource_names.effective_names([], [], [], [PermittedDevice("intel.com/gvt", mediated=True)])


def test_a_report_speaks_of_functions_and_types_but_not_of_companions() -> None:
    """O3, C34."""
    report = GpuNode(
        name="n1",
        uid="g1",
        functions=(
            Function(id="0000:3b:00.0", resource_name="b/x"),
            Function(id="0000:3b:00.1"),
            Function(id="0000:5e:00.0", kind="MdevParent", healthy=False, profiles=(Profile("a/x"),)),
        ),
    )
    assert resource_names.reported_names(report) == ("a/x", "b/x")


@given(st.permutations(["b/x", "a/x", "c/x", "a/x"]))
def test_what_is_published_does_not_depend_on_order(found: list[str]) -> None:
    """K4: sorted and comma-joined."""
    assert resource_names.published(found) == "a/x,b/x,c/x"
