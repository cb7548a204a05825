"""Values: what is refused and how it is told, and every value documented (N2)."""

import re

import pytest
import yaml

from tests.chart.charting import CHART, ENABLED, flags, helm, render, render_error


def leaves(values, prefix=""):
    """Dotted paths of the values a user sets; an empty map is one."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and key not in ("resources", "labels", "instanceLabels"):
            yield from leaves(value, f"{path}.")
        else:
            yield path


def test_N2_every_value_is_documented_and_no_other():
    documented = re.findall(r"^\| `([\w.]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE)
    assert documented == list(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"webhooks.timeoutSeconds": 9}, "at least 2 above controller.bindDeadlineSeconds"),
        ({"webhooks.timeoutSeconds": 31}, "timeoutSeconds"),
        ({"controller.terminationGracePeriodSeconds": 12}, "10 seconds beyond"),
        ({"controller.podDisruptionBudget.minAvailable": 2}, "must be below controller.replicas"),
        ({"controller.replicas": 0}, "replicas"),
        ({"controller.attachGraceSeconds": 15}, "at least twice controller.bindDeadlineSeconds"),
        ({"controller.bindDeadlineSeconds": 26}, "bindDeadlineSeconds"),
        ({"controller.reportStaleSeconds": 30}, "nodeAgent.intervalSeconds must be below"),
        ({"settings.rawNamePolicy": "Maybe"}, "rawNamePolicy"),
        ({"settings.resourceNames": ["gpu"]}, "resourceNames"),
        ({"settings.managerUsers": ["a,b"]}, "managerUsers"),
        ({"certificates.mode": "Magic"}, "mode"),
        ({"gpu.enable": True}, "enable"),
        ({"controller.replica": 2}, "replica"),
        ({"image.digest": "sha256:1"}, "digest"),
        ({"monitoring.runbookUrl": "RUNBOOK.md"}, "runbookUrl"),
        ({"monitoring.dashboard.kind": "Secret"}, "kind"),
        ({"monitoring.dashboard.instanceLabels": {"dashboards": None}}, "instanceLabels"),
    ],
)
def test_N2_a_wrong_value_is_refused_with_its_name(values, told):
    assert told in render_error(values)


def test_N2_long_release_names_stay_within_a_label():
    text = helm("template", "r" * 53, str(CHART), "--namespace", "n" * 40, *flags(ENABLED)).stdout
    for item in yaml.safe_load_all(text):
        name = item["metadata"]["name"]
        assert len(name) <= (63 if item["kind"] in ("StatefulSet", "Service", "Job", "DaemonSet") else 253)
        if item["kind"] == "StatefulSet":
            assert len(name) <= 52, "the pod's controller-revision-hash label is name-hash"


def test_N2_values_a_platform_injects_are_tolerated():
    assert render({"_cluster": {"host": "x"}, "global": {"a": 1}})
