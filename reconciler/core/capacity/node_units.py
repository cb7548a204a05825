"""A node's served, used and free units per resource name, and the index that finds nodes by free units.

Owns the free-units sum (R9) in one place for binder, webhooks, catalog and explain. Knows no requester
and no budgets. Neighbours: `supply` (what a node serves), `node_accounts` (feeds the accounts), `packing` (reads the
histogram of free units).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec
from sortedcontainers import SortedDict, SortedSet

from reconciler.core.capacity import supply
from reconciler.core.model.objects import GpuNode, Node
from reconciler.core.model.vocabulary import SCHEDULABLE_LABEL, TRUE, FunctionKind

Amounts = Mapping[str, int]
"""Units per resource name."""


class Limit(StrEnum):
    """Which of the sums determines how much is free on a node."""

    SERVED = "served"
    SHARED = "shared"
    ALLOCATABLE = "allocatable"
    VANISHED = "ghost"
    NOT_READY = "notReady"
    NOT_SCHEDULABLE = "notSchedulable"
    GONE = "gone"


class Units(msgspec.Struct, frozen=True):
    """One node's account of one name, in units.

    `served` None: unknown (R5). `placed`: units of devices that hold them here. `raw`: pod requests here that
    no device covers. `requests`: all requests of live pods here. `absent`: placed units whose launcher is not
    here yet. `allocatable` None: not in the node's status. `free` is never negative.
    """

    served: int | None = None
    placed: int = 0
    raw: int = 0
    requests: int = 0
    absent: int = 0
    allocatable: int | None = None
    vanished: int = 0
    free: int = 0
    limit: Limit = Limit.SERVED

    def why(self, node: str, name: str) -> str:
        """One sentence about the sum that limits the node, for refusals and `explain`."""
        if self.limit is Limit.GONE:
            return f"node {node} is gone"
        if self.limit is Limit.NOT_READY:
            return f"node {node} is not Ready"
        if self.limit is Limit.NOT_SCHEDULABLE:
            return f"KubeVirt starts nothing on node {node}, which is not labelled {SCHEDULABLE_LABEL}=true"
        if self.limit is Limit.VANISHED:
            return (
                f"node {node} advertises {self.allocatable} {name} but its agent reports {self.served}; "
                "nothing new starts there until both agree"
            )
        if self.limit is Limit.ALLOCATABLE:
            return (
                f"node {node} has {self.allocatable or 0} {name} allocatable, "
                f"{self.requests} requested by pods and {self.absent} promised to launchers, {self.free} free"
            )
        if self.limit is Limit.SHARED:
            return f"node {node} shares its cards' memory with other types, {self.free} {name} free"
        served = "an unknown number of" if self.served is None else str(self.served)
        return f"node {node} serves {served} {name}, {self.placed} placed and {self.raw} in raw use, {self.free} free"


class Usage(msgspec.Struct):
    """Usage of one node, in units per name; the mutable input of an account."""

    placed: dict[str, int] = {}
    raw: dict[str, int] = {}
    requests: dict[str, int] = {}
    absent: dict[str, int] = {}

    def plus(self, extra: Amounts) -> Usage:
        """This usage plus `extra` placed units whose launcher is not there yet (negative: released)."""
        return Usage(
            placed=added(self.placed, extra),
            raw=self.raw,
            requests=self.requests,
            absent={name: max(0, count) for name, count in added(self.absent, extra).items()},
        )


def added(base: Amounts, extra: Amounts) -> dict[str, int]:
    """The sum of two amounts."""
    total = dict(base)
    for name, count in extra.items():
        total[name] = total.get(name, 0) + count
    return total


def account(
    node: Node | None,
    report: GpuNode | None,
    fresh: bool,
    usage: Usage,
    vanished: Amounts,
    spoken: Collection[str],
    names: Iterable[str],
) -> dict[str, Units]:
    """The account of every name in `names` on one node (R5, R9, O3).

    `fresh`: the report is not stale. `vanished`: cards that left the report while the node still advertises them.
    `spoken`: names this node's agent has ever reported. The last report, even a stale one, determines which names
    share a card: the node's allocatable, used meanwhile, does not show that.
    """
    shared = _shared(report, usage) if report is not None else {}
    return {name: _units(node, report, fresh, usage, vanished, spoken, shared, name) for name in names}


def served(node: Node, report: GpuNode | None, fresh: bool, spoken: Collection[str], name: str) -> int | None:
    """Units a node serves of a name (R5). 0 if its agent reported the name before and no longer does: the agent's
    report takes precedence over the node's allocatable (C27)."""
    if fresh and report is not None and name in spoken and not supply.covers_name(report, name):
        return 0
    return supply.served(node, report, fresh, name)


def _shared(report: GpuNode, usage: Usage) -> dict[str, int]:
    """Free units of each name that shares a card; empty for most reports, found early as this runs at every change."""
    if not any(found.profiles or found.parent or found.kind != FunctionKind.PHYSICAL for found in report.functions):
        return {}
    taken = {profile.resource_name for function in report.functions for profile in function.profiles}
    pending = {
        name: usage.placed.get(name, 0) + usage.raw.get(name, 0) - supply.used(report, name)
        for name in sorted({*taken, *usage.placed, *usage.raw})
    }
    return supply.shared_remaining(report, pending, usage.absent)


def _units(
    node: Node | None,
    report: GpuNode | None,
    fresh: bool,
    usage: Usage,
    vanished: Amounts,
    spoken: Collection[str],
    shared: Amounts,
    name: str,
) -> Units:
    placed, raw = usage.placed.get(name, 0), usage.raw.get(name, 0)
    requests, absent = usage.requests.get(name, 0), usage.absent.get(name, 0)
    base = Units(placed=placed, raw=raw, requests=requests, absent=absent, limit=Limit.GONE)
    if node is None:
        return base
    has = served(node, report, fresh, spoken, name)
    allocatable = None if node.allocatable is None else node.allocatable.get(name, 0)
    base = msgspec.structs.replace(
        base, served=has, allocatable=allocatable, vanished=vanished.get(name, 0), limit=Limit.NOT_READY
    )
    if not node.ready:
        return base
    if node.labels.get(SCHEDULABLE_LABEL) != TRUE:
        return msgspec.structs.replace(base, limit=Limit.NOT_SCHEDULABLE)
    if base.vanished:
        return msgspec.structs.replace(base, limit=Limit.VANISHED)
    choices = [((has or 0) - placed - raw, Limit.SERVED)]
    if name in shared:
        choices.append((shared[name], Limit.SHARED))
    choices.append(((allocatable or 0) - requests - absent, Limit.ALLOCATABLE))
    free, limit = min(choices, key=lambda choice: choice[0])
    return msgspec.structs.replace(base, free=max(0, free), limit=limit)


class NameTotals:
    """The sums over all nodes of one name, kept with every change of a node's account."""

    def __init__(self) -> None:
        self.served = 0
        self.raw = 0
        self.nodes: SortedSet[str] = SortedSet()
        self.silent: SortedSet[str] = SortedSet()
        """Nodes for which it is unknown what they serve (R5)."""
        self.unschedulable: SortedSet[str] = SortedSet()
        """Ready nodes on which KubeVirt starts nothing, such as those whose virt-handler is silent."""
        self.disagreeing: SortedSet[str] = SortedSet()
        """Nodes whose agent and kubelet report different numbers (C27)."""

    def change(self, node: str, before: Units, after: Units) -> None:
        self.served += (after.served or 0) - (before.served or 0)
        self.raw += after.raw - before.raw
        (self.unschedulable.add if after.limit is Limit.NOT_SCHEDULABLE else self.unschedulable.discard)(node)
        (self.nodes.add if after != Units() else self.nodes.discard)(node)

    def mark(self, node: str, *, silent: bool, disagreeing: bool) -> None:
        known = node in self.nodes
        (self.silent.add if known and silent else self.silent.discard)(node)
        (self.disagreeing.add if known and disagreeing else self.disagreeing.discard)(node)


class FreeIndex:
    """Free units per name and node, ordered so that the fullest node that still fits is found first (P2)."""

    def __init__(self) -> None:
        self._free: dict[str, dict[str, int]] = {}
        self._levels: dict[str, SortedDict[int, SortedSet[str]]] = {}
        self._total: dict[str, int] = {}

    def set(self, node: str, name: str, free: int) -> int:
        """Set one node's free units of one name; returns the change."""
        nodes = self._free.setdefault(name, {})
        before = nodes.get(node, 0)
        if free == before:
            return 0
        levels = self._levels.get(name)
        if levels is None:
            levels = self._levels[name] = SortedDict()
        if before:
            levels[before].discard(node)
            if not levels[before]:
                del levels[before]
        if free:
            if free not in levels:
                levels[free] = SortedSet()
            levels[free].add(node)
            nodes[node] = free
        else:
            del nodes[node]
        self._total[name] = self._total.get(name, 0) + free - before
        return free - before

    def free(self, node: str, name: str) -> int:
        return self._free.get(name, {}).get(node, 0)

    def total(self, name: str) -> int:
        """Free units of a name over all nodes, before holds are taken off."""
        return self._total.get(name, 0)

    def largest(self, name: str) -> tuple[str, int]:
        """(node, units) of the node with the most free units, the first by name on a tie; ("", 0)."""
        levels = self._levels.get(name)
        if not levels:
            return "", 0
        units_free, nodes = levels.peekitem(-1)
        return nodes[0], units_free

    def histogram(self, name: str) -> dict[int, int]:
        """Free units to the number of nodes with exactly that many."""
        return {level: len(nodes) for level, nodes in self._levels.get(name, {}).items()}

    def at_least(self, name: str, need: int) -> Iterator[tuple[str, int]]:
        """(node, free units) with at least `need`, the fewest free first, then by name (P2)."""
        levels = self._levels.get(name)
        if levels is None:
            return
        for level in levels.irange(minimum=need):
            for node in levels[level]:
                yield node, level

    def count_at_least(self, name: str, need: int) -> int:
        levels = self._levels.get(name)
        return 0 if levels is None else sum(len(levels[level]) for level in levels.irange(minimum=need))
