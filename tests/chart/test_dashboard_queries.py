"""Every query of the dashboard evaluated on two replicas that expose the same state (N2, N4)."""

import pytest

from tests.chart.charting import RELEASE
from tests.chart.promtool import PODS, at, check, on_both, series
from tests.chart.test_monitoring import dashboard

FIRST, SECOND = PODS
UNITS = [
    series_of_class
    for name, state, value in (("a100", "free", 3), ("l40s", "free", 5), ("a100", "bound", 2))
    for series_of_class in on_both("gpu_binder_units", value, state=state, **{"class": name})
]


def buckets(name, within):
    """A histogram on both replicas: every observation lies between two bounds."""
    low, high = within
    return [
        item
        for le, rise in ((low, 0), (high, 60), ("+Inf", 60))
        for item in on_both(f"{name}_bucket", f"0+{rise}x120", le=le)
    ]


def by_pod(name, first, second):
    return [series(name, first, pod=FIRST), series(name, second, pod=SECOND)]


def named(name, pod, value):
    return {"__name__": name, "job": RELEASE, "pod": pod}, value


BIND, FOLD, DECIDE = (f"gpu_binder_{what}_seconds" for what in ("bind_latency", "fold", "decide"))
PANELS = {
    "Units by state A": (UNITS, [({"state": "free"}, 8), ({"state": "bound"}, 2)]),
    "Free units by class A": (UNITS, [({"class": "a100"}, 3), ({"class": "l40s"}, 5)]),
    "Lost devices A": (on_both("gpu_binder_lost_devices", 2), [({}, 2)]),
    "Leader A": (by_pod("gpu_binder_leader", 0, 1), [({}, 1)]),
    "Certificate ends in A": (
        by_pod("gpu_binder_certificate_expiry_timestamp_seconds", 90000, 80000), [({}, 80000 - 3600)],
    ),
    "Kinds not installed A": (
        on_both("gpu_binder_kind_missing", 1, kind="KubeVirt") + on_both("gpu_binder_kind_missing", 0, kind="Pod"),
        [({}, 1)],
    ),
    "Callers authenticated A": (by_pod("gpu_binder_webhook_auth_required", 1, 0), [({}, 0)]),
    "Time to a placement A": (buckets(BIND, ("1.0", "2.0")), [({}, 1.5)]),
    "Time to a placement B": (buckets(BIND, ("1.0", "2.0")), [({}, 1.9)]),
    "Time to a placement C": (buckets(BIND, ("1.0", "2.0")), [({}, 1.99)]),
    "Refusals by reason A": (
        on_both("gpu_binder_refusals_total", "0+30x120", reason="NoCapacity")
        + on_both("gpu_binder_refusals_total", "0+6x120", reason="OverBudget"),
        [({"reason": "NoCapacity"}, 1), ({"reason": "OverBudget"}, 0.2)],
    ),
    "Queue depth A": (
        by_pod("gpu_binder_queue_depth", 3, 4),
        [named("gpu_binder_queue_depth", FIRST, 3), named("gpu_binder_queue_depth", SECOND, 4)],
    ),
    "Fold and decide A": (buckets(FOLD, ("1.0", "2.0")), [({}, 1.99)]),
    "Fold and decide B": (buckets(DECIDE, ("1.0", "2.0")), [({}, 1.99)]),
    "Conflicts A": (on_both("gpu_binder_conflicts_total", "0+30x120"), [({}, 1)]),
    "Journal size A": (
        by_pod("gpu_binder_journal_bytes", 10, 20),
        [named("gpu_binder_journal_bytes", FIRST, 10), named("gpu_binder_journal_bytes", SECOND, 20)],
    ),
    "Journal lag A": (
        by_pod("gpu_binder_journal_lag_seconds", 0, 2),
        [named("gpu_binder_journal_lag_seconds", FIRST, 0), named("gpu_binder_journal_lag_seconds", SECOND, 2)],
    ),
    "Watch restarts A": (
        on_both("gpu_binder_watch_restarts_total", "0+30x120", kind="Pod")
        + on_both("gpu_binder_watch_restarts_total", 0, kind="Node"),
        [({"kind": "Pod"}, 1), ({"kind": "Node"}, 0)],
    ),
    "Unreadable objects A": (
        on_both("gpu_binder_unreadable_objects", 2, kind="Pod")
        + on_both("gpu_binder_unreadable_objects", 0, kind="Node"),
        [({"kind": "Pod"}, 2), ({"kind": "Node"}, 0)],
    ),
}  # fmt: skip
"""By panel and query: the series of both replicas, and what the query shows after an hour."""


def queries():
    """Expressions by panel title and query, with Grafana's variables filled in."""
    filled = {"$job": RELEASE, "$class": ".*", "$__rate_interval": "5m"}
    found = {}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"]
            for variable, value in filled.items():
                text = text.replace(variable, value)
            found[f"{panel['title']} {target['refId']}"] = text
    return found


def test_N4_every_query_of_the_dashboard_has_a_case():
    assert set(PANELS) == set(queries())


@pytest.mark.parametrize("name", PANELS)
def test_N4_two_replicas_are_not_counted_twice(tmp_path, name):
    given, expected = PANELS[name]
    check(tmp_path, given, at(60, queries()[name], *expected))


def test_N4_a_certificate_that_is_not_loaded_yet_shows_no_time_left(tmp_path):
    given = by_pod("gpu_binder_certificate_expiry_timestamp_seconds", 0, 80000)
    check(tmp_path, given, at(60, queries()["Certificate ends in A"], ({}, 0)))
