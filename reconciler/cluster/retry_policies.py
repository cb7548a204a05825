"""Retry policies: which errors of the port are retried, how often and after how long.

Every retry of a call to the API server takes its policy from `POLICIES`. A server's Retry-After
(`Unavailable.retry_after_seconds`) is a lower bound for every delay. Callers inject the sleep, so that virtual time
drives retries too, and the source of jitter, so that a seeded run repeats. Loops that follow a protocol rather than
retry a call stay where they are: lease renewal, polling for a bind answer, periodic reports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_never,
)

from reconciler.cluster.port import (
    AlreadyExists,
    ClusterError,
    Conflict,
    KindMissing,
    NotFound,
    Unauthorized,
    Unavailable,
)

Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. Delays double from `first_seconds` to `longest_seconds`; `jitter` scales each to between
    half and all of it. `attempts`: maximum number of calls, 0 for unlimited. `never`: subclasses of `errors` that are
    raised at once."""

    purpose: str
    errors: tuple[type[ClusterError], ...]
    never: tuple[type[ClusterError], ...] = ()
    first_seconds: float
    longest_seconds: float
    attempts: int = 0
    jitter: bool = False

    async def call(
        self,
        action: Callable[[], Awaitable[T]],
        sleep: Sleep,
        *,
        jitter: Callable[[], float] | None = None,
        also: tuple[type[Exception], ...] = (),
        failed: Callable[[BaseException], None] | None = None,
    ) -> T:
        """Call `action` with retries under this policy. Raises its last error unchanged. `jitter`: a number from 0 to
        1. `also`: errors beyond the port's. `failed` is called with each error that will be retried."""

        def retried(error: BaseException) -> bool:
            return isinstance(error, (*self.errors, *also)) and not isinstance(error, self.never)

        def report(state: RetryCallState) -> None:
            error = _error(state)
            if failed is not None and error is not None:
                failed(error)

        async def attempt() -> T:
            return await action()

        retrying = AsyncRetrying(
            sleep=sleep,
            retry=retry_if_exception(retried),
            wait=lambda state: self.delay(state.attempt_number, _error(state), jitter),
            stop=stop_after_attempt(self.attempts) if self.attempts else stop_never,
            before_sleep=report,
            reraise=True,
        )
        return await retrying(attempt)

    def delay(self, attempt: int, error: BaseException | None, jitter: Callable[[], float] | None) -> float:
        """Seconds to wait after the failed `attempt`, counted from 1. `jitter` applies only where the policy has it."""
        seconds = min(self.first_seconds * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS), self.longest_seconds)
        if self.jitter and jitter is not None:
            seconds *= 0.5 + jitter() / 2
        return max(seconds, error.retry_after_seconds if isinstance(error, Unavailable) else 0.0)


_MOST_DOUBLINGS = 32
"""Above any policy's longest delay; a loop that fails for a month does not overflow."""


class Backoff:
    """Delays of a policy for a loop that resets them on progress (a watch)."""

    def __init__(self, policy: RetryPolicy, sleep: Sleep, jitter: Callable[[], float]) -> None:
        self._policy = policy
        self._sleep = sleep
        self._jitter = jitter
        self._attempt = 0

    def reset(self) -> None:
        """Reset after progress: the next delay is the first again."""
        self._attempt = 0

    async def pause(self, error: Exception) -> None:
        """Sleep for the next delay after `error`."""
        self._attempt += 1
        await self._sleep(self._policy.delay(self._attempt, error, self._jitter))


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None


WRITE = RetryPolicy(
    purpose="a write of a committed decision, under its precondition, while the lease is held",
    errors=(Unavailable, Unauthorized),
    first_seconds=0.1,
    longest_seconds=5.0,
)
REREAD = RetryPolicy(
    purpose="reading one object again after a conflict",
    errors=(ClusterError,),
    never=(KindMissing,),
    first_seconds=0.5,
    longest_seconds=15.0,
    jitter=True,
)
LIST_WATCH = RetryPolicy(
    purpose="restarting the list and watch of a kind; progress starts over",
    errors=(ClusterError,),
    first_seconds=0.5,
    longest_seconds=15.0,
    jitter=True,
)
CATCH_UP = RetryPolicy(
    purpose="the list of devices that begins a term of leadership",
    errors=(ClusterError,),
    first_seconds=1.0,
    longest_seconds=1.0,
)
UNDO = RetryPolicy(
    purpose="taking back one device of a start that failed",
    errors=(ClusterError,),
    never=(NotFound,),
    first_seconds=0.05,
    longest_seconds=2.0,
    attempts=12,
)
CERTIFICATE = RetryPolicy(
    purpose="a step of the certificate's rotation that another replica has overtaken",
    errors=(Conflict, AlreadyExists),
    first_seconds=0.0,
    longest_seconds=0.0,
    attempts=5,
)
OWN_USER = RetryPolicy(
    purpose="asking the API server at start who we are",
    errors=(ClusterError,),
    first_seconds=2.0,
    longest_seconds=2.0,
)
UNINSTALL = RetryPolicy(
    purpose="a step of the uninstall",
    errors=(Unavailable,),
    first_seconds=1.0,
    longest_seconds=1.0,
    attempts=20,
)
REPORT = RetryPolicy(
    purpose="a node agent's report; the next one follows at the interval anyway",
    errors=(Unavailable,),
    first_seconds=0.5,
    longest_seconds=4.0,
    attempts=4,
)
PLAN = RetryPolicy(
    purpose="a list read for `plan` from a live cluster",
    errors=(Unavailable,),
    first_seconds=0.5,
    longest_seconds=4.0,
    attempts=4,
)

POLICIES = {
    "write": WRITE,
    "reread": REREAD,
    "list and watch": LIST_WATCH,
    "catch up": CATCH_UP,
    "undo": UNDO,
    "certificate": CERTIFICATE,
    "own user": OWN_USER,
    "uninstall": UNINSTALL,
    "report": REPORT,
    "plan": PLAN,
}
"""Every policy by the name the documentation uses."""
