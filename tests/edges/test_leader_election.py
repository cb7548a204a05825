"""Leader election on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from reconciler.cluster.port import AlreadyExists, Cluster, ClusterError, Conflict, NotFound, Unauthorized, Unavailable
from reconciler.core.model.objects import LEASE, Kind
from reconciler.demo.virtual_time import VirtualTime
from reconciler.runtime.leader_election import LeaderElector, WorkEnded
from tests.edges.memory_cluster import START_MS


class LeaseStore:
    """One Lease with its resourceVersion, and faults a test can switch on per replica."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def write(self, spec: dict[str, Any]) -> bytes:
        self.version += 1
        known = (self.lease or {}).get("spec", {})
        self.lease = {"metadata": {"resourceVersion": str(self.version)}, "spec": {**known, **spec}}
        return msgspec.json.encode(self.lease)

    @property
    def holder(self) -> str:
        return "" if self.lease is None else self.lease["spec"]["holderIdentity"]


class Replica:
    """The port as one replica sees the store: `fault` is raised before a request arrives, `lost_answer` after
    it was carried out, `hang` keeps the request for ever."""

    def __init__(self, store: LeaseStore) -> None:
        self.store = store
        self.fault: ClusterError | None = None
        self.lost_answer = False
        self.hang = False
        self.writes = 0

    async def _arrive(self) -> None:
        await asyncio.sleep(0)
        if self.hang:
            await asyncio.get_running_loop().create_future()
        if self.fault is not None:
            raise self.fault

    async def get(self, kind: Kind, namespace: str, name: str) -> bytes:
        await self._arrive()
        assert (kind, namespace, name) == (LEASE, "here", "gpu-binder")
        if self.store.lease is None:
            raise NotFound("no lease")
        return msgspec.json.encode(self.store.lease)

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any]) -> bytes:
        await self._arrive()
        if self.store.lease is not None:
            raise AlreadyExists("taken")
        return self._landed(self.store.write(body["spec"]))

    async def patch(self, kind: Kind, namespace: str, name: str, body: dict[str, Any]) -> bytes:
        await self._arrive()
        if self.store.lease is None:
            raise NotFound("no lease")
        if body["metadata"]["resourceVersion"] != str(self.store.version):
            raise Conflict("moved on")
        return self._landed(self.store.write(body["spec"]))

    def _landed(self, answer: bytes) -> bytes:
        self.writes += 1
        if self.lost_answer:
            raise Unavailable("connection reset")
        return answer


class Contender:
    """A replica's elector with its dead or living work, and what it was told."""

    def __init__(self, name: str, store: LeaseStore, time: VirtualTime) -> None:
        self.name = name
        self.port = Replica(store)
        self.told: list[str] = []
        self.ready = True
        self.known_epoch = 0
        self.stop = asyncio.Event()
        self.work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.elector = LeaderElector(
            self.port,  # type: ignore[arg-type]
            "here",
            "gpu-binder",
            name,
            clock=time.clock,
            timer=time.timer,
            sleep=time.sleep,
            acquired=lambda epoch: self.told.append(f"acquired {epoch}"),
            lost=lambda why: self.told.append(f"lost {why}"),
            ready=lambda: self.ready,
            known_epoch=lambda: self.known_epoch,
        )
        self.running = asyncio.create_task(self.elector.run(self.stop, self.work))


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime(START_MS)


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


Enter = Callable[[str], Contender]


@pytest.fixture
async def enter(store: LeaseStore, time: VirtualTime) -> AsyncIterator[Enter]:
    entered: list[Contender] = []

    def contend(name: str) -> Contender:
        entered.append(Contender(name, store, time))
        return entered[-1]

    yield contend
    for contender in entered:
        contender.port.hang = False
        contender.port.fault = contender.port.fault or Unavailable("over")
        contender.running.cancel()
    await time.advance(60)
    await asyncio.gather(*(contender.running for contender in entered), return_exceptions=True)


async def test_J5_one_leads_and_renews_the_other_waits(enter: Enter, store: LeaseStore, time: VirtualTime) -> None:
    a = enter("a")
    await time.advance(1)
    b = enter("b")
    await time.advance(300)
    assert (a.told, b.told) == (["acquired 1"], [])
    assert a.elector.valid(time.timer())
    assert not b.elector.valid(time.timer())
    assert a.port.writes > 100
    assert store.lease is not None
    assert store.lease["spec"]["leaseTransitions"] == 1
    assert store.lease["spec"]["renewTime"] > store.lease["spec"]["acquireTime"]


async def test_C42_N1_a_stopped_leader_gives_the_lease_back_and_the_other_takes_it_at_once(
    enter: Enter, store: LeaseStore, time: VirtualTime
) -> None:
    a = enter("a")
    await time.advance(1)
    b = enter("b")
    await time.advance(5)
    a.stop.set()
    await time.settle()
    await a.running
    assert store.holder == ""
    assert not a.elector.valid(time.timer())
    await time.advance(2)
    assert a.told == ["acquired 1", "lost stopping"]
    assert b.told == ["acquired 2"]


@pytest.mark.parametrize("failing", [True, False])
async def test_C42_a_lease_is_not_renewed_for_work_that_is_dead(
    enter: Enter, store: LeaseStore, time: VirtualTime, failing: bool
) -> None:
    a = enter("a")
    await time.advance(1)
    b = enter("b")
    await time.advance(5)
    if failing:
        a.work.set_exception(ZeroDivisionError("malformed device"))
    else:
        a.work.set_result(None)
    await time.settle()
    with pytest.raises(WorkEnded, match="malformed device" if failing else "by itself"):
        await a.running
    assert a.told[-1].startswith("lost")
    await time.advance(2)
    assert b.told == ["acquired 2"]


async def test_C42_work_that_dies_before_the_lease_is_won_ends_the_process_too(enter: Enter, time: VirtualTime) -> None:
    enter("a")
    await time.advance(1)
    b = enter("b")
    b.work.set_exception(ZeroDivisionError("x"))
    await time.settle()
    with pytest.raises(WorkEnded):
        await b.running
    assert b.told == []


async def test_C44_a_leader_that_cannot_renew_steps_down_before_another_may_lead(
    enter: Enter, time: VirtualTime
) -> None:
    a = enter("a")
    await time.advance(1)
    b = enter("b")
    await time.advance(5)
    a.port.fault = Unauthorized("Unauthorized")
    await time.advance(9)
    assert a.elector.leading
    leaders = []
    for _ in range(100):
        await time.advance(0.25)
        leaders.append((a.elector.valid(time.timer()), b.elector.valid(time.timer())))
    assert (True, True) not in leaders
    assert leaders[-1] == (False, True)
    assert a.told[1].startswith("lost the lease could not be renewed for 10 s (Unauthorized")
    assert b.told == ["acquired 2"]


async def test_J5_a_renewal_that_hangs_does_not_keep_a_leader_in_office(enter: Enter, time: VirtualTime) -> None:
    a = enter("a")
    await time.advance(5)
    a.port.hang = True
    await time.advance(11)
    assert not a.elector.leading
    assert a.told[-1].startswith("lost the lease could not be renewed")
    a.port.hang = False
    await time.advance(12)
    assert a.told[-1] == "acquired 2"


async def test_J5_a_paused_process_does_not_believe_in_its_old_lease(enter: Enter, time: VirtualTime) -> None:
    """The clock jumped past the lease while nothing of ours ran: asked before a batch, the answer is no."""
    a = enter("a")
    await time.advance(5)
    assert a.elector.valid(time.timer())
    time.skip(60)
    assert not a.elector.valid(time.timer())


async def test_J5_validity_counts_from_before_the_request_was_sent(
    enter: Enter, store: LeaseStore, time: VirtualTime
) -> None:
    a = enter("a")
    await time.advance(0)
    arrive, slow = a.port._arrive, 6.0

    async def late() -> None:
        await time.sleep(slow)
        await arrive()

    a.port._arrive = late  # type: ignore[method-assign]
    await time.advance(2 + slow)
    assert a.port.writes == 2, "the renewal sent at 2 s was answered at 8 s"
    sent = 2.0
    assert a.elector.valid(sent + 9.9)
    assert not a.elector.valid(sent + 10)


async def test_J5_a_term_counts_from_before_its_first_request_was_sent(enter: Enter, time: VirtualTime) -> None:
    a = enter("a")
    arrive = a.port._arrive

    async def late() -> None:
        await time.sleep(4.0)
        await arrive()

    a.port._arrive = late  # type: ignore[method-assign]
    await time.advance(8)
    assert a.told == ["acquired 1"], "the create was sent at 4 s at the latest and answered at 8 s"
    assert not a.elector.valid(1_000.0 + 4 + 10)


async def test_J5_another_holder_ends_the_term_at_once(enter: Enter, store: LeaseStore, time: VirtualTime) -> None:
    a = enter("a")
    await time.advance(5)
    store.write({"holderIdentity": "b", "leaseTransitions": 2})
    await time.advance(2)
    assert a.told == ["acquired 1", "lost the lease is held by b"]


async def test_J5_a_deleted_lease_ends_the_term_and_is_made_anew(
    enter: Enter, store: LeaseStore, time: VirtualTime
) -> None:
    a = enter("a")
    await time.advance(5)
    store.lease = None
    await time.advance(2)
    assert a.told == ["acquired 1", "lost the lease was deleted"]
    await time.advance(3)
    assert a.told[2:] == ["acquired 2"], "the epoch goes on"


async def test_j5_a_replica_that_saw_the_lease_goes_on_from_its_epoch(
    enter: Enter, store: LeaseStore, time: VirtualTime
) -> None:
    store.write({"holderIdentity": "z", "leaseTransitions": 7, "leaseDurationSeconds": 15})
    a = enter("a")
    await time.advance(3)
    store.lease = None
    await time.advance(3)
    assert a.told == ["acquired 8"]


async def test_j5_an_epoch_is_above_those_of_devices_and_journal(
    enter: Enter, store: LeaseStore, time: VirtualTime
) -> None:
    a = enter("a")
    a.known_epoch = 41
    await time.advance(3)
    assert a.told == ["acquired 42"]
    assert store.lease is not None and store.lease["spec"]["leaseTransitions"] == 42


async def test_j5_a_replica_competes_once_it_knows_its_cluster(
    enter: Enter, store: LeaseStore, time: VirtualTime
) -> None:
    a = enter("a")
    a.ready = False
    await time.advance(5)
    assert (a.told, store.lease, a.elector.problem) == ([], None, "")
    a.port.fault = Unauthorized("no")
    await time.advance(3)
    assert a.elector.problem == "Unauthorized: no", "missing rights show before it competes"
    a.port.fault, a.ready = None, True
    await time.advance(0.1)
    assert a.told == ["acquired 1"]


async def test_a_label_on_the_lease_changes_nothing(enter: Enter, store: LeaseStore, time: VirtualTime) -> None:
    a = enter("a")
    await time.advance(5)
    store.write({})
    await time.advance(30)
    assert a.told == ["acquired 1"]
    assert a.elector.valid(time.timer())


@pytest.mark.parametrize("when", ["create", "renew"])
async def test_J5_a_lost_answer_is_made_good(enter: Enter, store: LeaseStore, time: VirtualTime, when: str) -> None:
    a = enter("a")
    if when == "renew":
        await time.advance(5)
    a.port.lost_answer = True
    await time.advance(3 if when == "renew" else 1)
    a.port.lost_answer = False
    await time.advance(5)
    assert a.elector.valid(time.timer())
    assert store.holder == "a"
    assert a.told == (["acquired 2"] if when == "create" else ["acquired 1"])


async def test_a_lease_is_given_back_though_the_last_answer_was_lost(
    enter: Enter, store: LeaseStore, time: VirtualTime
) -> None:
    a = enter("a")
    await time.advance(3)
    store.write({})
    a.stop.set()
    await time.settle()
    await a.running
    assert store.holder == ""


async def test_stopping_does_not_wait_for_a_server_that_is_away(enter: Enter, time: VirtualTime) -> None:
    a = enter("a")
    await time.advance(3)
    a.port.hang = True
    a.stop.set()
    await time.advance(11)
    await a.running
    assert "could not be given back" in a.elector.problem


async def test_J5_a_bug_in_what_a_leader_is_told_ends_the_process(store: LeaseStore, time: VirtualTime) -> None:
    def broken(epoch: int) -> None:
        raise ZeroDivisionError("x")

    port: Cluster = Replica(store)  # type: ignore[assignment]
    elector = LeaderElector(
        port, "here", "gpu-binder", "a", clock=time.clock, timer=time.timer, acquired=broken, lost=lambda why: None
    )
    with pytest.raises(ZeroDivisionError):
        await elector.run(asyncio.Event(), asyncio.get_running_loop().create_future())
    assert store.holder == ""


@pytest.mark.parametrize(("lease", "renew", "retry"), [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_durations_that_allow_two_leaders_are_refused(lease: float, renew: float, retry: float) -> None:
    with pytest.raises(ValueError, match="lease durations"):
        LeaderElector(
            Replica(LeaseStore()),  # type: ignore[arg-type]
            "here",
            "gpu-binder",
            "a",
            clock=lambda: 0,
            timer=lambda: 0.0,
            acquired=lambda epoch: None,
            lost=lambda why: None,
            lease_seconds=lease,
            renew_seconds=renew,
            retry_seconds=retry,
        )
