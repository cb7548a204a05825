"""R2, R3, K3, C13: tenant names and the budgets a release states."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.model.objects import Release
from reconciler.core.tenancy.tenants import (
    BudgetKey,
    Budgets,
    Claims,
    class_key,
    owned_namespace,
    parent_namespace,
    parent_of,
    parse_budgets,
    raw_key,
)

ROOT = "tenant-root"


@pytest.mark.parametrize(
    ("space", "name", "owned", "parent"),
    [
        (ROOT, ROOT, ROOT, None),
        (ROOT, "tenant-a", "tenant-a", ROOT),
        (ROOT, "tenant-a-b", "tenant-a-b", ROOT),
        ("tenant-a", "tenant-b", "tenant-a-b", "tenant-a"),
        ("tenant-a-b", "tenant-c", "tenant-a-b-c", "tenant-a-b"),
        ("tenant-a", ROOT, "tenant-a-root", "tenant-a"),
        ("tenant", ROOT, None, None),
        (ROOT, "kubernetes-a", None, None),
        (ROOT, "tenant-", None, None),
        (ROOT, "tenant", None, None),
        ("", "tenant-a", None, None),
    ],
)
def test_r2_a_release_owns_a_namespace(space: str, name: str, owned: str | None, parent: str | None) -> None:
    assert owned_namespace(space, name) == owned
    assert parent_of(space, name) == parent


@pytest.mark.parametrize(
    ("namespace", "known", "parent"),
    [
        (ROOT, {"tenant-a"}, None),
        ("tenant-x", set(), ROOT),
        ("tenant-x", {"tenant-y"}, ROOT),
        ("tenant-a-b", {"tenant-a"}, "tenant-a"),
        ("tenant-a-b", set(), ROOT),
        ("tenant-a-b", {"tenant-a-b"}, ROOT),
        ("tenant-a-b-c", {"tenant-a", "tenant-a-b"}, "tenant-a-b"),
        ("tenant-a-b-c", {"tenant-a"}, "tenant-a"),
        ("tenant-ab-c", {"tenant-a"}, ROOT),
        ("default", {"tenant-a"}, None),
        ("tenant", {"tenant-a"}, None),
    ],
)
def test_r2_the_parent_by_name_is_the_longest_known_tenant(namespace: str, known: set[str], parent: str | None) -> None:
    assert parent_namespace(namespace, known) == parent


NAMES = st.lists(st.sampled_from(["a", "b", "root", "x1"]), min_size=1, max_size=3).map("-".join)


@given(st.lists(NAMES, max_size=4))
def test_r2_parent_is_the_inverse_of_owned(path: list[str]) -> None:
    """Down a chain of releases, each namespace leads back to the one above it."""
    known = {ROOT}
    above = ROOT
    for name in path:
        owned = owned_namespace(above, f"tenant-{name}")
        assert owned is not None
        if owned == ROOT:
            return
        assert parent_of(above, f"tenant-{name}") == above
        longer = [tenant for tenant in known if len(tenant) > len(above) and owned.startswith(f"{tenant}-")]
        if not longer:
            assert parent_namespace(owned, known) == above
        known.add(owned)
        above = owned


def release(space: str, name: str, created: int, uid: str) -> Release:
    return Release(namespace=space, name=name, created=created, uid=uid)


@pytest.mark.parametrize("first", [0, 1])
def test_r2_the_oldest_release_owns_a_contested_namespace(first: int) -> None:
    claims = Claims()
    older = release(ROOT, "tenant-a-b", 10, "u1")
    newer = release("tenant-a", "tenant-b", 20, "u2")
    for one in (older, newer) if first == 0 else (newer, older):
        assert claims.put(one) == "tenant-a-b"
    assert claims.owner("tenant-a-b") == (ROOT, "tenant-a-b")
    assert claims.drop(older) == "tenant-a-b"
    assert claims.owner("tenant-a-b") == ("tenant-a", "tenant-b")
    claims.drop(newer)
    assert claims.owner("tenant-a-b") is None
    assert claims.put(release(ROOT, "nginx", 1, "u3")) is None
    assert claims.drop(release(ROOT, "nginx", 1, "u3")) is None


GPU = "nvidia.com/GA100_A100"
VGPU = "nvidia.com/A100-20C"
CLASSES = frozenset({"a100", "a100-20c"})
EFFECTIVE = frozenset({GPU, VGPU})


def parse(quotas: dict[str, Any], **more: Any) -> Budgets:
    return parse_budgets(quotas, class_names=CLASSES, effective_names=EFFECTIVE, **more)


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("gpu.cozystack.io/a100", class_key("a100")),
        ("requests.gpu.cozystack.io/a100", class_key("a100")),
        (GPU, raw_key(GPU)),
        (f"requests.{GPU}", raw_key(GPU)),
        (f"limits.{GPU}", raw_key(GPU)),
    ],
)
def test_k3_every_form_of_a_key(written: str, key: BudgetKey) -> None:
    assert parse({written: "2"}) == Budgets(limits={key: 2})


def test_k3_keys_read_as_a_tenant_writes_them() -> None:
    assert str(class_key("a100")) == "gpu.cozystack.io/a100"
    assert str(raw_key(GPU)) == GPU


@pytest.mark.parametrize(
    ("value", "units"),
    [
        ("2", 2),
        (2, 2),
        ("0", 0),
        (0, 0),
        (2.9, 2),
        ("2500m", 2),
        ("999m", 0),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1e1", 10),
    ],
)
def test_r3_quantities_in_every_form_round_down(value: Any, units: int) -> None:
    assert parse({GPU: value}).limits == {raw_key(GPU): units}


def test_k3_null_is_no_key() -> None:
    assert parse({GPU: None, "gpu.cozystack.io/none": None}) == Budgets()


def test_k3_the_smallest_of_several_forms_holds() -> None:
    quotas = {GPU: "4", f"requests.{GPU}": "3", f"limits.{GPU}": "5"}
    assert parse(quotas) == Budgets(limits={raw_key(GPU): 3})


@pytest.mark.parametrize("value", ["-1", -1, "-500m", "two", "", "1 ", True, [2], {"a": 1}, "1e", "0x2"])
def test_r3_what_cannot_be_read_is_an_error_that_names_the_key(value: Any) -> None:
    budgets = parse({f"requests.{GPU}": value, GPU: "2", "gpu.cozystack.io/a100": 1})
    assert budgets.limits == {class_key("a100"): 1}, "a readable form beside it does not excuse it"
    assert f"requests.{GPU}" in budgets.problem(raw_key(GPU))
    assert budgets.problem(class_key("a100")) == ""


def test_r3_a_map_that_cannot_be_read_is_a_problem_of_every_key() -> None:
    budgets = parse({}, error="spec.values.resourceQuotas is a list")
    assert budgets.problem(raw_key(GPU)) == "spec.values.resourceQuotas is a list"
    assert budgets.problem(class_key("anything")) == "spec.values.resourceQuotas is a list"


def test_c13_keys_that_would_silently_limit_nothing() -> None:
    quotas = {
        "cpu": "10",
        "services.loadbalancers": "5",
        "gpu.example/a": "2",
        "gpu.example/A": "1",
        "requests.gpu.example/b": "1",
    }
    names = frozenset({"gpu.example/a", "gpu.example/b"})
    budgets = parse_budgets(quotas, class_names=frozenset(), effective_names=names)
    assert budgets.limits == {raw_key("gpu.example/a"): 2, raw_key("gpu.example/b"): 1}
    assert budgets.unmatched == ("gpu.example/A",)
    assert budgets.unreadable == {}


@pytest.mark.parametrize(
    ("written", "reported"),
    [
        ("gpu.cozystack.io/a1000", True),
        ("GPU.cozystack.io/a100", True),
        ("gpu.cozystack.io/A100", True),
        ("nvidia.com/GA100", True),
        ("nvidia.com/ga100_a100", True),
        ("Nvidia.com/GA100_A100", True),
        ("nvidia.con/GA100_A100", True),
        (" nvidia.com/GA100_A100", True),
        ("requests.example.com/dongle", True),
        ("Limits.nvidia.com/GA100_A100", True),
        ("requests.limits.nvidia.com/GA100_A100", True),
        ("example.com/dongle", False),
        ("requests.cpu", False),
        ("limits.memory", False),
        ("count/pods", False),
        ("fast.storageclass.storage.k8s.io/requests.storage", False),
    ],
)
def test_c13_a_key_that_looks_like_ours_and_matches_nothing_is_reported(written: str, reported: bool) -> None:
    assert parse({written: "nonsense"}) == Budgets(unmatched=(written,) if reported else ())
