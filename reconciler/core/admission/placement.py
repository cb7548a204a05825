"""Selects the node for a set and explains why each other node was rejected (P2, P3).

Owns candidate selection, scoring order and the check that every unplaced hold can still be packed afterwards. Uses node
accounts (`capacity`), constraints (`node_filter`) and packing (`packing`). Deterministic: picks the node left with the
fewest free units, ties broken by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from reconciler.core.capacity import node_filter, node_units, packing
from reconciler.core.capacity.node_units import Units, Usage
from reconciler.core.model.device_state import holds_units, unplaced_hold
from reconciler.core.model.objects import Constraints, Device, Model
from reconciler.core.model.vocabulary import Reason
from reconciler.core.state import node_accounts
from reconciler.core.state.placement_state import PlacementState

FEW_NODES = 64
"""Nodes a label may name to be looked at one by one; above, they are picked from those in the order of choice."""

Proofs = dict[tuple[str, int, int], bool]
"""Resource name, a node's free units before and with one set on it, to whether the holds stay startable (P3): the
proof knows nothing else of the node."""


class Verdict(Model, frozen=True, kw_only=True):
    """The verdict on one node for one set. `why` "" means it fits. `free`, `left`: units per name before, in sum after.
    `missing`: units it lacks."""

    node: str
    free: dict[str, int] = {}
    left: int = 0
    missing: int = 0
    reason: str = ""
    why: str = ""

    @property
    def fits(self) -> bool:
        return not self.why


class SetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to place on one node: units per resource name, the VMI's constraints, and the existing devices of the
    set (their holds and placements count as free for it)."""

    needs: dict[str, int]
    constraints: Constraints = Constraints()
    devices: tuple[Device, ...] = ()

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(device.uid for device in self.devices)


def choose(state: PlacementState, wanted: SetRequest) -> Verdict | None:
    """The node for the set, None if none fits. Looks only at nodes with enough free units and, where the
    VMI names labels, at those that carry them."""
    best: Verdict | None = None
    proofs: Proofs = {}
    bound = state.labels.bound(wanted.constraints, state.nodes)
    for node in _candidates(state, wanted, bound):
        verdict = judge(state, wanted, node, proofs)
        if not verdict.fits:
            continue
        if best is None or (verdict.left, verdict.node) < (best.left, best.node):
            best = verdict
        if len(wanted.needs) == 1 and not _placed_nodes(wanted):
            break
    return best


def _placed_nodes(wanted: SetRequest) -> set[str]:
    return {d.placement.node for d in wanted.devices if d.placement is not None and holds_units(d)}


def _candidates(state: PlacementState, wanted: SetRequest, bound: AbstractSet[str] | None = None) -> Iterator[str]:
    """Nodes with enough free units of the scarcest name, the best first; with `bound` only those in it."""
    own = _placed_nodes(wanted)
    yield from sorted(own)
    scarce = min(sorted(wanted.needs), key=lambda name: state.free.count_at_least(name, wanted.needs[name]))
    need = wanted.needs[scarce]
    if bound is not None and len(bound) <= FEW_NODES:
        few = sorted((state.free.free(node, scarce), node) for node in bound)
        yield from (node for free, node in few if free >= need and node not in own)
        return
    for node, _ in state.free.at_least(scarce, need):
        if node not in own and (bound is None or node in bound):
            yield node


def judge(state: PlacementState, wanted: SetRequest, node: str, proofs: Proofs | None = None) -> Verdict:
    """Whether one node can take the set, and the first reason why not. `proofs`: answers on the holds that other
    nodes with as many free units gave for this set."""
    account = _account_without(state, node, wanted)
    free = {name: account[name].free if name in account else 0 for name in sorted(wanted.needs)}
    left = sum(free.values()) - sum(wanted.needs.values())
    verdict = Verdict(node=node, free=free, left=left)
    for name, need in sorted(wanted.needs.items()):
        if free[name] < need:
            units = account.get(name, Units(limit=node_units.Limit.SERVED, served=0))
            return _lost(verdict, Reason.NO_FREE_UNITS, units.why(node, name), need - free[name])
    found = state.node(node)
    if found is None:
        return _lost(verdict, Reason.NO_NODE_FITS, f"node {node} is gone")
    memory = state.free_memory(node) - promised_memory(state, node, wanted.uids)
    unfit = node_filter.why_not(found, wanted.constraints, memory)
    if unfit is not None:
        return _lost(verdict, Reason.NO_NODE_FITS, unfit.message)
    short = _jointly_short(state, node, wanted)
    if short:
        return _lost(verdict, Reason.NO_FREE_UNITS, f"node {node} cannot give {short} beside the rest of the set")
    if not holds_stay(state, node, wanted, {} if proofs is None else proofs):
        return _lost(
            verdict,
            Reason.HOLDS_WOULD_NOT_FIT,
            f"with the set on node {node} a held device would fit on no node",
        )
    return verdict


def _lost(verdict: Verdict, reason: Reason, why: str, missing: int = 0) -> Verdict:
    return msgspec.structs.replace(verdict, reason=reason.value, why=why, missing=missing)


def _account_without(state: PlacementState, node: str, wanted: SetRequest) -> Mapping[str, Units]:
    """The node's account without the units of the set's own devices."""
    if node not in _placed_nodes(wanted):
        return state.accounts.get(node, {})
    return _account(state, node, node_accounts.usage_on(state, node, wanted.uids), wanted.needs)


def _account(state: PlacementState, node: str, usage: Usage, names: Iterable[str]) -> dict[str, Units]:
    return node_accounts.account(state, node, usage, {*state.accounts.get(node, {}), *names})


def _after(state: PlacementState, node: str, wanted: SetRequest) -> dict[str, Units]:
    usage = node_accounts.usage_on(state, node, wanted.uids) if wanted.devices else state.usage.get(node, Usage())
    return _account(state, node, usage.plus(wanted.needs), wanted.needs)


def _jointly_short(state: PlacementState, node: str, wanted: SetRequest) -> str:
    """The name that no longer fits once the others are placed (types that share a card's memory)."""
    if len(wanted.needs) < 2:
        return ""
    usage = node_accounts.usage_on(state, node, wanted.uids)
    for name, need in sorted(wanted.needs.items()):
        if _account(state, node, usage, wanted.needs)[name].free < need:
            return name
        usage = usage.plus({name: need})
    return ""


def promised_memory(state: PlacementState, node: str, without: frozenset[str]) -> int:
    """Bytes promised to sets placed on a node whose launcher is not there yet."""
    promised: dict[tuple[str, str], int] = {}
    for device in state.devices_on(node):
        if device.uid in without or device.bind_request is None or not holds_units(device):
            continue
        vmi = state.vmi(device.namespace, device.bind_request.vmi_name)
        if vmi is not None and any(pod.node == node for pod in state.launchers(vmi)):
            continue
        promised[(device.namespace, device.bind_request.id)] = device.bind_request.constraints.memory
    return sum(promised.values())


def holds_stay(state: PlacementState, node: str, wanted: SetRequest, proofs: Proofs) -> bool:
    """Whether every unplaced hold that could be packed before can be packed with the set on `node` (P3)."""
    after: Mapping[str, Units] | None = None
    own: dict[str, Counter[int]] = {}
    for device in wanted.devices:
        if unplaced_hold(device):
            own.setdefault(state.resource_of(device), Counter())[device.count] += 1
    for name in sorted(state.accounts.get(node, {})):
        items = state.hold_sizes(name)
        remaining = items - own.get(name, Counter())
        if not remaining:
            continue
        if after is None:
            after = _after(state, node, wanted)
        change = (name, state.free.free(node, name), after[name].free)
        if change not in proofs:
            bins = state.free.histogram(name)
            proofs[change] = packing.still_packable(items, bins, remaining, moved(bins, *change[1:]))
        if not proofs[change]:
            return False
    return True


def moved(bins: Mapping[int, int], before: int, after: int) -> dict[int, int]:
    """The histogram once one node goes from `before` to `after` free units."""
    changed = Counter(dict(bins))
    if before:
        changed[before] -= 1
    if after:
        changed[after] += 1
    return {level: count for level, count in changed.items() if count > 0}


def holds_fit_with(state: PlacementState, resource_name: str, count: int) -> bool:
    """Whether every unplaced hold and one more of `count` units can be packed, if the holds could before (P3)."""
    items = state.hold_sizes(resource_name)
    more = items + Counter({count: 1})
    bins = state.free.histogram(resource_name)
    return packing.still_packable(items, bins, more, bins)


def verdicts(state: PlacementState, wanted: SetRequest) -> list[Verdict]:
    """The verdict on every node, best first; for `explain`, `plan` and refusals."""
    found = [judge(state, wanted, node) for node in state.node_names()]
    return sorted(found, key=lambda verdict: (not verdict.fits, verdict.missing, verdict.left, verdict.node))


def best_loser(state: PlacementState, wanted: SetRequest) -> Verdict | None:
    """The node that came closest, for the message of a refusal: among nodes with enough free units the first by
    the order of choice, else the node with the most free units of the scarcest name."""
    for node in _candidates(state, wanted):
        return judge(state, wanted, node)
    closest: Verdict | None = None
    for name in sorted(wanted.needs):
        node, _ = state.free.largest(name)
        node = node or next(iter(state.totals_of(name).nodes), "")
        if node:
            verdict = judge(state, wanted, node)
            if not verdict.fits and (closest is None or verdict.missing > closest.missing):
                closest = verdict
    return closest
