"""Whether a node may run a VMI, by the rules kube-scheduler will apply to its launcher (P2).

Owns readiness, cordons, node selectors, required node affinity, taints and memory. Knows nothing of
GPUs: `placement` combines this with a node's free units. A binding that kube-scheduler would refuse is worse
than waiting (C26), so a constraint that the Kubernetes API would not accept matches no node here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from reconciler.core.model.objects import Constraints, Node, Requirement, Taint, Term, Toleration
from reconciler.core.model.vocabulary import SCHEDULABLE_LABEL, TRUE

BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
"""PreferNoSchedule only ranks nodes; it never refuses one."""
NAME_FIELD = "metadata.name"
"""The one field a node selector term may name."""
INTEGER = re.compile(r"[+-]?[0-9]+")
"""An operand of `Gt` or `Lt`; limited to 64 bits, as kube-scheduler parses it."""
INTEGER_LIMIT = 1 << 63


class Misfit(StrEnum):
    """Why a node cannot run a VMI, in the order the checks run."""

    NOT_READY = "notReady"
    CORDONED = "cordoned"
    NOT_SCHEDULABLE = "notSchedulable"
    NODE_SELECTOR = "nodeSelector"
    NODE_AFFINITY = "nodeAffinity"
    TAINT = "taint"
    MEMORY = "memory"


class Unfit(msgspec.Struct, frozen=True):
    """`key`: the label or taint that rules the node out, "" if none does. `missing`: bytes of memory, else 0."""

    code: Misfit
    message: str
    key: str = ""
    missing: int = 0


def why_not(node: Node, constraints: Constraints, memory_free: int) -> Unfit | None:
    """The first reason the node cannot run the VMI, None if it can (P2).

    `memory_free`: bytes still free to be requested on the node; `constraints.memory` 0 requests none. A
    cordoned node takes no new VMI, not even one that tolerates the cordon's taint: a cordon is the hoster's decision.
    """
    if not node.ready:
        return Unfit(Misfit.NOT_READY, f"node {node.name} is not Ready")
    if node.unschedulable:
        return Unfit(Misfit.CORDONED, f"node {node.name} is cordoned (spec.unschedulable)")
    if node.labels.get(SCHEDULABLE_LABEL) != TRUE:
        return Unfit(
            Misfit.NOT_SCHEDULABLE,
            f"node {node.name} does not carry {SCHEDULABLE_LABEL}=true, KubeVirt starts nothing there",
            key=SCHEDULABLE_LABEL,
        )
    for key, value in sorted(constraints.node_selector.items()):
        if node.labels.get(key) != value:
            return Unfit(
                Misfit.NODE_SELECTOR,
                f"node {node.name} {_label(node.labels, key)}, the VM asks for {key}={value}",
                key=key,
            )
    if constraints.terms is not None and not matches(node, constraints.terms):
        return _affinity(node, constraints.terms)
    for taint in node.taints:
        if taint.effect in BLOCKING_EFFECTS and not tolerated(taint, constraints.tolerations):
            return Unfit(
                Misfit.TAINT,
                f"node {node.name} is tainted {_taint(taint)} and the VM does not tolerate it",
                key=taint.key,
            )
    missing = constraints.memory - memory_free
    if constraints.memory > 0 and missing > 0:
        return Unfit(
            Misfit.MEMORY,
            f"node {node.name} lacks {_size(missing)} of memory: the VM needs {_size(constraints.memory)}, "
            f"{_size(max(0, memory_free))} are free",
            missing=missing,
        )
    return None


def _size(count: int) -> str:
    """A byte count in readable form; whole bytes below a KiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} byte{'' if count == 1 else 's'}"


def matches(node: Node, terms: tuple[Term, ...]) -> bool:
    """Whether any term matches; no terms match nothing."""
    return any(_failing(node, term) is None for term in terms)


def tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """Whether any toleration covers the taint (Kubernetes: taints and tolerations)."""
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return not toleration.key or toleration.key == taint.key
    if toleration.operator in ("", "Equal"):
        return toleration.key == taint.key and toleration.value == taint.value
    return False


EMPTY_TERM = "a term without requirements matches nothing"


def _failing(node: Node, term: Term) -> Requirement | str | None:
    """The first requirement of a term that the node does not meet, None if it meets all."""
    if not term.match_expressions and not term.match_fields:
        return EMPTY_TERM
    for requirement in term.match_expressions:
        if not _label_meets(node.labels, requirement):
            return requirement
    for requirement in term.match_fields:
        if not _field_meets(node, requirement):
            return requirement
    return None


def _label_meets(labels: Mapping[str, str], requirement: Requirement) -> bool:
    value, operator, values = labels.get(requirement.key), requirement.operator, requirement.values
    if operator == "In":
        return value is not None and value in values
    if operator == "NotIn":
        return bool(values) and value not in values
    if operator == "Exists":
        return value is not None and not values
    if operator == "DoesNotExist":
        return value is None and not values
    if operator in ("Gt", "Lt") and value is not None and len(values) == 1:
        have, bound = _integer(value), _integer(values[0])
        if have is None or bound is None:
            return False
        return have > bound if operator == "Gt" else have < bound
    return False


def _field_meets(node: Node, requirement: Requirement) -> bool:
    if requirement.key != NAME_FIELD or len(requirement.values) != 1:
        return False
    if requirement.operator == "In":
        return node.name == requirement.values[0]
    return requirement.operator == "NotIn" and node.name != requirement.values[0]


def _integer(text: str) -> int | None:
    if len(text) > 20 or INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -INTEGER_LIMIT <= number < INTEGER_LIMIT else None


def _affinity(node: Node, terms: tuple[Term, ...]) -> Unfit:
    if not terms:
        return Unfit(
            Misfit.NODE_AFFINITY,
            f"node {node.name} does not match: the VM's required node affinity has no terms, which matches no node",
        )
    failures = [_failing(node, term) for term in terms]
    shown = " nor ".join(
        failure if isinstance(failure, str) else _requirement(failure) for failure in failures if failure
    )
    first = next((failure.key for failure in failures if isinstance(failure, Requirement)), "")
    return Unfit(
        Misfit.NODE_AFFINITY,
        f"node {node.name} matches no term of the VM's required node affinity: not {shown}",
        key=first,
    )


def _requirement(requirement: Requirement) -> str:
    values = f" [{', '.join(requirement.values)}]" if requirement.values else ""
    return f"{requirement.key} {requirement.operator}{values}"


def _label(labels: Mapping[str, str], key: str) -> str:
    return f"has {key}={labels[key]}" if key in labels else f"has no label {key}"


def _taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
