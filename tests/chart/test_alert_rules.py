"""Every alert evaluated on series as the replicas expose them: it fires after its time, and not otherwise (N2, N4)."""

from typing import NamedTuple

import pytest

from tests.chart.charting import RELEASE
from tests.chart.promtool import PODS, Series, at, check, on_both, series
from tests.chart.test_monitoring import alerts

FIRST, SECOND = PODS
WEEK = 7 * 86400


class Case(NamedTuple):
    """`firing`: series on which the alert fires, with `labels`, once its expression has held for its time.
    `begins`: minutes until the expression holds. `quiet`: series on which it never does, by what they show."""

    firing: list[Series]
    quiet: dict[str, list[Series]]
    labels: dict[str, str] = {}
    begins: int = 0


def up(first: float | str, second: float | str) -> list[Series]:
    return [series("up", first, pod=FIRST), series("up", second, pod=SECOND)]


def leaders(first: float | str, second: float | str) -> list[Series]:
    return [series("gpu_binder_leader", first, pod=FIRST), series("gpu_binder_leader", second, pod=SECOND)]


def binds(fast: str, slow: str) -> list[Series]:
    """Buckets of the bind latency: starts within 5 seconds and starts that took up to 8."""
    name = "gpu_binder_bind_latency_seconds_bucket"
    return [series(name, fast, pod=FIRST, le="5.0")] + [series(name, slow, pod=FIRST, le=le) for le in ("8.0", "+Inf")]


CASES = {
    "GpuBinderDown": Case(
        firing=up(0, 0),
        quiet={"one of two is up": up(0, 1), "a restart": up("1x10 0x3 1x120", "1x10 0x3 1x120")},
    ),
    "GpuBinderNoLeader": Case(
        firing=leaders(0, 0) + up(1, 1),
        quiet={
            "one leads": leaders(0, 1) + up(1, 1),
            "a change of leader": leaders("1x10 0x120", "0x11 1x120") + up(1, 1),
            "no replica is up, which has its own alert": up(0, 0),
        },
    ),
    "GpuBinderTwoLeaders": Case(
        firing=leaders(1, 1),
        quiet={"one leads": leaders(0, 1), "one steps down late": leaders("1x11 0x120", "0x10 1x120")},
    ),
    "GpuBinderDevicesLost": Case(
        firing=on_both("gpu_binder_lost_devices", 1),
        quiet={
            "none is lost": on_both("gpu_binder_lost_devices", 0),
            "lost for a moment": on_both("gpu_binder_lost_devices", "0x10 1x3 0x120"),
        },
    ),
    "GpuBinderQueueStuck": Case(
        firing=[series("gpu_binder_queue_depth", 101, pod=SECOND), series("gpu_binder_queue_depth", 0, pod=FIRST)],
        quiet={
            "the threshold": on_both("gpu_binder_queue_depth", 100),
            "it drains every ten minutes": on_both("gpu_binder_queue_depth", "0 500x8 " * 12),
        },
        labels={"job": RELEASE, "pod": SECOND},
    ),
    "GpuBinderJournalLag": Case(
        firing=[
            series("gpu_binder_journal_lag_seconds", 0, pod=FIRST),
            series("gpu_binder_journal_lag_seconds", 6, pod=SECOND),
        ],
        quiet={
            "the threshold": on_both("gpu_binder_journal_lag_seconds", 5),
            "two replicas in turn, neither for long": [
                series("gpu_binder_journal_lag_seconds", "9x2 0x2 " * 20, pod=FIRST),
                series("gpu_binder_journal_lag_seconds", "0x2 9x2 " * 20, pod=SECOND),
            ],
        },
        labels={"pod": SECOND},
    ),
    "GpuBinderBindSlow": Case(
        firing=binds("0+10x120", "0+11x120"),
        quiet={
            "nothing starts": binds("0x120", "0x120"),
            "the slowest one in a hundred": binds("0+198x120", "0+200x120"),
            "one slow start alone": binds("0x120", "0x20 1x100"),
        },
        begins=1,
    ),
    "GpuBinderConflicts": Case(
        firing=on_both("gpu_binder_conflicts_total", "0+31x120"),
        quiet={
            "the threshold": on_both("gpu_binder_conflicts_total", "0+30x120"),
            "a counter that starts anew": [series("gpu_binder_conflicts_total", "90000+10x60 0+10x60", pod=FIRST)],
        },
        begins=10,
    ),
    "GpuBinderCertificateExpires": Case(
        firing=[
            series("gpu_binder_certificate_expiry_timestamp_seconds", WEEK - 1, pod=FIRST),
            series("gpu_binder_certificate_expiry_timestamp_seconds", 9 * WEEK, pod=SECOND),
        ],
        quiet={
            "a week and the two hours of this test": on_both(
                "gpu_binder_certificate_expiry_timestamp_seconds", WEEK + 7200
            ),
            "none loaded while a replica starts": [
                series("gpu_binder_certificate_expiry_timestamp_seconds", f"0x10 {9 * WEEK}x110", pod=FIRST)
            ],
        },
    ),
    "GpuBinderStrangers": Case(
        firing=[
            series("gpu_binder_webhook_strangers_total", "0+1x120", pod=FIRST),
            series("gpu_binder_webhook_strangers_total", 0, pod=SECOND),
        ],
        quiet={
            "none": on_both("gpu_binder_webhook_strangers_total", 0),
            "long ago": on_both("gpu_binder_webhook_strangers_total", 3),
        },
        labels={"pod": FIRST},
        begins=1,
    ),
    "GpuBinderWatchRestarts": Case(
        # One replica at the longest delay between two attempts, 15 seconds; the other has no trouble.
        firing=[
            series("gpu_binder_watch_restarts_total", "0+4x120", kind="Pod", pod=FIRST),
            series("gpu_binder_watch_restarts_total", 0, kind="Pod", pod=SECOND),
            *on_both("gpu_binder_watch_restarts_total", 0, kind="Node"),
        ],
        quiet={
            "an API server that restarts": on_both("gpu_binder_watch_restarts_total", "0x10 8x1 13x110", kind="Pod"),
            "the threshold": [series("gpu_binder_watch_restarts_total", "0+3x120", kind="Pod", pod=FIRST)],
        },
        labels={"kind": "Pod"},
        begins=12,
    ),
    "GpuBinderKindMissing": Case(
        firing=on_both("gpu_binder_kind_missing", 1, kind="KubeVirt")
        + on_both("gpu_binder_kind_missing", 0, kind="Pod"),
        quiet={"every kind is served": on_both("gpu_binder_kind_missing", 0, kind="KubeVirt")},
        labels={"kind": "KubeVirt"},
    ),
    "GpuBinderUnreadableObjects": Case(
        firing=on_both("gpu_binder_unreadable_objects", 2, kind="Pod")
        + on_both("gpu_binder_unreadable_objects", 0, kind="Node"),
        quiet={"none": on_both("gpu_binder_unreadable_objects", 0, kind="Pod")},
        labels={"kind": "Pod"},
    ),
    "GpuBinderBudgetKeys": Case(
        firing=on_both("gpu_binder_unmatched_budget_keys", 1, tenant="tenant-a"),
        quiet={
            "no tenant has such a key": on_both("gpu_binder_leader", 0),
            "a key that is corrected": on_both("gpu_binder_unmatched_budget_keys", "1x10 stale", tenant="tenant-a"),
        },
    ),
}


def alert(name):
    return next(found for found in alerts() if found["alert"] == name)


def minutes(text):
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def firing(name):
    return f'ALERTS{{alertname="{name}",alertstate="firing"}}'


def test_N4_every_alert_has_a_case():
    assert set(CASES) == {found["alert"] for found in alerts()}


@pytest.mark.parametrize("name", CASES)
def test_N4_the_alert_fires_once_its_time_is_over(tmp_path, name):
    case, rule = CASES[name], alert(name)
    due = case.begins + minutes(rule["for"])
    labels = {"__name__": "ALERTS", "alertname": name, "alertstate": "firing", "severity": rule["severity"]}
    check(tmp_path, case.firing, at(due - 1, firing(name)), at(due, firing(name), (labels | case.labels, 1)))


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, case in CASES.items() for what in case.quiet])
def test_N4_the_alert_stays_quiet(tmp_path, name, what):
    never = f"count_over_time({firing(name)}[2h])"
    check(tmp_path, CASES[name].quiet[what], at(119, never))


@pytest.mark.parametrize("problem", ["unmatched", "unreadable"])
def test_N2_budget_keys_alert_on_either_problem_alone(tmp_path, problem):
    name = "GpuBinderBudgetKeys"
    given = on_both(f"gpu_binder_{problem}_budget_keys", 2, tenant="tenant-a")
    check(tmp_path, given, at(30, f"count({firing(name)})", ({}, 1)))


def test_N4_the_budget_keys_of_all_tenants_are_counted_and_each_replica_once(tmp_path):
    given = [
        *on_both("gpu_binder_unmatched_budget_keys", 2, tenant="tenant-a"),
        *on_both("gpu_binder_unmatched_budget_keys", 1, tenant="tenant-b"),
        *on_both("gpu_binder_unreadable_budget_keys", 4, tenant="tenant-a"),
    ]
    expression = alert("GpuBinderBudgetKeys")["expr"].replace("JOB", RELEASE)
    check(tmp_path, given, at(5, expression, ({}, 7)))
