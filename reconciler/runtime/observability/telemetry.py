"""Prometheus collector of the controller's metrics, on its own registry (N4).

Owns where each metric's value comes from; names and help texts are `metrics`'. What happens (durations, refusals,
conflicts) is counted as it happens; what is (units, losses, sizes) is read from the state when it is asked for, so
that the loop pays nothing for it. Neighbours: `logs`, `event_recorder`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from journal import events
from journal.events import Entry
from journal.store import Journal
from reconciler.core.model.objects import DEVICE, KINDS, ClassUnits, Device
from reconciler.core.model.vocabulary import Outcome, Phase, Reason
from reconciler.core.state.decisions import Action, Decision
from reconciler.core.state.placement_state import PlacementState
from reconciler.runtime.observability import metrics
from reconciler.runtime.observability.logs import LOG_FIELDS, LogDecisions, configure_logs
from reconciler.runtime.observability.metrics import METRICS, Type
from reconciler.runtime.wall_clock import now_ms

__all__ = ["LOG_FIELDS", "METRICS", "LogDecisions", "Telemetry", "configure_logs"]

ALLOWED = "Allowed"
"""The webhooks' word for an answer that is no refusal."""

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Label values, in the table's order, and the value."""


class Loop(Protocol):
    @property
    def backlog(self) -> int: ...


class Replica(Protocol):
    """What is measured of a controller."""

    state: PlacementState
    journal: Journal

    @property
    def loop(self) -> Loop: ...


class ServingCertificate(Protocol):
    @property
    def expires_at(self) -> int | None:
        """ms since the epoch; None: nothing is loaded."""
        ...


class Telemetry(Collector):
    """An observer of the loop and the hooks of everything else that is measured.

    `clock`: ms since the epoch. `auth_required`: webhooks refuse strangers (W7). A metric whose source was never given
    (`observe`) has no samples.
    """

    def __init__(self, *, clock: Callable[[], int] = now_ms, auth_required: bool = False) -> None:
        # Otherwise every counter and histogram brings a second, undocumented series with its birthday.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._clock = clock
        self._backlog: Callable[[], int] = lambda: 0
        self._state: PlacementState | None = None
        self._journal: Journal | None = None
        self._certificate: ServingCertificate | None = None
        self._refusals: Counter[str] = Counter(dict.fromkeys((reason.value for reason in Reason), 0))
        self._restarts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._conflicts = self._strangers = 0
        self._auth_required = auth_required
        self._histograms = {
            name: Histogram(name, metric.help, buckets=metric.buckets, registry=self.registry)
            for name, metric in METRICS.items()
            if metric.type is Type.HISTOGRAM
        }
        self.registry.register(self)

    def observe(self, replica: Replica, certificate: ServingCertificate | None = None) -> None:
        """Measure this controller from now on, and the certificate its webhooks serve with."""
        self._state = replica.state
        self._journal = replica.journal
        self._backlog = lambda: replica.loop.backlog
        self._certificate = certificate

    def render(self) -> tuple[bytes, str]:
        """(body, content type) of a scrape. To be called in the loop's thread."""
        return prometheus_client.generate_latest(self.registry), prometheus_client.CONTENT_TYPE_LATEST

    # Called by the loop

    def folded(self, count: int, seconds: float, backlog: int) -> None:
        """One batch was folded."""
        if count:
            self._histograms[metrics.FOLD_SECONDS].observe(seconds)

    def recorded(self, entry: Entry) -> None:
        """A fact is in the journal; conflicts of the binder's writes are among them (B6)."""
        if isinstance(entry.event, events.WriteConflicted):
            self._conflicts += 1

    def decided(self, entry: Entry, decision: Decision, seconds: float) -> None:
        """A decision is in the journal. A refused start is counted where its webhook denies it."""
        self._histograms[metrics.DECIDE_SECONDS].observe(seconds)
        if decision.action is Action.REFUSE_ORDER:
            self._refusals[decision.reason] += 1

    def committed(self, journal: Journal, state: PlacementState) -> None:
        """A batch is done; everything else is read on scrape."""
        self._journal, self._state = journal, state

    # Called by the webhooks and informers

    def answered(self, path: str, outcome: str) -> None:
        """A webhook answered: `Allowed`, a reason, or its word for a fault of ours."""
        if outcome != ALLOWED:
            self._refusals[str(outcome)] += 1

    def stranger_called(self) -> None:
        """A webhook was called without the credentials of an API server."""
        self._strangers += 1

    def bind_answered(self, outcome: str, seconds: float) -> None:
        """Record the latency of a start. An immediate refusal is not a wait."""
        if outcome in (Outcome.BOUND, Reason.BIND_TIMEOUT):
            self._histograms[metrics.BIND_LATENCY_SECONDS].observe(seconds)

    def conflicted(self) -> None:
        """A webhook's write found its device moved on."""
        self._conflicts += 1

    def watch_restarted(self, kind: str, reason: str) -> None:
        """A list or watch has to be done again."""
        self._restarts[kind] += 1

    # What is asked for

    def describe(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        """Metric families without samples, so that duplicate registration is detected."""
        return [_family(name, ()) for name in METRICS if name not in self._histograms]

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Every metric but the histograms, with its samples as of now."""
        for name in METRICS:
            if name not in self._histograms:
                yield _family(name, self._samples(name))

    def _samples(self, name: str) -> Samples:
        match name:
            case metrics.REFUSALS:
                return _labelled(self._refusals)
            case metrics.WATCH_RESTARTS:
                return _labelled(self._restarts)
            case metrics.CONFLICTS:
                return [((), self._conflicts)]
            case metrics.STRANGERS:
                return [((), self._strangers)]
            case metrics.CALLERS_ASKED:
                return [((), float(self._auth_required))]
            case metrics.QUEUE_DEPTH:
                return [((), self._backlog())]
            case metrics.CERTIFICATE_EXPIRY if self._certificate is not None:
                return [((), (self._certificate.expires_at or 0) / 1000)]
            case metrics.JOURNAL_BYTES if self._journal is not None:
                return [((), self._journal.size_bytes)]
            case metrics.JOURNAL_LAG_SECONDS if self._journal is not None:
                return [((), self._lag_seconds(self._journal))]
        return () if self._state is None else _of_state(name, self._state)

    def _lag_seconds(self, journal: Journal) -> float:
        return max(0, self._clock() - journal.last_at) / 1000 if self._backlog() and journal.last_at else 0.0


def _of_state(name: str, state: PlacementState) -> Samples:
    match name:
        case metrics.UNITS:
            return _units(state)
        case metrics.LOST_DEVICES:
            return [((), sum(_lost(device) for device in state.objects[DEVICE.name].values()))]  # type: ignore[arg-type]
        case metrics.LEADER:
            return [((), int(state.leading))]
        case metrics.KIND_MISSING:
            return [((kind,), int(kind in state.missing)) for kind in KINDS]
        case metrics.UNREADABLE_OBJECTS:
            found = Counter(item.kind for item in state.unreadable.values())
            return [((kind,), found[kind]) for kind in KINDS]
        case metrics.UNMATCHED_BUDGET_KEYS:
            return _of_tenants(state, lambda tenant: len(state.charges.budgets(tenant).unmatched))
        case metrics.UNREADABLE_BUDGET_KEYS:
            return _of_tenants(state, lambda tenant: _unreadable_keys(state, tenant))
    return ()


def _units(state: PlacementState) -> Samples:
    for found in state.classes():
        if found.units is not None:
            for field in ClassUnits.__struct_fields__:
                yield (found.name, field), getattr(found.units, field)


def _lost(device: Device) -> bool:
    return device.phase == Phase.LOST


def _of_tenants(state: PlacementState, count: Callable[[str], int]) -> Samples:
    """Tenants with a count above zero; thousands of zeros carry no information."""
    return [((tenant,), found) for tenant in state.charges.tenants() if (found := count(tenant))]


def _unreadable_keys(state: PlacementState, tenant: str) -> int:
    """A map that cannot be read as a whole counts as one."""
    budgets = state.charges.budgets(tenant)
    return len(budgets.unreadable) + bool(budgets.error)


def _labelled(counts: Counter[str]) -> Samples:
    return [((label,), counts[label]) for label in sorted(counts)]


def _family(name: str, samples: Samples) -> CounterMetricFamily | GaugeMetricFamily:
    metric = METRICS[name]
    made = CounterMetricFamily if metric.type is Type.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = made(name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
