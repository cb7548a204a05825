"""Simulated GPU cards: memory, instances, a device plugin and an agent that report them.

Independent of the product's arithmetic: a starting launcher takes its instances from cards the seed picks, and fails
if no card has room. Neighbours: `cards` (the story), `reconciler.cluster.memory.scheduling` (the kubelets).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from reconciler.cluster.memory import MemoryCluster
from reconciler.cluster.memory.pods import FINISHED, node_of, phase_of, requests_of
from reconciler.cluster.memory.scheduling import Kubelets
from reconciler.core.model.objects import POD, Function, Profile

SMALL, LARGE = "nvidia.com/A16-2Q", "nvidia.com/A16-4Q"
WHOLE, PART = "nvidia.com/A30", "nvidia.com/A30-VF"
COSTS = {SMALL: 1, LARGE: 2, WHOLE: 3, PART: 1}
"""Memory of one unit; a whole card of three virtual functions takes all of it."""
Document = dict[str, Any]


class Card:
    """`instances`: pod uid and resource name of each unit that runs here."""

    def __init__(self, address: str, memory: int, names: tuple[str, ...]) -> None:
        self.address, self.memory, self.names = address, memory, names
        self.instances: list[tuple[str, str]] = []

    def room(self, name: str) -> int:
        """Units of a name that still start here."""
        if name not in self.names:
            return 0
        return (self.memory - sum(COSTS[taken] for _, taken in self.instances)) // COSTS[name]

    def used(self, name: str) -> int:
        return sum(taken == name for _, taken in self.instances)

    def functions(self) -> Iterable[Function]:
        """What the agent says: a parent of vGPU types, or a card and its virtual functions, whoever has them."""
        if WHOLE not in self.names:
            profiles = tuple(Profile(name, self.used(name), self.room(name)) for name in self.names)
            yield Function(id=f"{self.address}.0", stable_id=self.address, kind="MdevParent", profiles=profiles)
            return
        yield Function(id=f"{self.address}.0", stable_id=self.address, resource_name=WHOLE)
        for index in range(1, self.memory + 1):
            yield Function(
                id=f"{self.address}.{index}",
                stable_id=f"{self.address}.{index}",
                parent=f"{self.address}.0",
                kind="VirtualFunction",
                resource_name=PART,
            )


class Hardware:
    """The cards of each node. `failures`: launchers that found no card with room."""

    def __init__(self, cluster: MemoryCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._random = chance
        self.spreads = chance.random() < 0.5
        self.failures: list[str] = []
        self.cards: dict[str, list[Card]] = {
            "v1": [Card(f"0000:{index:02x}:00", 4, (SMALL, LARGE)) for index in (1, 2, 3)],
            "v2": [Card(f"0000:{index:02x}:00", 3, (WHOLE, PART)) for index in (1, 2)],
        }

    def collect(self) -> None:
        """Instances of pods that are gone or over are gone."""
        alive = {pod["metadata"]["uid"] for pod in self._cluster.peek_all(POD) if phase_of(pod) not in FINISHED}
        for card in (card for cards in self.cards.values() for card in cards):
            card.instances = [found for found in card.instances if found[0] in alive]

    def take(self, node: str, pod: Document) -> bool:
        """Start a pod's units one by one, each on a card with room: any, or the emptiest, which is the worst for
        larger units. False, and nothing taken, where one finds none."""
        self.collect()
        uid = pod["metadata"]["uid"]
        wanted = [name for name, count in sorted(requests_of(pod).items()) if name in COSTS for _ in range(count)]
        self._random.shuffle(wanted)
        for name in wanted:
            fitting = [card for card in self.cards[node] if card.room(name)]
            if not fitting:
                self.failures.append(f"{pod['metadata']['name']} found no room for {name} on {self.shown(node)}")
                for card in self.cards[node]:
                    card.instances = [found for found in card.instances if found[0] != uid]
                return False
            most = max(card.room(name) for card in fitting)
            best = [card for card in fitting if card.room(name) == most]
            self._random.choice(best if self.spreads else fitting).instances.append((uid, name))
        return True

    def functions(self, node: str) -> list[Function]:
        self.collect()
        return [function for card in self.cards[node] for function in card.functions()]

    def allocatable(self, node: str, *, follows: bool) -> dict[str, int]:
        """What the device plugin offers of each name: all that could ever run, or what runs and still can."""
        self.collect()
        cards = self.cards[node]
        if follows:
            return {name: sum(card.used(name) + card.room(name) for card in cards) for name in cards[0].names}
        return {name: sum(card.memory // COSTS[name] for card in cards) for name in cards[0].names}

    def room(self, node: str, name: str) -> int:
        self.collect()
        return sum(card.room(name) for card in self.cards[node])

    def fits(self, node: str, placed: Mapping[str, int]) -> bool:
        """Whether units that are placed could all run on empty cards: a plain search, large units first."""
        names = [name for name in sorted(placed, key=lambda name: -COSTS[name]) for _ in range(placed[name])]
        left = [card.memory for card in self.cards[node]]
        for name in names:
            for index in range(len(left)):
                if left[index] >= COSTS[name]:
                    left[index] -= COSTS[name]
                    break
            else:
                return False
        return True

    def shown(self, node: str) -> str:
        return f"{node} {[dict(Counter(name for _, name in card.instances)) for card in self.cards[node]]}"


class CardKubelets(Kubelets):
    """Kubelets whose nodes have cards; pods start there in any order, some of them only later."""

    def __init__(self, cluster: MemoryCluster, hardware: Hardware, chance: random.Random) -> None:
        super().__init__(cluster)
        self._hardware = hardware
        self._random = chance
        self.late = 0.4
        """The share of looks at a pod that does not start yet."""

    async def step(self) -> bool:
        """As the kubelets do, but in any order."""
        pods = [pod for pod in self._cluster.peek_all(POD) if node_of(pod)]
        self._random.shuffle(pods)
        changed = [await self._look_at(pod) for pod in pods]
        return any(changed)

    async def _admit(self, pod: Document, node: Document) -> bool:
        name = node["metadata"]["name"]
        if name not in self._hardware.cards:
            return await super()._admit(pod, node)
        if self._random.random() < self.late:
            return False
        fits = self._hardware.take(name, pod)
        await super()._admit(pod, node)
        found = self._cluster.peek(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
        if fits and found is not None and phase_of(found) == "Failed":
            self._hardware.failures.append(f"{pod['metadata']['name']} was not admitted: {found['status']}")
        if not fits:
            await self._cluster.patch(
                POD,
                pod["metadata"]["namespace"],
                pod["metadata"]["name"],
                {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}},
                subresource="status",
            )
        return True
