"""Quantities, effective requests, served units and what cards still give (K3, O3, R5, R6)."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.capacity import node_units, supply
from reconciler.core.model import quantities
from reconciler.core.model.objects import Function, GpuNode, Node, Profile
from reconciler.core.model.quantities import InitRequest
from reconciler.core.model.vocabulary import SCHEDULABLE_LABEL
from tests.core.twins import units as twin

R = "gpu.example/a"
S = "gpu.example/b"
T = "gpu.example/c"


def report(*functions: Function) -> GpuNode:
    return GpuNode(name="n1", uid="g1", functions=functions)


def node(allocatable: dict[str, int] | None, ready: bool = True) -> Node:
    return Node(name="n1", uid="u1", ready=ready, allocatable=allocatable)


def parent(id_: str, *profiles: tuple[str, int, int], healthy: bool = True) -> Function:
    return Function(
        id=id_, kind="MdevParent", healthy=healthy, profiles=tuple(Profile(*profile) for profile in profiles)
    )


def card(id_: str, name: str, healthy: bool = True) -> Function:
    return Function(id=id_, resource_name=name, healthy=healthy)


def virtual(id_: str, of: str, name: str) -> Function:
    return Function(id=id_, kind="VirtualFunction", parent=of, resource_name=name)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3),
        ("3", 3),
        ("+3", 3),
        ("-3", -3),
        ("3.", 3),
        (".5", Fraction(1, 2)),
        ("2500m", Fraction(5, 2)),
        ("7u", Fraction(7, 10**6)),
        ("7n", Fraction(7, 10**9)),
        ("1k", 1000),
        ("1M", 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1Ki", 1024),
        ("1.5Mi", 3 * 2**19),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        ("2e3", 2000),
        ("2E3", 2000),
        ("2E-1", Fraction(1, 5)),
        ("2e+1", 20),
        (0.1, Fraction(1, 10)),
        (1e3, 1000),
        ("8Ei", quantities.MAX_QUANTITY),
        ("-1e999999999999", -quantities.MAX_QUANTITY),
        (10**30, quantities.MAX_QUANTITY),
    ],
)
def test_every_form_of_a_quantity_is_exact(value: str | int | float, number: Fraction) -> None:
    assert quantities.quantity(value) == number


@pytest.mark.parametrize(
    "value",
    ["", " 1", "1 ", "1\n", "1ki", "1K", "1mi", "one", "1e", "1ee3", "--1", "0x10", "1_000", "１", "1e3k",
     ".", "1.2.3", "NaN", True, False, float("inf"), float("nan"), None, [1], {"a": 1}, "9" * 300],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_by_name(value: object) -> None:
    """R3: an unreadable budget is an error that shows the value, never a limit and never none."""
    with pytest.raises(quantities.QuantityError) as error:
        quantities.whole_units(value)  # type: ignore[arg-type]
    assert repr(value)[:60] in str(error.value)


@given(
    number=st.from_regex(r"[+-]?[0-9]{1,20}(\.[0-9]{0,12})?", fullmatch=True),
    suffix=st.sampled_from([*twin.BINARY, *twin.DECIMAL])
    | st.builds("{}{}".format, st.sampled_from("eE"), st.integers(-40, 40)),
)
def test_quantities_agree_with_decimal_arithmetic(number: str, suffix: str) -> None:
    expected = twin.quantity(number, suffix)
    assert quantities.quantity(number + suffix) == Fraction(*Decimal(expected).as_integer_ratio())


@pytest.mark.parametrize(("value", "count"), [("1999m", 1), ("0", 0), ("-0", 0), (2.9, 2), ("1e-30", 0), ("1k", 1000)])
def test_a_fraction_of_a_budget_rounds_down(value: str | float, count: int) -> None:
    """K3."""
    assert quantities.whole_units(value) == count


@pytest.mark.parametrize("value", ["-1", -1, -0.5, "-1m", pytest.param(-(10**5000), id="huge")])
def test_a_negative_budget_is_an_error(value: str | float) -> None:
    """K3: below nothing is not a limit."""
    with pytest.raises(quantities.QuantityError, match="negative"):
        quantities.whole_units(value)


def test_memory_rounds_up() -> None:
    assert quantities.whole_bytes("1500m") == 2
    assert quantities.whole_bytes("1Gi") == 2**30


def test_init_containers_and_sidecars_as_the_scheduler_counts_them_c04() -> None:
    """C04, R6: max(steady 1+1, peak at ic2 1+2), and with the sidecar after ic2 max(2, 2)."""
    ic1, side, ic2 = InitRequest({R: 1}), InitRequest({R: 1}, sidecar=True), InitRequest({R: 2})
    assert quantities.effective_request([{R: 1}], [ic1, side, ic2]) == {R: 3}
    assert quantities.effective_request([{R: 1}], [ic1, ic2, side]) == {R: 2}


def test_overhead_comes_on_top_and_resources_do_not_mix() -> None:
    """R6."""
    assert quantities.effective_request([{R: 1}, {S: 2}], [InitRequest({T: 4})], {"memory": 5}) == {
        R: 1,
        S: 2,
        T: 4,
        "memory": 5,
    }


@given(
    containers=st.lists(st.integers(0, 5), max_size=4),
    inits=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=5),
)
def test_effective_request_is_the_highest_moment_of_the_pod(
    containers: list[int], inits: list[tuple[int, bool]]
) -> None:
    """R6."""
    request = quantities.effective_request(
        [{R: amount} for amount in containers],
        [InitRequest({R: amount}, sidecar) for amount, sidecar in inits],
    )
    assert request.get(R, 0) == twin.effective_request(containers, inits)


def test_companion_functions_are_no_gpus_c34() -> None:
    """C34, O3: two display and two audio functions serve two units, whatever the node's number says."""
    found = report(card("0000:3b:00.0", R), card("0000:3b:00.1", ""), card("0000:5e:00.0", R), card("0000:5e:00.1", ""))
    assert supply.served(node({R: 4}), found, True, R) == 2


def test_a_fresh_report_counts_before_the_node() -> None:
    """R5, C01, C27: neither a zero after a kubelet restart nor a ghost above the report is believed."""
    found = report(card("f1", R), card("f2", R))
    assert supply.served(node({R: 0}), found, True, R) == 2
    assert supply.served(node({R: 2}), report(card("f1", R)), True, R) == 1
    assert supply.served(node({R: 2}), report(card("f1", R, healthy=False)), True, R) == 0
    assert supply.served(node(None), found, True, R) == 2
    assert supply.served(node({R: 2}, ready=False), found, True, R) == 2


def test_where_no_report_speaks_the_node_does() -> None:
    """R5, C05: a stale report is not read, a name it does not know neither."""
    found = report(card("f1", R))
    assert supply.served(node({R: 2}), found, False, R) == 2
    assert supply.served(node({S: 3}), found, True, S) == 3
    assert supply.served(node({}), None, False, R) == 0
    assert supply.served(node({"": 3}), report(card("f1", "")), True, "") == 3


def test_silence_is_unknown_and_not_zero() -> None:
    """R5: NotReady, a stale report, a missing status."""
    assert supply.served(node({R: 2}, ready=False), None, False, R) is None
    assert supply.served(node({R: 2}, ready=False), report(card("f1", R)), False, R) is None
    assert supply.served(node(None), None, False, R) is None


def test_a_parent_serves_slots_in_use_and_slots_left() -> None:
    """R5; virtual functions without a type serve nothing of it (C31)."""
    found = report(parent("p0", (R, 1, 2), (S, 0, 1)), parent("p1", (R, 3, 0), healthy=False), card("v0", ""))
    assert supply.served(node({}), found, True, R) == 3
    assert supply.used(found, R) == 4
    assert supply.covers_name(found, R)
    assert not supply.covers_name(found, T)


def test_granting_one_type_lowers_its_siblings_at_once() -> None:
    """O3: a unit of the large type takes half the small ones; the next report is not subtracted again."""
    assert supply.shared_remaining(report(parent("p0", (R, 0, 2), (S, 0, 8))), {R: 1}) == {R: 1, S: 4}
    after = report(parent("p0", (R, 1, 1), (S, 0, 4)))
    pending = {R: max(0, 1 - supply.used(after, R))}
    assert supply.shared_remaining(after, pending) == {R: 1, S: 4}


def test_pending_units_land_where_the_other_type_loses_most() -> None:
    """O3: of two parents the one that costs four small slots is assumed, then the one that costs two."""
    found = report(parent("p0", (R, 0, 2), (S, 0, 8)), parent("p1", (R, 0, 1), (S, 0, 2)))
    assert supply.shared_remaining(found, {R: 1}) == {R: 2, S: 5}, "six could land first and leave R nothing"
    assert supply.shared_remaining(found, {R: 3}) == {R: 0, S: 0}


def test_a_grant_leaves_room_for_what_is_pending_of_its_siblings() -> None:
    """O3: two small units could start first, one on each card, and the large one promised before finds no room."""
    found = report(parent("p0", (R, 0, 1), (S, 0, 2)), parent("p1", (R, 0, 1), (S, 0, 2)))
    assert supply.shared_remaining(found, {R: 1}) == {R: 1, S: 1}
    cards = report(card("c0", R), virtual("v0", "c0", S), card("c1", R), virtual("v1", "c1", S))
    assert supply.shared_remaining(cards, {R: 1}) == {R: 1, S: 1}


def test_small_units_take_a_large_one_only_once_they_fill_it() -> None:
    """O3: four small slots are one large one, wherever the first of them lands."""
    found = report(parent("p0", (R, 0, 2), (S, 0, 8)))
    assert [supply.shared_remaining(found, {S: count})[R] for count in (1, 4, 5, 8)] == [1, 1, 0, 0]
    assert supply.shared_remaining(found, {R: 1}) == {R: 1, S: 4}


def test_slots_that_exist_and_nobody_holds_are_free_for_their_own_name() -> None:
    """O3, R9: slots made in advance, or left in the report by a VM that is gone, are no loss."""
    found = report(parent("p0", (R, 2, 0), (S, 0, 0)))
    assert supply.shared_remaining(found, {R: -2}) == {R: 2, S: 0}


def test_a_unit_that_does_not_run_yet_is_in_no_report() -> None:
    """O3: the two slots in use were another VM's; the two units placed now may land on the other card."""
    found = report(parent("p0", (R, 0, 0), (S, 2, 0)), parent("p1", (R, 0, 1), (S, 0, 2)))
    assert supply.shared_remaining(found, {S: 0}, {S: 2}) == {R: 0, S: 2}


@pytest.mark.parametrize("fresh", [True, False])
def test_types_share_their_memory_also_while_the_agent_is_silent(fresh: bool) -> None:
    """O3, R5: allocatable counts for what is served, and both types are in it in full."""
    found = report(parent("p0", (R, 0, 2), (S, 0, 8)))
    node = Node(name="n1", uid="u-n1", ready=True, allocatable={R: 2, S: 8}, labels={SCHEDULABLE_LABEL: "true"})
    usage = node_units.Usage(placed={R: 1}, absent={R: 1})
    account = node_units.account(node, found, fresh, usage, {}, {R, S}, (R, S))
    assert {name: units.free for name, units in account.items()} == {R: 1, S: 4}


def test_a_card_and_its_virtual_functions_exclude_each_other() -> None:
    """O3: a taken card takes its functions, a taken function its card, siblings stay."""
    found = report(
        card("0000:3b:00.0", R),
        virtual("0000:3b:00.1", "0000:3B:00.0", S),
        virtual("0000:3b:00.2", "00000000:3b:00.0", S),
        virtual("0000:3b:00.3", "0000:3b:00.0", T),
    )
    assert supply.shared_remaining(found, {}) == {R: 1, S: 2, T: 1}
    assert supply.shared_remaining(found, {R: 1}) == {R: 0, S: 0, T: 0}
    assert supply.shared_remaining(found, {S: 1}) == {R: 0, S: 1, T: 1}


def test_a_card_alone_adds_to_a_shared_name() -> None:
    """O3: a name counts cards that share it with nobody; a name that never shares is not in the answer."""
    found = report(card("c0", R), virtual("v0", "c0", S), card("c1", R), card("c2", T))
    assert supply.shared_remaining(found, {}) == {R: 2, S: 1}
    assert supply.shared_remaining(found, {S: 1}) == {R: 0, S: 0}, "the next whole card could be the one S needs"


def test_a_card_whose_memory_is_in_use_is_not_given_whole() -> None:
    """O3."""
    both = Function(id="p0", kind="MdevParent", resource_name=R, profiles=(Profile(S, 1, 3),))
    assert supply.shared_remaining(report(both), {}) == {R: 0, S: 3}
    free = Function(id="p0", kind="MdevParent", resource_name=R, profiles=(Profile(S, 0, 4),))
    assert supply.shared_remaining(report(free), {R: 1}) == {R: 0, S: 0}


def test_unhealthy_parents_give_nothing() -> None:
    """R5, O3."""
    found = report(parent("p0", (R, 0, 2)), parent("p1", (R, 0, 2), healthy=False))
    assert supply.shared_remaining(found, {R: 1}) == {R: 1}


slots = st.fixed_dictionaries({}, optional=dict.fromkeys((R, S, T), st.integers(0, 4)))
pendings = st.fixed_dictionaries({}, optional=dict.fromkeys((R, S, T), st.integers(0, 4)))


def parents(remaining: list[dict[str, int]]) -> list[Function]:
    return [
        parent(f"p{place}", *((name, 0, left) for name, left in sorted(types.items())))
        for place, types in enumerate(remaining)
    ]


@given(remaining=st.lists(slots, min_size=1, max_size=3), pending=pendings)
def test_shared_remaining_never_promises_too_much(remaining: list[dict[str, int]], pending: dict[str, int]) -> None:
    """O3: never above the worst of all distributions."""
    functions = parents(remaining)
    worst = twin.shared_remaining(functions, pending)
    answer = supply.shared_remaining(report(*functions), pending)
    assert answer.keys() == worst.keys()
    assert all(answer[name] <= worst[name] for name in worst)


@given(remaining=slots, pending=pendings)
def test_shared_remaining_is_exact_on_one_parent(remaining: dict[str, int], pending: dict[str, int]) -> None:
    """O3."""
    functions = parents([remaining])
    assert supply.shared_remaining(report(*functions), pending) == twin.shared_remaining(functions, pending)


@given(remaining=st.lists(slots, min_size=1, max_size=3), taken=st.sampled_from((R, S)), count=st.integers(1, 4))
def test_shared_remaining_is_exact_for_one_pending_type(
    remaining: list[dict[str, int]], taken: str, count: int
) -> None:
    """O3: the greedy choice of parents is the worst one, so a lower bound is not merely zero."""
    functions = parents(remaining)
    worst = twin.shared_remaining(functions, {taken: count})
    assert supply.shared_remaining(report(*functions), {taken: count}) == worst


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0000:3b:00.0", "0000:3B:00.0"),
        ("0000:3b:00.0", "00000000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("00010000:3B:00.0", "10000:3b:00.0"),
    ],
)
def test_addresses_compare_without_case_and_domain_width_c28(first: str, second: str) -> None:
    """C28."""
    assert supply.same_function(card(first, R), card(second, R))


def test_a_card_is_followed_by_its_stable_id_c28() -> None:
    """C28: G1 moves to another address, another model takes its old one."""
    before = Function(id="0000:3b:00.0", stable_id="u1", resource_name=R)
    moved = Function(id="0000:5e:00.0", stable_id="U1", resource_name=R)
    other = Function(id="0000:3b:00.0", stable_id="u9", resource_name=S)
    assert supply.same_function(before, moved)
    assert not supply.same_function(before, other)


def test_without_a_stable_id_the_address_must_serve_the_same_c28() -> None:
    """C28, variant: the same address with another model is not the same function."""
    assert not supply.same_function(card("0000:3b:00.0", R), card("0000:3b:00.0", S))
    assert not supply.same_function(card("0000:3b:00.0", R), virtual("0000:3b:00.0", "", R))
    assert not supply.same_function(card("0000:3b:00.0", R), card("0000:3b:00.1", R))
    assert not supply.same_function(parent("p0", (R, 0, 1)), parent("p0", (S, 0, 1)))
    assert supply.same_function(parent("p0", (R, 0, 1), (S, 1, 0)), parent("p0", (R, 1, 0)))


def test_a_stable_id_that_names_a_model_does_not_name_a_card() -> None:
    """C28: two cards of one model carry the same vendor and device id."""
    first = Function(id="0000:3b:00.0", stable_id="10de:2236", resource_name=R)
    second = Function(id="0000:5e:00.0", stable_id="10de:2236", resource_name=R)
    assert not supply.same_function(first, second)
    assert supply.same_function(first, first)
