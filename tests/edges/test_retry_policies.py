"""The table of retry policies, on virtual time (N9)."""

from __future__ import annotations

import pytest

from reconciler.cluster.port import Conflict, NotFound, Rejected, Unavailable
from reconciler.cluster.retry_policies import LIST_WATCH, POLICIES, Backoff, RetryPolicy


class Failing:
    """Raises its errors one by one, then answers; the slept seconds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def __call__(self) -> str:
        return await self.get("answer")

    async def get(self, answer: str) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return answer


def policy(**changes: object) -> RetryPolicy:
    known = {"purpose": "", "errors": (Unavailable,), "first_seconds": 1.0, "longest_seconds": 4.0}
    return RetryPolicy(**(known | changes))  # type: ignore[arg-type]


async def test_delays_double_up_to_the_longest_and_retry_after_is_a_lower_bound() -> None:
    failing = Failing(*(Unavailable("busy") for _ in range(4)), Unavailable("busy", retry_after_seconds=30.0))
    assert await policy().call(failing, failing.sleep) == "answer"
    assert failing.slept == [1.0, 2.0, 4.0, 4.0, 30.0]


@pytest.mark.parametrize("name", sorted(POLICIES))
async def test_no_policy_asks_before_retry_after(name: str) -> None:
    failing = Failing(Unavailable("busy", retry_after_seconds=99.0))
    found = POLICIES[name]
    if not issubclass(Unavailable, found.errors):
        with pytest.raises(Unavailable):
            await found.call(failing, failing.sleep)
        assert not failing.slept
        return
    assert await found.call(failing, failing.sleep) == "answer"
    assert failing.slept == [99.0]


async def test_the_last_error_is_raised_as_it_is_once_the_attempts_are_used_up() -> None:
    failing = Failing(*(Unavailable(f"busy {number}") for number in range(5)))
    with pytest.raises(Unavailable, match="busy 2"):
        await policy(attempts=3).call(failing, failing.sleep)
    assert failing.slept == [1.0, 2.0]


@pytest.mark.parametrize("error", [Rejected("forbidden"), NotFound("gone"), ValueError("a fault of ours")])
async def test_what_a_policy_does_not_name_is_raised_at_once(error: Exception) -> None:
    failing = Failing(error)
    with pytest.raises(type(error)):
        await policy().call(failing, failing.sleep)
    assert failing.calls == 1 and not failing.slept


async def test_an_exception_to_the_errors_is_raised_at_once() -> None:
    failing = Failing(Conflict("moved on"), NotFound("gone"))
    with pytest.raises(NotFound):
        await policy(errors=(Conflict, NotFound), never=(NotFound,)).call(failing, failing.sleep)
    assert failing.calls == 2


async def test_jitter_takes_at_most_half_and_progress_starts_over() -> None:
    failing = Failing()
    backoff = Backoff(LIST_WATCH, failing.sleep, lambda: 0.0)
    for _ in range(7):
        await backoff.pause(Unavailable("busy"))
    backoff.reset()
    await backoff.pause(Unavailable("busy"))
    assert failing.slept == [0.25, 0.5, 1.0, 2.0, 4.0, 7.5, 7.5, 0.25]


async def test_a_backoff_of_an_idle_month_does_not_overflow() -> None:
    failing = Failing()
    backoff = Backoff(LIST_WATCH, failing.sleep, lambda: 1.0)
    for _ in range(5000):
        await backoff.pause(Unavailable("busy"))
    assert failing.slept[-1] == 15.0


async def test_a_callable_that_only_returns_a_coroutine_is_retried_too() -> None:
    failing = Failing(Unavailable("busy"))
    assert await policy().call(lambda: failing.get("answer"), failing.sleep) == "answer"
    assert failing.slept == [1.0]
