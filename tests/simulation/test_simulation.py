"""Seeded stories: safety is checked under faults; once faults stop, everything must settle (B1, B2, B6, J2, J5).

`GPU_BINDER_SIMULATION_SEEDS=100-200` plays other seeds; a failing one prints its number and its story.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from reconciler.debugging import replay
from tests.simulation.cards import Cards, CardStory, FaultCardStory
from tests.simulation.fault_story import FaultStory
from tests.simulation.safety import left_over, same_when_counted_anew
from tests.simulation.story import NODES, Story

STEPS = 45
FAULT_STEPS = 75


def seeds() -> list[int]:
    first, _, last = os.environ.get("GPU_BINDER_SIMULATION_SEEDS", "0-11").partition("-")
    return list(range(int(first), int(last or first) + 1))


async def play(seed: int, steps: int = STEPS, kind: type[Story] = Story) -> Story:
    story = kind(seed)
    try:
        await story.open()
        for index in range(steps):
            if index % 15 in (5, 14):
                story.trouble(index % 15 == 5)
            await story.step()
            for replica in story.env.replicas:
                same_when_counted_anew(replica.state)
        await come_to_rest(story)
    except BaseException as error:
        story.trouble(False)
        error.add_note(f"seed {seed}\n" + "\n".join(story.log))
        raise
    await story.close()
    return story


async def come_to_rest(story: Story) -> None:
    """Without faults and with time, nothing is left half done."""
    story.trouble(False)
    if isinstance(story, FaultStory | Cards):
        await story.calm()
    await story.env.later(400)
    for node in sorted(NODES):
        await story.ecosystem.cordon(node, False)
    await story.env.later(120)
    story.check()
    assert left_over(story.env.cluster) == []
    for replica in story.env.replicas:
        assert not replica.state.pending, "writes are still under way"
        assert not replica.state.stale, "objects are still to be read again"
    agree(story)
    if isinstance(story, Cards):
        await story.calm()
        await story.env.later(2)
        story.nothing_lost()


def agree(story: Story) -> None:
    """Every replica knows the same of every device."""
    first, *others = [
        {(d.namespace, d.name): (d.phase, d.placement, d.attachment) for d in replica.state.all_devices()}
        for replica in story.env.replicas
    ]
    for other in others:
        assert other == first


@pytest.mark.parametrize("seed", seeds())
def test_simulation(seed: int) -> None:
    story = asyncio.run(play(seed))
    for journal in story.journals:
        found = replay.verify(journal, build="embedded")
        assert found.difference is None, f"seed {seed}: {found.difference}"


@pytest.mark.parametrize("seed", seeds())
def test_harsh_simulation(seed: int) -> None:
    """Two leaders at once, late writes, jumping clocks, nodes and tenants that go (J5, P2, P4, P5, P6, R10)."""
    story = asyncio.run(play(seed, FAULT_STEPS, FaultStory))
    for journal in story.journals:
        found = replay.verify(journal, build="embedded")
        assert found.difference is None, f"seed {seed}: {found.difference}"


@pytest.mark.parametrize("kind", [CardStory, FaultCardStory])
@pytest.mark.parametrize("seed", seeds())
def test_shared_cards_o3(seed: int, kind: type[Story]) -> None:
    """O3: types that share a card's memory, a card and its virtual functions; nothing bound fails for lack of memory,
    sets of two types are whole, and what is free at rest is what the hardware has (R9, P2)."""
    story = asyncio.run(play(seed, FAULT_STEPS, kind))
    for journal in story.journals:
        found = replay.verify(journal, build="embedded")
        assert found.difference is None, f"seed {seed}: {found.difference}"


def test_a_seed_is_a_story() -> None:
    """The same seed tells the same story to the last entry (J2)."""
    first, second = (asyncio.run(play(3, 15)) for _ in range(2))
    assert first.log == second.log
    assert [list(j.read()) for j in first.journals] == [list(j.read()) for j in second.journals]
