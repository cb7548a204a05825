"""Evaluates the chart's rules and expressions with `promtool test rules`, on series as replicas expose them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.runtime.observability.metrics import METRICS
from tests.chart.charting import RELEASE, pick, render
from tests.realserver import binaries

PODS = (f"{RELEASE}-0", f"{RELEASE}-1")
TARGET_LABELS = {"pod", "le"}
Series = dict[str, str]


def series(name: str, values: float | str, **labels: str) -> Series:
    """One sample a minute. `values`: one number for two hours, or promtool's notation, e.g. `0+60x120`. Raises
    AssertionError for labels that a replica does not expose."""
    if name != "up":
        assert set(labels) - TARGET_LABELS == set(METRICS[name.removesuffix("_bucket")].labels), name
    own = ",".join(f'{key}="{text}"' for key, text in ({"job": RELEASE} | labels).items())
    return {"series": f"{name}{{{own}}}", "values": values if isinstance(values, str) else f"{values}x120"}


def on_both(name: str, values: float | str, **labels: str) -> list[Series]:
    """The same series of each of two replicas."""
    return [series(name, values, pod=pod, **labels) for pod in PODS]


def check(directory: Path, given: list[Series], *expected: dict[str, Any]) -> None:
    """`expected`: entries of promtool's `promql_expr_test`. Raises AssertionError with promtool's own words."""
    if shutil.which("promtool") is None:
        if binaries.required():
            pytest.fail("no promtool: Debian's `prometheus` has it")
        pytest.skip("no promtool: Debian's `prometheus` has it")
    rule = pick(render(monitoring=True), "PrometheusRule")
    (directory / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    test = {"interval": "1m", "input_series": given, "promql_expr_test": list(expected)}
    suite = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (directory / "test.yaml").write_text(json.dumps(suite))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def at(minutes: int, expression: str, *samples: tuple[dict[str, str], float]) -> dict[str, Any]:
    """What the expression gives after that many minutes: labels (`__name__` among them) and value of each sample."""
    return {
        "expr": expression,
        "eval_time": f"{minutes}m",
        "exp_samples": [{"labels": _labels(labels), "value": value} for labels, value in samples],
    }


def _labels(labels: dict[str, str]) -> str:
    own = ",".join(f'{key}="{text}"' for key, text in labels.items() if key != "__name__")
    return f"{labels.get('__name__', '')}{{{own}}}"
