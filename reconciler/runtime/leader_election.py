"""Leader election: at most one replica decides, and each term has its own epoch (J5, C42).

Owns the Lease object and the arithmetic of its deadlines. The loop and the writer own what a leader does and what
happens to writes in flight when a term ends. Follows the protocol of client-go's `leaderelection`. Two leaders are
impossible because a holder trusts its lease for `renew_seconds` from before its last successful request was SENT, a
challenger waits `lease_seconds` from after it last SAW the lease change, and the first is shorter than the second.
Epochs go on where they were when the Lease is deleted: a term's is above all that this replica has seen anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from reconciler.cluster.port import AlreadyExists, Cluster, ClusterError, Conflict, NotFound, Unavailable
from reconciler.core.model.objects import LEASE

T = TypeVar("T")

LEASE_SECONDS = 15.0
RENEW_SECONDS = 10.0
RETRY_SECONDS = 2.0
READY_SECONDS = 0.05
"""How often a replica that is not ready looks whether it may compete."""


class WorkEnded(RuntimeError):
    """The work protected by the lease ended or failed: the process must end too (C42)."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec | None = None


class LeaderElector:
    """Competes for one Lease until stopped; `acquired` and `lost` are called alternately from its task."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        lease_name: str,
        identity: str,
        *,
        clock: Callable[[], int],
        timer: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        acquired: Callable[[int], None],
        lost: Callable[[str], None],
        ready: Callable[[], bool] = lambda: True,
        known_epoch: Callable[[], int] = lambda: 0,
        lease_seconds: float = LEASE_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`identity` must be unique to this process (a pod's name is not: a restarted container keeps it). `clock`:
        ms since the epoch. `timer`: seconds, monotonic. `acquired` is given the epoch, which grows with every term;
        `lost` is given the reason. `ready`: whether this replica can lead and knows its cluster; it does not compete
        before. `known_epoch`: the highest epoch known from elsewhere than the Lease. Raises ValueError for durations
        that would allow two leaders."""
        if not 0 < retry_seconds < renew_seconds < lease_seconds:
            raise ValueError(
                f"lease durations must satisfy 0 < retry ({retry_seconds} s) < renew ({renew_seconds} s) "
                f"< lease ({lease_seconds} s)"
            )
        self.identity = identity
        self.epoch: int | None = None
        self.problem = ""
        self._cluster = cluster
        self._namespace = namespace
        self._name = lease_name
        self._clock = clock
        self._timer = timer
        self._sleep = sleep
        self._acquired = acquired
        self._lost = lost
        self._ready = ready
        self._known_epoch = known_epoch
        self._highest = 0
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._retry_seconds = retry_seconds
        self._version = ""
        self._renewed = 0.0
        self._seen = _Lease()
        self._seen_at = timer()

    @property
    def leading(self) -> bool:
        return self.epoch is not None

    def valid(self, now: float) -> bool:
        """Whether a write may be sent at `now` (by the timer): no other replica can hold the lease yet (J5)."""
        return self.epoch is not None and now - self._renewed < self._renew_seconds

    async def run(self, stop: asyncio.Event, work: asyncio.Future[Any]) -> None:
        """Compete until `stop`, then release the lease, so that another replica takes over within its retry period.

        Set `stop` once no more writes will be sent. If `work` ends before that, the lease is released and `WorkEnded`
        is raised: a lease must not be renewed for dead work (C42).
        """
        competing = asyncio.create_task(self._compete(), name="leader election")
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({competing, stopping, work}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            competing.cancel()
            stopping.cancel()
            (ended,) = await asyncio.gather(competing, return_exceptions=True)
            if self.leading:
                await self._release("stopping" if stop.is_set() else "its work has ended")
        if work.done() and not stop.is_set():
            error = None if work.cancelled() else work.exception()
            how = "by itself" if error is None else f"with {error!r}"
            raise WorkEnded(f"the leader's work ended {how}") from error
        if isinstance(ended, Exception):
            raise ended

    async def _compete(self) -> None:
        await self._wait_until_ready()
        while True:
            before = self._timer()
            try:
                if self.leading:
                    await self._within(before, self._renew())
                else:
                    await self._within(before, self._try_acquire())
                self.problem = ""
            except (ClusterError, msgspec.DecodeError) as error:
                self.problem = f"{type(error).__name__}: {error}"
            left = self._renewed + self._renew_seconds - self._timer()
            if self.leading and left <= 0:
                self._step_down(f"the lease could not be renewed for {self._renew_seconds:.0f} s ({self.problem})")
            await self._sleep(min(self._retry_seconds, left) if self.leading else self._retry_seconds)

    async def _wait_until_ready(self) -> None:
        """Read the lease at the usual pace meanwhile, so that missing rights show."""
        asked = self._timer() - self._retry_seconds
        while not self._ready():
            if self._timer() - asked >= self._retry_seconds:
                asked = self._timer()
                try:
                    await self._within(asked, self._read())
                    self.problem = ""
                except NotFound:
                    self.problem = ""
                except (ClusterError, msgspec.DecodeError) as error:
                    self.problem = f"{type(error).__name__}: {error}"
            await self._sleep(READY_SECONDS)

    async def _within(self, before: float, request: Awaitable[T]) -> T:
        """The request's result; raises `Unavailable` if it would outlast the lease."""
        left = self._renewed + self._renew_seconds - before if self.leading else self._renew_seconds
        doing = asyncio.ensure_future(request)
        waiting = asyncio.ensure_future(self._sleep(left))
        try:
            await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Unavailable(f"no answer about the lease within {left:.1f} s")
            return doing.result()
        finally:
            doing.cancel()
            waiting.cancel()
            await asyncio.gather(doing, waiting, return_exceptions=True)

    async def _try_acquire(self) -> None:
        """Take the lease if it is unheld, expired, or already ours from a request whose response was lost."""
        sent = self._timer()
        try:
            lease = await self._read()
        except NotFound:
            await self._create(sent)
            return
        spec = lease.spec or _Spec()
        if lease != self._seen:
            self._seen, self._seen_at = lease, self._timer()
        expires = self._seen_at + max(self._lease_seconds, float(spec.lease_duration_seconds or 0))
        if spec.holder_identity not in (None, "", self.identity) and self._timer() < expires:
            return
        epoch = self._next_epoch()
        sent = self._timer()
        try:
            answer = await self._patch(lease.metadata.resource_version, self._term(epoch))
        except Conflict:
            return
        self._begin(epoch, answer, sent)

    async def _create(self, sent: float) -> None:
        epoch = self._next_epoch()
        body = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._term(epoch),
        }
        try:
            answer = await self._cluster.create(LEASE, self._namespace, body)
        except AlreadyExists:
            return
        self._begin(epoch, answer, sent)

    def _next_epoch(self) -> int:
        """Above every epoch seen on the lease, in the journal and on devices (J5)."""
        return max(self._highest, self._known_epoch()) + 1

    def _begin(self, epoch: int, answer: bytes, sent: float) -> None:
        self._version = msgspec.json.decode(answer, type=_Lease).metadata.resource_version
        self._renewed = sent
        self.epoch = epoch
        self._highest = max(self._highest, epoch)
        self._acquired(epoch)

    async def _renew(self) -> None:
        sent = self._timer()
        try:
            answer = await self._patch(self._version, {"renewTime": _micro_time(self._clock())})
        except NotFound:
            self._step_down("the lease was deleted")
            return
        except Conflict:
            await self._look_again()
            return
        self._version = msgspec.json.decode(answer, type=_Lease).metadata.resource_version
        self._renewed = sent

    async def _look_again(self) -> None:
        """Read the lease after a conflict: another holder ends the term at once; anything else (a label, our own
        renewal whose response was lost) is the basis of the next renewal."""
        try:
            lease = await self._read()
        except NotFound:
            self._step_down("the lease was deleted")
            return
        spec = lease.spec or _Spec()
        if spec.holder_identity != self.identity or spec.lease_transitions != self.epoch:
            self._step_down(f"the lease is held by {spec.holder_identity or 'nobody'}")
            return
        self._version = lease.metadata.resource_version
        raise Unavailable("the lease had been written to; renewing again")

    def _step_down(self, why: str) -> None:
        self.epoch = None
        self._seen, self._seen_at = _Lease(), self._timer()
        self._lost(why)

    async def _release(self, why: str) -> None:
        """Release the lease, best effort: it expires otherwise."""
        self._step_down(why)
        try:
            await self._within(self._timer(), self._hand_over())
        except (ClusterError, msgspec.DecodeError) as error:
            self.problem = f"the lease could not be given back: {error}"

    async def _hand_over(self) -> None:
        freed = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro_time(self._clock())}
        try:
            await self._patch(self._version, freed)
        except Conflict:
            # The answer to the last renewal may have been lost, or someone set a label.
            lease = await self._read()
            if lease.spec is not None and lease.spec.holder_identity == self.identity:
                await self._patch(lease.metadata.resource_version, freed)

    async def _read(self) -> _Lease:
        body = await self._cluster.get(LEASE, self._namespace, self._name)
        lease = msgspec.json.decode(body, type=_Lease)
        if lease.spec is not None:
            self._highest = max(self._highest, lease.spec.lease_transitions or 0)
        return lease

    async def _patch(self, version: str, spec: dict[str, Any]) -> bytes:
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        return await self._cluster.patch(LEASE, self._namespace, self._name, body)

    def _term(self, epoch: int) -> dict[str, Any]:
        now = _micro_time(self._clock())
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._lease_seconds)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": epoch,
        }


def _micro_time(ms: int) -> str:
    """`metav1.MicroTime`."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
