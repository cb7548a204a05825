"""What a fuzz target is and how it is run: Hypothesis draws and shrinks, from a seed that is printed.

Owns the settings. The targets themselves are in `reviews`, `values`, `watching` and `journals`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st


class Target(NamedTuple):
    """`check` raises for an example that is not handled as it should be. `quick`: examples of one turn, which is also
    what the test suite runs."""

    name: str
    examples: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    quick: int


def hunt(target: Target, seed: int, most: int | None = None) -> int:
    """Check `most` examples drawn from `seed`, by default the target's `quick`; returns how many were checked. Raises
    what the check raised, with the shrunk example in its notes."""
    checked = 0

    @settings(
        max_examples=most or target.quick,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @hypothesis.seed(seed)
    @given(target.examples)
    def probe(example: Any) -> None:
        nonlocal checked
        checked += 1
        target.check(example)

    probe()
    return checked
