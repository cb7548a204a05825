"""Units a node serves of each resource name, from its agent's report or its allocatable.

Owns the sums over an agent's report: healthy functions, slots in use, and what types sharing a card can still provide
(O3, R5). Knows nothing of placements: the caller passes the units in use (`node_units`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from reconciler.core.model.objects import Function, GpuNode, Node
from reconciler.core.model.vocabulary import FunctionKind

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")
_MODEL = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")


def covers_name(report: GpuNode, name: str) -> bool:
    """Whether a report lists a resource name, on healthy or unhealthy functions."""
    return any(
        function.resource_name == name or any(profile.resource_name == name for profile in function.profiles)
        for function in report.functions
        if name
    )


def served(node: Node, report: GpuNode | None, report_fresh: bool, name: str) -> int | None:
    """Units of `name` a node serves (R5); None: unknown, which is not zero.

    If a fresh report covers the name: its healthy functions, 1 each, and for parents the slots in use and those
    still available. Otherwise the node's allocatable, unknown while the node is not Ready or its status has
    none. A function without a resource name (a companion) counts as 0.
    """
    if report is not None and report_fresh and covers_name(report, name):
        return sum(_serves(function, name) for function in report.functions if function.healthy)
    if not node.ready or node.allocatable is None:
        return None
    return node.allocatable.get(name, 0)


def _serves(function: Function, name: str) -> int:
    slots = sum(profile.used + profile.remaining for profile in function.profiles if profile.resource_name == name)
    return slots + (function.resource_name == name)


def used(report: GpuNode, name: str) -> int:
    """Slots of a vGPU type that exist, on healthy and unhealthy parents alike."""
    return sum(
        profile.used for function in report.functions for profile in function.profiles if profile.resource_name == name
    )


class _Card(msgspec.Struct):
    """What is still available on one card: `whole` is the name of the card itself, "" if it is not available
    whole; `slots` the units of its virtual functions and vGPU types; `memory` the types among them."""

    whole: str = ""
    slots: dict[str, int] = {}
    memory: set[str] = set()
    in_use: bool = False

    def remaining(self, name: str) -> int:
        """A card and its parts exclude each other, so a name they share counts the larger of the two."""
        return max(int(name == self.whole and not self.in_use), self.slots.get(name, 0))

    def loss(self, taken: str, name: str) -> int:
        """What one unit of `taken` here costs `name` at most: everything if the card is taken whole, nothing
        between two virtual functions, else its share of the memory that both need, rounded up."""
        if taken == self.whole:
            return self.remaining(name)
        if name != self.whole and taken not in self.memory and name not in self.memory:
            return 0
        return -(-self.remaining(name) // self.remaining(taken))


def shared_remaining(
    report: GpuNode, pending: Mapping[str, int], launching: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Units of each name that are certain to be still available, for every name whose units share a card (O3).

    Shared are vGPU types on one card (one memory) and a whole card and its virtual functions (they exclude
    each other). `pending[name]` are units taken from this report and not in its `used` yet; the caller passes
    `placed + raw - used`, so a report that shows them removes them from `pending` and nothing is subtracted
    twice; a negative number is slots in the report that nobody holds any more, available again to that name.
    `launching[name]` are placed units that do not run yet: whatever the report shows, they are still to land.

    It is unknown on which card a pending unit lands, and in which order. So each other name is assumed to lose the
    most it can to that unit, never more than is there; its own name loses exactly the pending units; and a name
    offers only what leaves room for the others' pending units, should its own units start first.

    A lower bound: never above the worst distribution of the pending units over the cards, and equal to it on
    a single card. Names without a shared card are not in the result; for a name that has one, cards that
    provide only that name count too. Unhealthy functions provide nothing.
    """
    cards = _cards(report)
    shared = sorted({name for card in cards if card.slots for name in (*card.slots, card.whole) if name})
    landing = {
        name: max(0, pending.get(name, 0), (launching or {}).get(name, 0))
        for name in sorted({*pending, *(launching or {})})
    }
    landing = {name: count for name, count in landing.items() if count}
    answer = {}
    for name in shared:
        left = max(0, _left(cards, name, pending.get(name, 0), landing))
        for other in landing:
            if left and other != name and _worst(cards, name, 1, other):
                left = _beside(cards, name, left, other, landing)
        answer[name] = left
    return answer


def _left(cards: list[_Card], name: str, pending: int, landing: Mapping[str, int]) -> int:
    """Units left of a name once all units in `landing` have landed where they cost it most; negative if there may
    not be enough."""
    left = sum(card.remaining(name) for card in cards) - pending
    return left - sum(_worst(cards, other, count, name) for other, count in landing.items() if other != name)


def _beside(cards: list[_Card], name: str, most: int, other: str, landing: Mapping[str, int]) -> int:
    """How many units of `name`, up to `most`, leave room for the units of `other` in `landing`."""
    room = _left(cards, other, landing[other], {key: count for key, count in landing.items() if key != name})
    before = landing.get(name, 0)
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if _worst(cards, name, before + middle, other) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _worst(cards: list[_Card], taken: str, count: int, name: str) -> int:
    """The most units of `name` that `count` units of `taken` can cost. Each card is a row of losses and what they
    take, the cheapest first, so the cheapest of all cards are the maximum."""
    losses: list[tuple[int, int]] = []
    for card in cards:
        there, units = card.remaining(name), card.remaining(taken)
        if not there or not units:
            continue
        step = card.loss(taken, name)
        gap, price = max(1, units // there), 1
        while step and there and units >= price:
            losses.append((price, -min(step, there)))
            there -= step if step < there else there
            units -= price
            price = gap
    losses.sort()
    lost = 0
    for price, loss in losses:
        if price > count:
            break
        count -= price
        lost -= loss
    return lost


def _cards(report: GpuNode) -> list[_Card]:
    """The report's healthy functions by card: a virtual function belongs to its parent's."""
    cards: dict[str, _Card] = {}
    for function in report.functions:
        physical = function.kind != FunctionKind.VIRTUAL_FUNCTION and not function.parent
        card = cards.setdefault(address(function.parent or function.id), _Card(slots={}, memory=set()))
        card.in_use |= any(profile.used for profile in function.profiles)
        if not function.healthy:
            continue
        if function.resource_name and physical:
            card.whole = function.resource_name
        elif function.resource_name:
            card.slots[function.resource_name] = card.slots.get(function.resource_name, 0) + 1
        for profile in function.profiles:
            card.memory.add(profile.resource_name)
            card.slots[profile.resource_name] = card.slots.get(profile.resource_name, 0) + profile.remaining
    return [cards[id_] for id_ in sorted(cards)]


def address(id_: str) -> str:
    """A PCI address in canonical form: lower case, four-digit domain (eight digits if needed)."""
    match = _ADDRESS.fullmatch(id_.strip().lower())
    if match is None:
        return id_.strip().lower()
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{function}"


def same_function(a: Function, b: Function) -> bool:
    """Whether two reported functions are the same hardware: by stable id if both have one, since an address can
    change over a reboot; otherwise by address, kind and what it serves. A stable id that is only a vendor and
    device id identifies a model, so the address must match too."""
    if a.stable_id and b.stable_id:
        first, second = a.stable_id.lower(), b.stable_id.lower()
        return first == second and (_MODEL.fullmatch(first) is None or address(a.id) == address(b.id))
    if address(a.id) != address(b.id) or a.kind != b.kind or a.resource_name != b.resource_name:
        return False
    types = {profile.resource_name for profile in a.profiles}
    others = {profile.resource_name for profile in b.profiles}
    return types == others or not types.isdisjoint(others)
