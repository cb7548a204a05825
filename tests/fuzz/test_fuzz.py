"""A short run of every fuzz target, and the command itself (W5, R5, R10, K1, K3, J6)."""

from __future__ import annotations

import io

import pytest
from hypothesis import strategies as st

from tests.fuzz.__main__ import TARGETS, run
from tests.fuzz.targets import Target, hunt

SEED = 20_261_207


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_w5_r10_j6_whatever_arrives_is_answered_or_refused_and_the_state_stays_right(target: Target) -> None:
    assert hunt(target, SEED) > 0


def test_a_failing_target_is_told_with_its_seed_and_the_others_go_on() -> None:
    def check(example: int) -> None:
        assert example < 1_000, "too many"

    out = io.StringIO()
    bad, good = Target("bad", st.integers(), check, 200), Target("good", st.none(), lambda _: None, 3)
    times = iter(range(100))
    assert run([bad, good], 7, until=6, out=out, clock=lambda: float(next(times))) == 1
    told = out.getvalue()
    assert "bad: failed with --seed 7 --target 'bad'" in told
    assert "AssertionError: too many" in told and "example=1000" in told
    assert told.count("AssertionError: too many") == 1
    assert "good: 4 examples, ok" in told or "good: " in told
    assert run([good], 7, until=0.0, out=out) == 0
