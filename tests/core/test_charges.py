"""R4, W4, C11: what a tenant and those above it are charged, and what a budget refuses."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.tenancy.charges import BudgetRefusal, BudgetUnreadable, ChargeTree, Headroom, Level
from reconciler.core.tenancy.tenants import BudgetKey, Budgets, class_key, owned_namespace, parent_of, raw_key
from tests.core.twins.charges import Facts

R, S = raw_key("nvidia.com/A"), class_key("a")


def tree(
    tenants: dict[tuple[str, str], dict[BudgetKey, int] | None], usage: dict[str, int] | None = None
) -> ChargeTree:
    """(release namespace, release name) to budgets, namespace to units of R."""
    charges = ChargeTree()
    for (space, name), limits in tenants.items():
        owned = owned_namespace(space, name)
        assert owned is not None
        charges.add_tenant(owned, parent_of(space, name))
        charges.set_budgets(owned, Budgets(limits=limits or {}))
    for namespace, units in (usage or {}).items():
        charges.add_usage(namespace, R, units)
    return charges


ROOT = ("tenant-root", "tenant-root")
A, B, C = ("tenant-root", "tenant-a"), ("tenant-a", "tenant-b"), ("tenant-a", "tenant-c")


def test_r4_a_childs_budget_is_set_aside_whole() -> None:
    charges = tree({ROOT: {R: 10}, A: {R: 4}, B: None}, {"tenant-a": 1, "tenant-a-b": 2})
    assert charges.charge("tenant-a-b", R) == 2
    assert charges.charge("tenant-a", R) == 3
    assert charges.charge("tenant-root", R) == 4
    assert charges.usage("tenant-a", R) == 1
    charges.add_usage("tenant-a-b", R, 3)
    assert charges.charge("tenant-root", R) == 6, "a child over its budget is charged for all it uses"


def test_r4_a_refusal_names_tenant_budget_charge_and_request() -> None:
    charges = tree({ROOT: None, A: {R: 3}, B: None}, {"tenant-a": 1, "tenant-a-b": 1})
    assert charges.check("tenant-a-b", {R: 1}) is None
    refusal = charges.check("tenant-a-b", {R: 3})
    assert refusal == BudgetRefusal("tenant-a", R, budget=3, charge=2, request=3, missing=2)
    assert refusal is not None
    for said in ("tenant-a", "budget of 3", "nvidia.com/A", "2 of it used", "3 more", "2 too many"):
        assert said in refusal.message


def test_r4_a_tenant_over_its_budget_refuses_growth_only() -> None:
    charges = tree({A: {R: 1}}, {"tenant-a": 3})
    assert charges.check("tenant-a", {R: 0}) is None
    assert charges.check("tenant-a", {S: 5}) is None
    refusal = charges.check("tenant-a", {R: 1})
    assert isinstance(refusal, BudgetRefusal)
    assert (refusal.charge, refusal.missing) == (3, 3)


def test_k3_a_budget_of_zero_allows_nothing() -> None:
    charges = tree({A: {R: 0}})
    assert isinstance(charges.check("tenant-a", {R: 1}), BudgetRefusal)
    assert charges.headroom("tenant-a", R) == Headroom(0, "tenant-a")


def test_c11_a_child_without_budget_does_not_escape_its_parents() -> None:
    charges = tree({A: {R: 2}, B: None, C: None}, {"tenant-a": 1, "tenant-a-b": 1})
    refusal = charges.check("tenant-a-c", {R: 1})
    assert refusal == BudgetRefusal("tenant-a", R, budget=2, charge=2, request=1, missing=1)
    assert charges.headroom("tenant-a-c", R) == Headroom(0, "tenant-a")
    charges.add_usage("tenant-a-b", R, -1)
    charges.remove_tenant("tenant-a-b")
    assert charges.check("tenant-a-c", {R: 1}) is None


def test_c11_a_child_with_more_than_its_parent_has_starves_its_siblings_not_the_cloud() -> None:
    """R4 sets c's five aside in a's two: c's own orders raise no charge of a, every other order below a does.
    W4 refuses such a budget at its source."""
    charges = tree({A: {R: 2}, B: None, C: {R: 5}}, {"tenant-a": 1, "tenant-a-b": 1})
    assert charges.charge("tenant-a", R) == 7
    assert charges.check("tenant-a-c", {R: 5}) is None
    assert isinstance(charges.check("tenant-a-b", {R: 1}), BudgetRefusal)
    refusal = charges.check_child_budget("tenant-a", "tenant-a-d", R, 5)
    assert isinstance(refusal, BudgetRefusal)


def test_c11_use_in_a_removed_tenants_namespace_counts_until_it_is_gone() -> None:
    charges = tree({A: {R: 2}, B: {R: 2}}, {"tenant-a-b": 1})
    assert charges.charge("tenant-a", R) == 2
    charges.remove_tenant("tenant-a-b")
    assert charges.charge("tenant-a", R) == 1, "its budget is given back at once, its use is not"
    charges.add_usage("tenant-a-b", R, -1)
    assert charges.charge("tenant-a", R) == 0


def test_r4_a_namespace_outside_the_tree_stands_alone() -> None:
    charges = tree({ROOT: {R: 1}}, {"default": 5})
    assert charges.path("default") == ["default"]
    assert charges.check("default", {R: 100}) is None
    assert charges.headroom("default", R) == Headroom(None)
    assert charges.charge("default", R) == 5
    assert charges.charge("tenant-root", R) == 0


def test_r4_a_namespace_known_by_name_only_counts_above_and_takes_nothing_new() -> None:
    """What runs there is charged to those above; a new request fails closed, for its own budget is not known."""
    charges = tree({A: {R: 3}}, {"tenant-a-x-y": 2})
    assert charges.path("tenant-a-x-y") == ["tenant-a-x-y", "tenant-a", "tenant-root"]
    assert charges.charge("tenant-a", R) == 2
    refusal = charges.check("tenant-a-x-y", {R: 1})
    assert isinstance(refusal, BudgetUnreadable)
    assert (refusal.tenant, refusal.release) == ("tenant-a-x-y", "tenant-a/tenant-x-y")
    assert charges.headroom("tenant-a-x-y", R) == Headroom(0, "tenant-a-x-y")


def test_r4_a_chain_with_a_missing_release_fails_closed_and_names_it() -> None:
    """A tenant below a namespace of which no release is known: nothing says what those above it may use."""
    z = ("tenant-missing", "tenant-z")
    charges = tree({ROOT: {R: 9}, A: None, z: {R: 5}})
    for refusal in (
        charges.check("tenant-missing-z", {R: 1}),
        charges.check("tenant-missing-z", {S: 1}),
        charges.check_child_budget("tenant-missing", "tenant-missing-z", R, 6),
        *charges.refusals("tenant-missing-z", {R: 1}),
    ):
        assert isinstance(refusal, BudgetUnreadable)
        assert refusal.release == "tenant-root/tenant-missing"
        for said in (refusal.message, refusal.public("tenant-missing-z")):
            assert "HelmRelease" in said and "tenant-root/tenant-missing" in said
        assert "missing" not in refusal.public("tenant-other")
    assert charges.headroom("tenant-missing-z", R) == Headroom(0, "tenant-missing")
    assert [bool(level.error) for level in charges.chain("tenant-missing-z", R)] == [False, True, False]
    assert charges.check("tenant-a", {R: 1}) is None
    charges.add_tenant("tenant-missing", "tenant-root")
    assert charges.check("tenant-missing-z", {R: 1}) is None


def test_r4_where_no_tenant_has_a_release_there_is_no_tree() -> None:
    assert ChargeTree().check("tenant-a", {R: 1}) is None
    assert tree({ROOT: None}).check("default", {R: 1}) is None


def test_r9_a_release_that_comes_after_its_children_gives_the_same_tree() -> None:
    early = tree({A: {R: 5}, B: {R: 1}}, {"tenant-a-b-z": 2})
    late = tree({}, {"tenant-a-b-z": 2})
    for space, name, limit in (("tenant-a", "tenant-b", 1), ("tenant-root", "tenant-a", 5)):
        owned = owned_namespace(space, name)
        assert owned is not None
        late.add_tenant(owned, parent_of(space, name))
        late.set_budgets(owned, Budgets(limits={R: limit}))
    for namespace in ("tenant-a-b-z", "tenant-a-b", "tenant-a", "tenant-root"):
        assert late.chain(namespace, R) == early.chain(namespace, R)


def test_r2_a_tenant_moves_when_another_release_owns_its_namespace() -> None:
    charges = tree({A: {R: 5}, B: None}, {"tenant-a-b": 2})
    assert charges.charge("tenant-a", R) == 2
    charges.add_tenant("tenant-a-b", "tenant-root")
    assert charges.charge("tenant-a", R) == 0
    assert charges.charge("tenant-root", R) == 5 + 2


def test_r3_an_unreadable_budget_refuses_what_it_would_bound() -> None:
    """Whatever a nearer budget has left; other keys pass, and so do tenants beside it."""
    charges = tree({ROOT: None, A: None, B: {R: 5}, ("tenant-root", "tenant-z"): None})
    charges.set_budgets("tenant-a", Budgets(unreadable={R: "resourceQuotas['nvidia.com/A']: 'x' is no number"}))
    refusal = charges.check("tenant-a-b", {R: 1})
    assert isinstance(refusal, BudgetUnreadable)
    assert (refusal.tenant, refusal.key) == ("tenant-a", R)
    assert "tenant-a" in refusal.message
    assert "nvidia.com/A" in refusal.message
    assert "'x'" in refusal.message
    assert charges.headroom("tenant-a-b", R) == Headroom(0, "tenant-a")
    assert charges.check("tenant-a-b", {S: 1}) is None
    assert charges.check("tenant-z", {R: 1}) is None
    assert isinstance(charges.check_child_budget("tenant-a", "tenant-a-b", R, 6), BudgetUnreadable)
    assert charges.check_child_budget("tenant-a", "tenant-a-b", R, 4) is None


def test_r3_a_map_that_cannot_be_read_bounds_every_key() -> None:
    charges = tree({A: None, B: None})
    charges.set_budgets("tenant-a", Budgets(error="spec.values is a list"))
    for key in (R, S):
        assert charges.check("tenant-a-b", {key: 1}) == BudgetUnreadable("tenant-a", key, "spec.values is a list")


def test_r3_unreadable_comes_before_exceeded() -> None:
    charges = tree({A: {S: 0}})
    charges.set_budgets("tenant-a", Budgets(limits={S: 0}, unreadable={R: "no number"}))
    assert isinstance(charges.check("tenant-a", {S: 1}), BudgetRefusal)
    assert isinstance(charges.check("tenant-a", {R: 1, S: 1}), BudgetUnreadable)


def test_j7_the_chain_shows_every_budget_on_the_way_up() -> None:
    charges = tree({ROOT: {R: 8}, A: None, B: {R: 1}}, {"tenant-a": 1, "tenant-a-b": 3})
    assert charges.chain("tenant-a-b", R) == [
        Level("tenant-a-b", 1, 3, 0),
        Level("tenant-a", None, 4, None),
        Level("tenant-root", 8, 4, 4),
    ]


def test_w4_a_childs_budget_fits_what_every_tenant_above_has_left() -> None:
    charges = tree({ROOT: {R: 4}, A: None, B: {R: 1}}, {"tenant-a": 1})
    assert charges.check_child_budget("tenant-a", "tenant-a-b", R, 3) is None
    refusal = charges.check_child_budget("tenant-a", "tenant-a-b", R, 5)
    assert refusal == BudgetRefusal(
        "tenant-root", R, budget=4, charge=2, request=4, missing=2, child="tenant-a-b", child_budget=5
    )
    assert refusal is not None
    assert "tenant-a-b" in refusal.message
    assert charges.check_child_budget("tenant-a", "tenant-a-new", R, 2) is None
    assert isinstance(charges.check_child_budget("tenant-a", "tenant-a-new", R, 3), BudgetRefusal)


def test_w4_a_new_tenant_takes_over_what_is_left_in_namespaces_below_its_name() -> None:
    charges = tree({ROOT: {R: 3}}, {"tenant-b-a": 1})
    assert charges.charge("tenant-root", R) == 1
    assert charges.check_child_budget("tenant-root", "tenant-b", R, 3) is None
    refusal = charges.check_child_budget("tenant-root", "tenant-b", R, 4)
    assert isinstance(refusal, BudgetRefusal)
    assert (refusal.charge, refusal.request, refusal.missing) == (1, 3, 1)


def test_w4_use_that_hangs_elsewhere_until_the_release_comes_counts_as_new() -> None:
    charges = tree({ROOT: {R: 6}, A: {R: 4}}, {"tenant-a-b": 1})
    assert charges.path("tenant-a-b")[1] == "tenant-a"
    assert charges.check_child_budget("tenant-root", "tenant-a-b", R, 2) is None
    refusal = charges.check_child_budget("tenant-root", "tenant-a-b", R, 3)
    assert isinstance(refusal, BudgetRefusal)
    assert (refusal.charge, refusal.request, refusal.missing) == (4, 3, 1)


def test_w4_less_is_always_allowed() -> None:
    charges = tree({A: {R: 2}, B: {R: 5}}, {"tenant-a-b": 4})
    for budget in (None, 0, 4, 5):
        assert charges.check_child_budget("tenant-a", "tenant-a-b", R, budget) is None
    assert isinstance(charges.check_child_budget("tenant-a", "tenant-a-b", R, 6), BudgetRefusal)


@pytest.mark.parametrize(
    ("parent", "namespace"),
    [
        (None, "tenant-a"),
        ("tenant-root", "tenant-root"),
        ("tenant-a", "tenant-a"),
        ("tenant-a", "tenant-ab"),
        ("tenant-a-b", "tenant-a"),
        ("tenant-root", "default"),
    ],
)
def test_r2_a_parent_that_cannot_own_the_namespace_is_refused(parent: str | None, namespace: str) -> None:
    with pytest.raises(ValueError, match=namespace):
        ChargeTree().add_tenant(namespace, parent)


def test_more_cannot_be_given_back_than_is_used() -> None:
    charges = tree({A: None}, {"tenant-a": 1})
    with pytest.raises(ValueError, match="tenant-a uses 1 of"):
        charges.add_usage("tenant-a", R, -2)
    with pytest.raises(ValueError, match="tenant-b"):
        charges.set_budgets("tenant-b", Budgets())
    assert charges.usage("tenant-a", R) == 1


RELEASES = [
    ROOT,
    *(
        (space, name)
        for space in ("tenant-root", "tenant-a", "tenant-a-b", "tenant-b")
        for name in ("tenant-a", "tenant-b", "tenant-a-b")
    ),
]
OWNERS = {owned_namespace(*release): release for release in RELEASES}
"""One release per namespace; which of two owns it is decided before (Claims)."""
NAMESPACES = [*sorted(owned for owned in OWNERS if owned), "tenant-a-b-x", "tenant-b-b-y-z", "other"]
KEYS = [R, S]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("release"),
            st.sampled_from(sorted(OWNERS.values())),
            st.dictionaries(st.sampled_from(KEYS), st.integers(0, 6)),
        ),
        st.tuples(st.just("remove"), st.sampled_from(sorted(OWNERS.values())), st.none()),
        st.tuples(
            st.just("use"),
            st.sampled_from(NAMESPACES),
            st.tuples(st.sampled_from(KEYS), st.integers(-3, 4)),
        ),
    ),
    max_size=25,
)


def follow(steps: list[Any]) -> tuple[ChargeTree, Facts]:
    charges, facts = ChargeTree(), Facts()
    for kind, subject, value in steps:
        if kind == "use":
            key, delta = value
            used = facts.usage.setdefault(subject, {})
            delta = max(delta, -used.get(key, 0))
            used[key] = used.get(key, 0) + delta
            charges.add_usage(subject, key, delta)
            continue
        owned = owned_namespace(*subject)
        assert owned is not None
        if kind == "release":
            facts.releases[subject] = value
            charges.add_tenant(owned, parent_of(*subject))
            charges.set_budgets(owned, Budgets(limits=value))
        else:
            facts.releases.pop(subject, None)
            charges.remove_tenant(owned)
    return charges, facts


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_r4_charges_agree_with_a_sum_from_scratch(steps: list[Any]) -> None:
    charges, facts = follow(steps)
    for namespace in NAMESPACES:
        assert charges.path(namespace) == facts.path(namespace)
        for key in KEYS:
            assert charges.charge(namespace, key) == facts.charge(namespace, key), (namespace, key)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from(NAMESPACES), st.sampled_from(KEYS), st.integers(1, 8))
def test_r4_a_request_is_refused_just_where_the_rule_says(
    steps: list[Any], namespace: str, key: BudgetKey, units: int
) -> None:
    charges, facts = follow(steps)
    expected = facts.exceeded(facts.with_usage(namespace, key, units), namespace, key)
    refusal = charges.check(namespace, {key: units})
    if (missing := facts.missing(namespace)) is not None:
        assert isinstance(refusal, BudgetUnreadable) and refusal.tenant == missing
    elif expected is None:
        assert refusal is None
    else:
        assert isinstance(refusal, BudgetRefusal)
        assert (refusal.tenant, refusal.budget, refusal.charge) == expected[:3]
        assert refusal.request == units
        assert refusal.missing == expected.after - expected.budget


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from(NAMESPACES), st.sampled_from(KEYS))
def test_r4_headroom_is_the_largest_request_that_passes(steps: list[Any], namespace: str, key: BudgetKey) -> None:
    charges, facts = follow(steps)
    units, tenant = charges.headroom(namespace, key)
    if (missing := facts.missing(namespace)) is not None:
        assert (units, tenant) == (0, missing)
        return
    if units is None:
        assert charges.check(namespace, {key: 1_000_000}) is None
        return
    assert charges.check(namespace, {key: units}) is None
    refusal = charges.check(namespace, {key: units + 1})
    assert isinstance(refusal, BudgetRefusal)
    assert refusal.tenant == tenant


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from(sorted(OWNERS.values())), st.sampled_from(KEYS), st.integers(0, 8))
def test_w4_a_childs_budget_is_refused_just_where_the_rule_says(
    steps: list[Any], release: tuple[str, str], key: BudgetKey, budget: int
) -> None:
    charges, facts = follow(steps)
    child, parent = owned_namespace(*release), parent_of(*release)
    if parent is None or child is None or charges.path(child)[1] != parent:
        return
    expected = facts.exceeded(facts.with_budget(release, key, budget), parent, key)
    refusal = charges.check_child_budget(parent, child, key, budget)
    if facts.missing(parent) is not None and facts.grows(facts.with_budget(release, key, budget), parent, key):
        assert isinstance(refusal, BudgetUnreadable) and refusal.tenant == facts.missing(parent)
        return
    assert (refusal is None) == (expected is None)
    if expected is not None:
        assert isinstance(refusal, BudgetRefusal)
        assert (refusal.tenant, refusal.budget, refusal.charge) == expected[:3]
        assert refusal.missing == expected.after - expected.budget


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 1000))
def test_r9_the_order_of_arrival_changes_nothing(steps: list[Any], seed: int) -> None:
    charges, facts = follow(steps)
    arrivals: list[Any] = [("release", release, limits) for release, limits in facts.releases.items()]
    for namespace, used in facts.usage.items():
        arrivals += [("use", namespace, (key, units)) for key, units in used.items()]
    random.Random(seed).shuffle(arrivals)
    again, _ = follow(arrivals)
    for namespace in NAMESPACES:
        for key in KEYS:
            assert again.chain(namespace, key) == charges.chain(namespace, key)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_r10_what_is_gone_leaves_nothing_behind(steps: list[Any]) -> None:
    charges, facts = follow(steps)
    for namespace, used in facts.usage.items():
        for key, units in used.items():
            charges.add_usage(namespace, key, -units)
    for release in facts.releases:
        charges.remove_tenant(owned_namespace(*release) or "")
    assert charges.tenants() == []
    assert not charges._accounts
    assert not charges._unowned
