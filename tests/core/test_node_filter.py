"""P2: a node is a candidate only where kube-scheduler would put the launcher (C22, C26)."""

from typing import Any

import pytest

from reconciler.core.capacity.node_filter import Misfit, why_not
from reconciler.core.model.objects import Constraints, Node, Requirement, Taint, Term, Toleration
from reconciler.core.model.vocabulary import SCHEDULABLE_LABEL

GIB = 1 << 30
ANYTHING = Constraints()


def node(name: str = "n1", *, labels: dict[str, str] | None = None, **fields: Any) -> Node:
    return Node(name=name, uid=name, labels={SCHEDULABLE_LABEL: "true", **(labels or {})}, **{"ready": True, **fields})


def term(*requirements: tuple[str, str, tuple[str, ...]]) -> Term:
    return Term(match_expressions=tuple(Requirement(*requirement) for requirement in requirements))


def field_term(key: str, operator: str, *values: str) -> Term:
    return Term(match_fields=(Requirement(key, operator, values),))


def code(subject: Node, constraints: Constraints = ANYTHING, memory_free: int = 0) -> Misfit | None:
    unfit = why_not(subject, constraints, memory_free)
    return None if unfit is None else unfit.code


def test_p2_a_plain_node_fits() -> None:
    assert why_not(node(), Constraints(), 0) is None


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (node(ready=False), Misfit.NOT_READY),
        (node(unschedulable=True), Misfit.CORDONED),
        (node(labels={SCHEDULABLE_LABEL: "false"}), Misfit.NOT_SCHEDULABLE),
        (Node(name="n1", uid="n1", ready=True), Misfit.NOT_SCHEDULABLE),
    ],
)
def test_p2_nodes_that_take_nothing(subject: Node, expected: Misfit) -> None:
    assert code(subject) is expected


def test_c26_flag_and_taint_are_both_looked_at() -> None:
    """N1 is cordoned without a taint, N2 tainted without the flag, N3 free of both: D2 tolerates nothing, D3
    tolerates N2's taint."""
    n1 = node("n1", unschedulable=True)
    n2 = node("n2", taints=(Taint("maintenance", "NoSchedule", "gpu"),))
    cordon_taint = node("n3", taints=(Taint("node.kubernetes.io/unschedulable", "NoSchedule"),))
    d2 = Constraints()
    d3 = Constraints(tolerations=(Toleration("maintenance", "Equal", "gpu", "NoSchedule"),))
    assert [code(subject, d2) for subject in (n1, n2, cordon_taint)] == [
        Misfit.CORDONED,
        Misfit.TAINT,
        Misfit.TAINT,
    ]
    assert [code(subject, d3) for subject in (n1, n2, cordon_taint)] == [Misfit.CORDONED, None, Misfit.TAINT]
    unfit = why_not(n2, d2, 0)
    assert unfit is not None
    assert unfit.key == "maintenance"
    assert "n2" in unfit.message
    assert "maintenance=gpu:NoSchedule" in unfit.message


def test_c26_tolerating_everything_does_not_lift_a_cordon() -> None:
    everything = Constraints(tolerations=(Toleration(operator="Exists"),))
    assert code(node(unschedulable=True), everything) is Misfit.CORDONED
    assert code(node(taints=(Taint("a", "NoSchedule"), Taint("b", "NoExecute"))), everything) is None


@pytest.mark.parametrize(
    ("taint", "toleration", "fits"),
    [
        (Taint("k", "NoSchedule", "v"), None, False),
        (Taint("k", "NoExecute", "v"), None, False),
        (Taint("k", "PreferNoSchedule", "v"), None, True),
        (Taint("k", "NoSchedule", "v"), Toleration("k", "Equal", "v"), True),
        (Taint("k", "NoSchedule", "v"), Toleration("k", "", "v"), True),
        (Taint("k", "NoSchedule", "v"), Toleration("k", "Equal", "other"), False),
        (Taint("k", "NoSchedule", "v"), Toleration("other", "Equal", "v"), False),
        (Taint("k", "NoSchedule", "v"), Toleration("k", "Equal", "v", "NoExecute"), False),
        (Taint("k", "NoExecute", "v"), Toleration("k", "Equal", "v", "NoExecute"), True),
        (Taint("k", "NoSchedule", "v"), Toleration("k", "Exists"), True),
        (Taint("k", "NoSchedule", "v"), Toleration("", "Exists", "", "NoExecute"), False),
        (Taint("k", "NoSchedule", "v"), Toleration("", "Equal", "v"), False),
        (Taint("k", "NoSchedule", "v"), Toleration("k", "exists"), False),
        (Taint("k", "NoSchedule", "5"), Toleration("k", "Gt", "1"), False),
        (Taint("k", "NoSchedule"), Toleration("k"), True),
    ],
)
def test_p2_taints_and_tolerations(taint: Taint, toleration: Toleration | None, fits: bool) -> None:
    constraints = Constraints(tolerations=() if toleration is None else (toleration,))
    assert code(node(taints=(taint,)), constraints) is (None if fits else Misfit.TAINT)


def test_p2_every_taint_needs_its_toleration() -> None:
    subject = node(taints=(Taint("a", "NoSchedule"), Taint("b", "NoSchedule")))
    unfit = why_not(subject, Constraints(tolerations=(Toleration("a", "Exists"),)), 0)
    assert unfit is not None
    assert unfit.key == "b"


def test_p2_node_selector_names_the_first_label_that_differs() -> None:
    subject = node(labels={"zone": "a"})
    assert code(subject, Constraints(node_selector={"zone": "a"})) is None
    unfit = why_not(subject, Constraints(node_selector={"zone": "b", "zz": "1"}), 0)
    assert unfit is not None
    assert (unfit.code, unfit.key) == (Misfit.NODE_SELECTOR, "zone")
    assert "has zone=a" in unfit.message
    assert "zone=b" in unfit.message
    absent = why_not(subject, Constraints(node_selector={"disk": ""}), 0)
    assert absent is not None
    assert "has no label disk" in absent.message


LABELS = {"zone": "a", "cores": "8", "empty": "", "word": "x1"}


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        (("zone", "In", ("a", "b")), True),
        (("zone", "In", ("b",)), False),
        (("none", "In", ("a",)), False),
        (("zone", "In", ()), False),
        (("zone", "NotIn", ("b",)), True),
        (("zone", "NotIn", ("a",)), False),
        (("none", "NotIn", ("a",)), True),
        (("zone", "NotIn", ()), False),
        (("empty", "Exists", ()), True),
        (("none", "Exists", ()), False),
        (("zone", "Exists", ("a",)), False),
        (("none", "DoesNotExist", ()), True),
        (("zone", "DoesNotExist", ()), False),
        (("none", "DoesNotExist", ("a",)), False),
        (("cores", "Gt", ("7",)), True),
        (("cores", "Gt", ("8",)), False),
        (("cores", "Lt", ("9",)), True),
        (("cores", "Lt", ("-9",)), False),
        (("cores", "Gt", ("7", "6")), False),
        (("cores", "Gt", ("seven",)), False),
        (("cores", "Lt", ("9223372036854775808",)), False),
        (("word", "Gt", ("0",)), False),
        (("none", "Lt", ("9",)), False),
        (("zone", "Near", ("a",)), False),
        (("zone", "in", ("a",)), False),
    ],
)
def test_p2_node_affinity_operators(requirement: tuple[str, str, tuple[str, ...]], fits: bool) -> None:
    constraints = Constraints(terms=(term(requirement),))
    assert code(node(labels=LABELS), constraints) is (None if fits else Misfit.NODE_AFFINITY)


@pytest.mark.parametrize(
    ("single", "fits"),
    [
        (field_term("metadata.name", "In", "n1"), True),
        (field_term("metadata.name", "In", "n2"), False),
        (field_term("metadata.name", "NotIn", "n2"), True),
        (field_term("metadata.name", "NotIn", "n1"), False),
        (field_term("metadata.name", "In", "n1", "n2"), False),
        (field_term("metadata.name", "In"), False),
        (field_term("metadata.name", "Exists"), False),
        (field_term("metadata.namespace", "NotIn", "x"), False),
    ],
)
def test_c22_fields_name_the_node_and_just_one(single: Term, fits: bool) -> None:
    assert code(node(), Constraints(terms=(single,))) is (None if fits else Misfit.NODE_AFFINITY)


IN_A, IN_B = ("zone", "In", ("a",)), ("zone", "In", ("b",))
HAS_DISK = ("disk", "Exists", ())


@pytest.mark.parametrize(
    ("terms", "fits"),
    [
        pytest.param(None, True, id="no affinity at all"),
        pytest.param((), False, id="no terms match nothing"),
        pytest.param((Term(),), False, id="an empty term matches nothing"),
        pytest.param((Term(), term(IN_A)), True, id="an empty term beside one that matches"),
        pytest.param((term(IN_B), term(IN_A)), True, id="terms are alternatives"),
        pytest.param((term(IN_A, IN_B),), False, id="requirements of a term all count"),
        pytest.param((term(IN_A, HAS_DISK), term(IN_B)), False, id="two terms, each half met"),
        pytest.param(
            (Term((Requirement(*IN_A),), (Requirement("metadata.name", "In", ("n2",)),)),),
            False,
            id="expressions and fields of a term all count",
        ),
        pytest.param((term(("zone", "Near", ("a",))), term(IN_A)), True, id="a broken term, a good one"),
    ],
)
def test_c22_terms_are_alternatives(terms: tuple[Term, ...] | None, fits: bool) -> None:
    constraints = Constraints(terms=terms)
    assert code(node(labels=LABELS), constraints) is (None if fits else Misfit.NODE_AFFINITY)


def test_p2_affinity_names_what_each_term_lacks() -> None:
    unfit = why_not(node(labels=LABELS), Constraints(terms=(term(IN_A, HAS_DISK), term(IN_B), Term())), 0)
    assert unfit is not None
    assert unfit.key == "disk"
    assert "disk Exists nor zone In [b] nor a term without requirements" in unfit.message


@pytest.mark.parametrize(
    ("asked", "free", "missing", "told"),
    [
        (0, -5, 0, ""),
        (4 * GIB, 4 * GIB, 0, ""),
        (4 * GIB, 4 * GIB - 1, 1, "lacks 1 byte of memory: the VM needs 4.0 GiB"),
        (GIB, -GIB, 2 * GIB, "lacks 2.0 GiB of memory: the VM needs 1.0 GiB, 0 bytes are free"),
        (GIB, GIB - (5 << 19), 5 << 19, "lacks 2.5 MiB of memory"),
    ],
)
def test_p2_memory_that_is_missing_is_told(asked: int, free: int, missing: int, told: str) -> None:
    unfit = why_not(node(), Constraints(memory=asked), free)
    assert (0 if unfit is None else unfit.missing) == missing
    if unfit is not None:
        assert unfit.code is Misfit.MEMORY
        assert told in unfit.message
