"""Stories on nodes whose cards are shared by types of units (O3): late reports, launchers that start in any order on
any card, sets of two types.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from reconciler.cluster.memory.pods import node_of, phase_of
from reconciler.core.model.objects import DEVICE, POD
from reconciler.core.model.vocabulary import Mode
from tests.simulation import fault_story
from tests.simulation.fault_story import FaultStory
from tests.simulation.hardware import COSTS, LARGE, PART, SMALL, WHOLE, CardKubelets, Hardware
from tests.simulation.safety import HOLDING, by_vmi, short, status
from tests.simulation.story import Story

CARD_CLASSES = {"vgpu-small": SMALL, "vgpu-large": LARGE, "a30": WHOLE, "a30-part": PART}
PAIRS = (("vgpu-small", "vgpu-large"), ("a30", "a30-part"))
TABLE = {**fault_story.TABLE, WHOLE: "10DE:20B7", PART: "10DE:20B8", SMALL: "NVIDIA A16-2Q", LARGE: "NVIDIA A16-4Q"}
TENANT = "tenant-cards"


class Cards(Story):
    """What both card stories add to theirs."""

    def add_cards(self, seed: int) -> None:
        chance = random.Random(f"cards {seed}")
        self.chance = chance
        self.follows = chance.random() < 0.5
        self.hardware = Hardware(self.env.cluster, chance)
        self.kubelets = CardKubelets(self.env.cluster, self.hardware, chance)
        self.ecosystem.kubelets = self.kubelets

    async def open(self) -> None:
        await super().open()
        await self.ecosystem.kubevirt(TABLE)
        for name, resource in CARD_CLASSES.items():
            mode = Mode.VGPU if resource in (SMALL, LARGE) else Mode.PASSTHROUGH
            await self.ecosystem.gpu_class(name, resource, mode)
        await self.ecosystem.tenant("cards", entitled=True)
        for node in sorted(self.hardware.cards):
            await self.ecosystem.add_node(node, self.hardware.allocatable(node, follows=self.follows))
            await self.tell_cards(node)
        self.tell(f"plugin follows: {self.follows}, spreads: {self.hardware.spreads}")
        await self.env.later(3)

    async def tell_cards(self, node: str) -> None:
        """The device plugin and the agent say how it is now."""
        await self.ecosystem.allocatable(node, self.hardware.allocatable(node, follows=self.follows))
        await self.ecosystem.report(node, self.hardware.functions(node))

    def things(self) -> list[tuple[int, Callable[[], Awaitable[None]]]]:
        return [
            *super().things(),
            (14, self.order_card),
            (34, self.start_on_cards),
            (14, self.stop_on_cards),
            (16, self.report_cards),
        ]

    async def report_cards(self) -> None:
        node = self.chance.choice(sorted(self.hardware.cards))
        await self.attempt(f"report {self.hardware.shown(node)}", self.tell_cards(node))

    async def order_card(self) -> None:
        name, class_name = self._name("card"), self.chance.choice(sorted(CARD_CLASSES))
        count = self.chance.choice((1, 1, 2))
        await self.attempt(f"order {name} {count} {class_name}", self.ecosystem.order(TENANT, name, class_name, count))

    async def start_on_cards(self) -> None:
        """A set of held devices and templates, often of both types that share a card."""
        pair = self.chance.choice(PAIRS)
        held = [
            device["metadata"]["name"]
            for device in self.env.cluster.peek_all(DEVICE, TENANT)
            if device["spec"]["className"] in pair and not device["metadata"].get("labels")
        ]
        references: list[Any] = self.chance.sample(held, min(len(held), self.chance.choice((0, 0, 1, 2))))
        for class_name in self.chance.choice((pair[:1], pair[1:], pair)):
            if not references or self.chance.random() < 0.7:
                references.append({"className": class_name, "count": self.chance.choice((1, 1, 2, 3))})
        name = self._name("vm-card")
        await self.attempt(f"start {name} {references}", self.ecosystem.vmi(TENANT, name, references))

    async def stop_on_cards(self) -> None:
        pods = [pod for pod in self.env.cluster.peek_all(POD, TENANT) if node_of(pod) in self.hardware.cards]
        if not pods:
            return
        owner = self.chance.choice(pods)["metadata"]["ownerReferences"][0]["name"]
        await self.attempt(f"stop {owner}", self.ecosystem.stop(TENANT, owner))

    def check(self) -> None:
        super().check()
        assert self.hardware.failures == [], f"a VM that was bound failed for lack of memory: {self.hardware.failures}"
        devices = self.env.cluster.peek_all(DEVICE, TENANT)
        placed: dict[str, Counter[str]] = {node: Counter() for node in self.hardware.cards}
        for device in devices:
            found = status(device)
            if found.get("placement") and found.get("phase") in HOLDING:
                name = CARD_CLASSES[device["spec"]["className"]]
                placed[found["placement"]["node"]][name] += found["placement"]["units"]
        for node, units in placed.items():
            assert self.hardware.fits(node, units), f"{units} placed on the cards of {node}: {short(devices)}"
        for (_, vmi), group in by_vmi(devices).items():
            settled = [device for device in group if status(device).get("phase") not in ("Lost", "Releasing")]
            bound = [device for device in settled if status(device).get("placement")]
            answered = all((status(d).get("bindAnswer") or {}).get("outcome") == "Bound" for d in settled)
            assert not answered or len(bound) == len(settled), f"half a set of {vmi}: {short(group)}"

    async def calm(self) -> None:
        self.kubelets.late = 0.0
        for node in sorted(self.hardware.cards):
            await self.ecosystem.cordon(node, False)
            await self.tell_cards(node)
        await self.env.settle()
        for node in sorted(self.hardware.cards):
            await self.tell_cards(node)

    def nothing_lost(self) -> None:
        """At rest the binder's free units are what the hardware has, and every launcher runs."""
        for replica in self.env.replicas:
            for node, cards in self.hardware.cards.items():
                for name in cards[0].names:
                    units = replica.state.units_on(node, name)
                    free, room = units.free, self.hardware.room(node, name)
                    assert free == room or (name in (WHOLE, PART) and free <= room), (
                        f"{free} {name} free, {room} on {self.hardware.shown(node)}: {units}"
                    )
        waiting = [pod["metadata"]["name"] for pod in self.launchers() if phase_of(pod) != "Running"]
        assert waiting == [], f"launchers that do not start: {waiting}"

    def launchers(self) -> list[dict[str, Any]]:
        pods = self.env.cluster.peek_all(POD, TENANT)
        return [pod for pod in pods if phase_of(pod) not in ("Succeeded", "Failed") and any(requests(pod))]


def requests(pod: dict[str, Any]) -> set[str]:
    resources = pod["spec"]["containers"][0].get("resources") or {}
    return {name for name in resources.get("limits") or resources.get("requests") or {} if name in COSTS}


class CardStory(Cards, Story):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.safety.know(CARD_CLASSES)
        self.add_cards(seed)


class FaultCardStory(Cards, FaultStory):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.safety.know(CARD_CLASSES)
        self.add_cards(seed)

    async def calm(self) -> None:
        await FaultStory.calm(self)
        await self.ecosystem.kubevirt(TABLE)
        await Cards.calm(self)
