"""Alert and dashboard expressions evaluated by `promtool test rules` on series as a replica exposes them (N2, N4)."""

import json
import shutil
import subprocess

import pytest
import yaml

from tests.chart.charting import RELEASE, pick, render
from tests.chart.test_monitoring import dashboard
from tests.realserver import binaries


def series(name, value, **labels):
    own = ",".join(f'{key}="{text}"' for key, text in ({"job": RELEASE} | labels).items())
    return {"series": f"{name}{{{own}}}", "values": f"{value}x60"}


def check(tmp_path, test):
    """Fails with promtool's own words."""
    if shutil.which("promtool") is None:
        if binaries.required():
            pytest.fail("no promtool: Debian's `prometheus` has it")
        pytest.skip("no promtool: Debian's `prometheus` has it")
    rule = pick(render(monitoring=True), "PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    suite = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [{"interval": "1m"} | test]}
    (tmp_path / "test.yaml").write_text(json.dumps(suite))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("problem", ["unmatched", "unreadable"])
def test_N2_budget_keys_alert_on_either_problem_alone(tmp_path, problem):
    fires = {"expr": 'count(ALERTS{alertname="GpuBinderBudgetKeys",alertstate="firing"})', "eval_time": "30m"}
    given = [series(f"gpu_binder_{problem}_budget_keys", 2, pod="gpu-binder-0")]
    check(tmp_path, {"input_series": given, "promql_expr_test": [fires | {"exp_samples": [{"value": 1}]}]})


def test_N4_units_by_state_sums_classes_and_counts_replicas_once(tmp_path):
    (panel,) = (panel for panel in dashboard()["panels"] if panel["title"] == "Units by state")
    expression = panel["targets"][0]["expr"].replace("$job", RELEASE).replace("$class", ".*")
    given = [
        series("gpu_binder_units", value, state="free", pod=pod, **{"class": name})
        for pod in ("gpu-binder-0", "gpu-binder-1")
        for name, value in (("a100", 3), ("l40s", 5))
    ]
    expected = {"expr": expression, "eval_time": "5m", "exp_samples": [{"labels": '{state="free"}', "value": 8}]}
    check(tmp_path, {"input_series": given, "promql_expr_test": [expected]})
