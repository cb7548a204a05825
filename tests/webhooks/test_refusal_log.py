"""W5, J6: what refusals write into the journal is bounded, and what is not written is counted."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.events import AdmissionRefused, encode
from journal.store import MemoryJournal
from reconciler.core.model.objects import VMI, Constraints, Requirement, Term
from reconciler.core.model.start_request import StartRequest
from reconciler.debugging.replicas import history
from webhooks.refusal_log import NAMESPACE_ENTRIES, WINDOW_MILLISECONDS, RefusalLog, bounded

NS = "tenant-a"


def refusal(name: str = "vm", namespace: str = NS, message: str = "none free", **wanted: Any) -> AdmissionRefused:
    body = msgspec.Raw(msgspec.json.encode(StartRequest(**wanted)))
    return AdmissionRefused(VMI.name, namespace, name, "review", "NoFreeUnits", message, body)


class Log:
    """A log of refusals with a clock in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.recorded: list[AdmissionRefused] = []
        self.put = RefusalLog(self.recorded.append, lambda: int(self.seconds * 1000))

    @property
    def counted(self) -> int:
        return len(self.recorded) + sum(event.unrecorded for event in self.recorded)


def test_j6_equal_refusals_are_one_entry_in_a_window_and_the_next_tells_how_many() -> None:
    log = Log()
    for _ in range(20):
        log.put(refusal())
        log.seconds += 1
    assert len(log.recorded) == 1
    log.put(refusal(message="one free"))
    assert len(log.recorded) == 2, "another message is another entry"
    log.seconds += WINDOW_MILLISECONDS / 1000
    log.put(refusal())
    assert (log.recorded[-1].unrecorded, log.counted) == (19, 22)


def test_j6_a_namespace_beyond_its_rate_only_counts_and_bothers_no_other() -> None:
    log = Log()
    for number in range(700):
        log.put(refusal(name=f"vm-{number}"))
    assert len(log.recorded) == NAMESPACE_ENTRIES
    log.put(refusal(namespace="tenant-b"))
    assert log.recorded[-1].namespace == "tenant-b"
    log.seconds += WINDOW_MILLISECONDS / 1000
    log.put(refusal(name="later"))
    assert log.recorded[-1].unrecorded == 700 - NAMESPACE_ENTRIES
    assert log.counted == 702


def test_w5_a_request_of_a_megabyte_takes_a_few_kilobytes() -> None:
    """W5: its affinity is left out, the devices and templates it asked for are kept."""
    terms = tuple(Term(match_expressions=(Requirement(f"key-{n}", "In", ("x" * 100,)),)) for n in range(10_000))
    huge = refusal(devices=("d1",), templates=(("a10", 2),), constraints=Constraints(terms=terms, memory=1 << 30))
    assert len(huge.wanted) > 1_000_000
    kept = bounded(huge)
    wanted = msgspec.json.decode(kept.wanted, type=StartRequest)
    assert kept.cut and len(encode(kept)[2]) < 6_000
    assert (wanted.devices, wanted.templates, wanted.constraints) == (
        ("d1",),
        (("a10", 2),),
        Constraints(memory=1 << 30),
    )
    assert bounded(refusal(devices=("d1",))) == refusal(devices=("d1",)), "an ordinary one is left alone"


@given(
    name=st.text(max_size=5_000),
    message=st.text(max_size=20_000),
    devices=st.lists(st.text(max_size=2_000), max_size=300),
    templates=st.lists(st.tuples(st.text(max_size=2_000), st.integers()), max_size=300),
)
@settings(max_examples=100, deadline=None)
def test_w5_no_refusal_is_larger_than_its_bound(
    name: str, message: str, devices: list[str], templates: list[tuple[str, int]]
) -> None:
    event = refusal(name, name, message, devices=tuple(devices), templates=tuple(templates))
    kept = bounded(event)
    assert len(encode(kept)[2]) < 64_000, "four bytes a character, escapes included"
    msgspec.json.decode(kept.wanted, type=StartRequest)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.floats(0, 30)), max_size=200))
@settings(max_examples=60, deadline=None)
def test_j6_no_refusal_is_lost_from_the_count(steps: list[tuple[int, int, float]]) -> None:
    """J6: entries and counts together are what was refused, once each subject and namespace has been told of again."""
    log = Log()
    for subject, namespace, passed in steps:
        log.put(refusal(f"vm-{subject}", f"tenant-{namespace}"))
        log.seconds += passed
    log.seconds += WINDOW_MILLISECONDS
    for subject in range(6):
        for namespace in range(4):
            log.put(refusal(f"vm-{subject}", f"tenant-{namespace}"))
    assert log.counted == len(steps) + 24


def test_j7_the_history_tells_how_many_refusals_have_no_entry() -> None:
    journal = MemoryJournal()
    journal.append([msgspec.structs.replace(refusal(), unrecorded=7)], at=1, batch=1)
    ((_, found),) = history([journal], VMI.name, NS, "vm")
    assert found.unrecorded == 7
