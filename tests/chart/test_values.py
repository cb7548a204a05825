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


def volume(size, megabytes, *, persistent):
    """Values of a journal of that many MiB on a claim or an emptyDir of that size."""
    name = "journal.persistence.size" if persistent else "journal.sizeLimit"
    return {"journal.persistence.enabled": persistent, name: size, "journal.maxMegabytes": megabytes}


@pytest.mark.parametrize("persistent", [True, False], ids=["claim", "emptyDir"])
@pytest.mark.parametrize(
    ("size", "most"),
    [
        ("1Gi", 819),
        ("1.5Gi", 1228),
        ("1000Mi", 800),
        ("1G", 762),
        ("2000000000", 1525),
        ("1048576Ki", 819),
        ("1Ti", 838860),
        ("1T", 762939),
    ],
)
def test_N2_the_journal_leaves_a_fifth_of_its_volume(size, most, persistent):
    assert render(volume(size, most, persistent=persistent))
    told = render_error(volume(size, most + 1, persistent=persistent))
    name = "journal.persistence.size" if persistent else "journal.sizeLimit"
    assert f"journal.maxMegabytes ({most + 1}) must be at most 80 % of {name} ({size})" in told


def test_N2_only_the_volume_in_use_bounds_the_journal():
    assert render({"journal.persistence.enabled": True, "journal.sizeLimit": "1Mi"})
    assert render({"journal.persistence.size": "1Mi"})


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
        ({"settings.tenantDetail": "None"}, "tenantDetail"),
        ({"webhooks.clientAuth.mode": "Off"}, "mode"),
        ({"settings.resourceNames": ["gpu"]}, "resourceNames"),
        ({"settings.managerUsers": ["a,b"]}, "managerUsers"),
        ({"certificates.mode": "Magic"}, "mode"),
        ({"gpu.enable": True}, "enable"),
        ({"controller.replica": 2}, "replica"),
        ({"image.digest": "sha256:1"}, "digest"),
        ({"global.imagePullSecrets": [{"nam": "x"}]}, "imagePullSecrets"),
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
