"""The metrics by name: one table that telemetry, the chart's rules and the documentation are held to (N4).

Owns names, labels, help texts and buckets. Knows nothing of where the values come from: that is `telemetry`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Type(StrEnum):
    """Prometheus' own types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """`buckets`: upper bounds of a histogram, seconds."""

    type: Type
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_COMPUTING = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""A batch or a decision takes microseconds; one above a second is a defect."""
_WAITING = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0)
"""Around the bind deadline (8 s by default), up to the longest a webhook may take."""

QUEUE_DEPTH = "gpu_binder_queue_depth"
FOLD_SECONDS = "gpu_binder_fold_seconds"
DECIDE_SECONDS = "gpu_binder_decide_seconds"
BIND_LATENCY_SECONDS = "gpu_binder_bind_latency_seconds"
REFUSALS = "gpu_binder_refusals_total"
STRANGERS = "gpu_binder_webhook_strangers_total"
CALLERS_ASKED = "gpu_binder_webhook_auth_required"
CONFLICTS = "gpu_binder_conflicts_total"
UNITS = "gpu_binder_units"
LOST_DEVICES = "gpu_binder_lost_devices"
JOURNAL_BYTES = "gpu_binder_journal_bytes"
JOURNAL_LAG_SECONDS = "gpu_binder_journal_lag_seconds"
LEADER = "gpu_binder_leader"
WATCH_RESTARTS = "gpu_binder_watch_restarts_total"
CERTIFICATE_EXPIRY = "gpu_binder_certificate_expiry_timestamp_seconds"
KIND_MISSING = "gpu_binder_kind_missing"
UNREADABLE_OBJECTS = "gpu_binder_unreadable_objects"
UNMATCHED_BUDGET_KEYS = "gpu_binder_unmatched_budget_keys"
UNREADABLE_BUDGET_KEYS = "gpu_binder_unreadable_budget_keys"

METRICS: dict[str, Metric] = {
    QUEUE_DEPTH: Metric(Type.GAUGE, "Events that wait to be folded."),
    FOLD_SECONDS: Metric(Type.HISTOGRAM, "Time to fold one batch of events.", buckets=_COMPUTING),
    DECIDE_SECONDS: Metric(Type.HISTOGRAM, "Time to take one decision (the mean of its batch).", buckets=_COMPUTING),
    BIND_LATENCY_SECONDS: Metric(
        Type.HISTOGRAM,
        "Time from a start's bind request to its placement, or to the deadline that passed without one.",
        buckets=_WAITING,
    ),
    STRANGERS: Metric(Type.COUNTER, "Calls of a webhook without the credentials of an API server, served or not."),
    CALLERS_ASKED: Metric(
        Type.GAUGE, "1 where a webhook answers only callers with the credentials of an API server, else 0."
    ),
    REFUSALS: Metric(
        Type.COUNTER,
        "Requests that a webhook of this replica denied, and orders that the binder left Pending, by reason.",
        ("reason",),
    ),
    CONFLICTS: Metric(Type.COUNTER, "Writes that found their object changed; each was decided again or undone."),
    UNITS: Metric(
        Type.GAUGE,
        "Units of a class as last published: served, bound, held, raw, free.",
        ("class", "state"),
    ),
    LOST_DEVICES: Metric(Type.GAUGE, "Devices that are Lost."),
    JOURNAL_BYTES: Metric(Type.GAUGE, "Size of this replica's journal."),
    JOURNAL_LAG_SECONDS: Metric(
        Type.GAUGE, "Age of the last committed entry while events wait to be folded, 0 while none do."
    ),
    LEADER: Metric(Type.GAUGE, "1 on the replica that decides, 0 on the others."),
    WATCH_RESTARTS: Metric(
        Type.COUNTER, "Lists and watches that had to be begun again because they failed.", ("kind",)
    ),
    CERTIFICATE_EXPIRY: Metric(
        Type.GAUGE, "End of the serving certificate's validity, Unix time; 0 while none is loaded."
    ),
    KIND_MISSING: Metric(Type.GAUGE, "1 for a kind that the cluster does not serve.", ("kind",)),
    UNREADABLE_OBJECTS: Metric(Type.GAUGE, "Objects set aside because they cannot be read.", ("kind",)),
    UNMATCHED_BUDGET_KEYS: Metric(
        Type.GAUGE, "Budget keys of a tenant that look like GPU budgets and bound nothing.", ("tenant",)
    ),
    UNREADABLE_BUDGET_KEYS: Metric(
        Type.GAUGE,
        "Budget keys of a tenant that cannot be read; what they bound is refused.",
        ("tenant",),
    ),
}
