"""Alerts, dashboard and runbook refer to existing metrics and to each other (N2, N4)."""

import json
import re

import pytest
import yaml

from reconciler.runtime.observability import metrics
from tests.chart.charting import CHART, RELEASE, of_kind, pick, render

METRICS = {name: metric.labels for name, metric in metrics.METRICS.items()}
"""The documented metrics with their own labels; histograms carry the usual suffixes."""
TARGET_LABELS = {"job", "pod", "namespace", "instance", "le"}


def used(expression):
    """Metric names in an expression, histogram suffixes removed."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"gpu_binder_[a-z_]+", expression)}


def labels(expression):
    """Labels that the expression selects on or groups by."""
    inside = re.findall(r"\{([^}]*)\}", expression)
    selected = {name for text in inside for name in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", text)}
    grouped = {name.strip() for text in re.findall(r"by \(([^)]*)\)", expression) for name in text.split(",")}
    return selected | grouped


def dashboard():
    return json.loads((CHART / "files/dashboards/gpu-binder.json").read_text())


def dashboard_expressions():
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def alerts():
    return yaml.safe_load((CHART / "files/alerts.yaml").read_text())["alerts"]


def expressions():
    return dashboard_expressions() + [alert["expr"] for alert in alerts()]


@pytest.mark.parametrize("expression", expressions())
def test_N4_only_documented_metrics_and_labels_are_used(expression):
    names = used(expression)
    assert names <= set(METRICS) or expression.startswith("absent(up")
    own = {label for name in names for label in METRICS[name]}
    assert labels(expression) <= own | TARGET_LABELS


def test_N4_every_documented_metric_is_shown_or_alerted_on():
    shown = set().union(*(used(expression) for expression in expressions()))
    assert shown == set(METRICS)


def test_N2_every_alert_has_its_runbook_section_and_no_section_is_left_over():
    sections = re.findall(r"^## (\w+)$", (CHART / "RUNBOOK.md").read_text(), re.MULTILINE)
    assert sections == [alert["alert"] for alert in alerts()]


def rules(**monitoring):
    """The rendered rules under these values of `monitoring`."""
    values = {f"monitoring.{name}": value for name, value in monitoring.items()}
    (group,) = pick(render(values, monitoring=True), "PrometheusRule")["spec"]["groups"]
    return group["rules"]


def test_N2_alerts_link_to_a_section_of_the_published_runbook():
    headings = re.findall(r"^#+ (.+)$", (CHART / "RUNBOOK.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    for entry in rules(runbookUrl="https://docs.example.org/gpu/RUNBOOK.md"):
        page, anchor = entry["annotations"]["runbook_url"].split("#")
        assert page == "https://docs.example.org/gpu/RUNBOOK.md"
        assert anchor in anchors


def test_N2_alerts_carry_no_link_where_no_runbook_is_published():
    assert all("runbook_url" not in entry["annotations"] for entry in rules())


def test_N2_the_rule_carries_the_release_job():
    found = rules()
    assert len(found) == len(alerts())
    for entry in found:
        assert f'job="{RELEASE}"' in entry["expr"] and "JOB" not in entry["expr"]
        assert entry["labels"]["severity"] in ("warning", "critical")


def test_N2_monitor_objects_follow_what_the_cluster_serves():
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert not of_kind(render(), kind)
        assert of_kind(render(monitoring=True), kind)
    off = {"monitoring.serviceMonitor.enabled": False, "monitoring.prometheusRule.enabled": False}
    assert not of_kind(render(off, monitoring=True), "ServiceMonitor")
    manifests = render(monitoring=True)
    monitor = pick(manifests, "ServiceMonitor")["spec"]
    service = pick(manifests, "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]


def test_N2_the_dashboard_is_valid_and_found_by_the_sidecar():
    board = dashboard()
    idents = [panel["id"] for panel in board["panels"]]
    assert len(idents) == len(set(idents))
    assert all(panel["title"] and (panel["type"] == "row" or panel["description"]) for panel in board["panels"])
    item = pick(render(), "ConfigMap", "-dashboard")
    assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(item["data"]["gpu-binder.json"]) == board


def test_N2_the_dashboard_is_imported_by_the_grafana_operator_from_any_namespace():
    values = {"monitoring.dashboard.kind": "GrafanaDashboard"}
    spec = pick(render(values), "GrafanaDashboard")["spec"]
    assert json.loads(spec.pop("json")) == dashboard()
    assert spec == {
        "allowCrossNamespaceImport": True,
        "instanceSelector": {"matchLabels": {"dashboards": "grafana"}},
    }
    assert not [item for item in of_kind(render(values), "ConfigMap") if "dashboard" in item["metadata"]["name"]]
    chosen = values | {"monitoring.dashboard.instanceLabels": {"dashboards": None, "grafana": "ours"}}
    selector = pick(render(chosen), "GrafanaDashboard")["spec"]["instanceSelector"]
    assert selector == {"matchLabels": {"grafana": "ours"}}


def test_N2_the_dashboard_can_be_left_out():
    for kind in ("ConfigMap", "GrafanaDashboard"):
        found = render({"monitoring.dashboard.kind": kind, "monitoring.dashboard.enabled": False})
        assert not [item for item in found if item["metadata"]["name"].endswith("-dashboard")]


def test_N2_the_dashboard_panels_do_not_overlap():
    taken = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }  # fmt: skip
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
