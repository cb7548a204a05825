"""P3: an order or a start must leave every unplaced hold startable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.capacity.packing import Proof, packable, still_packable
from tests.core.twins import packing as twin

HISTOGRAMS = st.dictionaries(st.integers(1, 12), st.integers(1, 3), max_size=4)
FEW_ITEMS = HISTOGRAMS.filter(lambda items: sum(items.values()) <= 7)
FEW_BINS = HISTOGRAMS.filter(lambda bins: sum(bins.values()) <= 5)


@pytest.mark.parametrize(
    ("items", "bins", "proof"),
    [
        pytest.param({}, {}, Proof.YES, id="nothing held"),
        pytest.param({}, {8: 3}, Proof.YES, id="nothing held, free nodes"),
        pytest.param({1: 1}, {}, Proof.NO, id="no free unit"),
        pytest.param({4: 2}, {8: 1}, Proof.YES, id="two halves of a node"),
        pytest.param({8: 1}, {4: 2}, Proof.NO, id="no single node takes it"),
        pytest.param({4: 1, 8: 1}, {8: 1, 3: 1}, Proof.NO, id="one unit short in total"),
        pytest.param({5: 2}, {6: 1, 4: 1}, Proof.NO, id="enough in total, one hold too many"),
        pytest.param({3: 2, 2: 3}, {7: 1, 5: 1}, Proof.YES, id="full to the last unit"),
        pytest.param({5: 1, 4: 2, 3: 1}, {9: 1, 7: 1}, Proof.YES, id="the greedy answer alone would be no"),
        pytest.param({6: 2, 4: 3, 3: 2}, {10: 3}, Proof.YES, id="full to the last unit, three nodes"),
        pytest.param({6: 3, 5: 2}, {10: 3}, Proof.NO, id="every size fits alone, not together"),
        pytest.param({0: 5, 2: 0, 1: 1}, {0: 9, 1: 1, 4: 0}, Proof.YES, id="empty entries are nothing"),
    ],
)
def test_p3_packable(items: dict[int, int], bins: dict[int, int], proof: Proof) -> None:
    assert packable(items, bins) is proof
    assert twin.fits(items, bins) is (proof is Proof.YES)


@settings(max_examples=400, deadline=None)
@given(items=FEW_ITEMS, bins=FEW_BINS)
def test_p3_packable_agrees_with_trying_everything(items: dict[int, int], bins: dict[int, int]) -> None:
    expected = Proof.YES if twin.fits(items, bins) else Proof.NO
    assert packable(items, bins) is expected


@settings(max_examples=200, deadline=None)
@given(items=FEW_ITEMS, bins=FEW_BINS, budget=st.integers(0, 3))
def test_p3_a_small_search_budget_never_gives_a_wrong_answer(
    items: dict[int, int], bins: dict[int, int], budget: int
) -> None:
    proof = packable(items, bins, budget=budget)
    assert proof is Proof.UNPROVED or (proof is Proof.YES) is twin.fits(items, bins)


@given(
    st.lists(
        st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
        min_size=1,
        max_size=6,
    )
)
def test_p3_units_cut_from_nodes_are_never_refused_as_impossible(nodes: list[tuple[int, ...]]) -> None:
    """The holds are cut from the nodes, so a packing is known to exist."""
    items: dict[int, int] = {}
    bins: dict[int, int] = {}
    for holds in nodes:
        bins[sum(holds)] = bins.get(sum(holds), 0) + 1
        for hold in holds:
            items[hold] = items.get(hold, 0) + 1
    assert packable(items, bins) is not Proof.NO


def test_p3_ten_thousand_nodes_are_decided_without_a_search() -> None:
    """Sizes that divide each other need no state beyond the first, whatever the number of nodes."""
    bins = {1: 1_250, 2: 1_250, 4: 2_500, 7: 2_500, 8: 2_500}
    units = sum(free * count for free, count in bins.items())
    eights, sevens = bins[8], bins[7]
    held = {8: eights, 4: 2_500 + sevens, 2: 1_250 + sevens, 1: 1_250 + sevens}
    assert sum(size * count for size, count in held.items()) == units
    assert packable(held, bins, budget=0) is Proof.YES
    assert packable({**held, 8: eights + 1, 1: 1_250 + sevens - 8}, bins, budget=0) is Proof.NO


def test_p3_what_the_search_budget_does_not_reach_is_unproved() -> None:
    items, bins = {5: 1, 4: 2, 3: 1}, {9: 1, 7: 1}
    assert packable(items, bins, budget=0) is Proof.UNPROVED
    assert packable(items, bins, budget=100) is Proof.YES


def test_p3_a_change_keeps_the_holds_startable() -> None:
    assert still_packable({4: 1}, {8: 1}, {4: 2}, {8: 1})
    assert not still_packable({4: 2}, {8: 1}, {4: 3}, {8: 1})
    assert not still_packable({8: 1}, {8: 1, 1: 1}, {8: 1}, {7: 1, 1: 1})


def test_p3_holds_that_could_not_start_before_forbid_nothing() -> None:
    assert still_packable({8: 1}, {4: 1}, {8: 1}, {3: 1})
