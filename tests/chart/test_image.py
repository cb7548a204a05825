"""The Dockerfile and the chart's metadata: pinned, non-root, labelled."""

import re

import yaml

from tests.chart.charting import CHART, ROOT, pick, render

DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [line for line in DOCKERFILE.splitlines() if line and not line.lstrip().startswith("#")]


def test_dependencies_come_from_the_lock_file_with_hashes_only():
    assert "--require-hashes" in DOCKERFILE and "requirements.lock" in DOCKERFILE
    installs = re.findall(r"pip [^&\n]*install ([^&\n]*)", DOCKERFILE)
    assert len(installs) == 2
    assert all("--no-deps" in install for install in installs)


def test_the_image_runs_as_the_user_of_the_chart_without_root():
    (user,) = [line.split()[1] for line in INSTRUCTIONS if line.startswith("USER")]
    context = pick(render(), "StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"


def test_signals_reach_the_process_itself():
    assert 'ENTRYPOINT ["gpu-binder"]' in INSTRUCTIONS
    assert "STOPSIGNAL SIGTERM" in INSTRUCTIONS


def test_the_image_is_labelled_and_names_its_sbom_command():
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in DOCKERFILE
    assert "--sbom=true" in DOCKERFILE


def test_everything_that_is_copied_passes_the_ignore_file():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in INSTRUCTIONS
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == kept


def test_chart_metadata_is_complete_and_versions_agree():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == ">=1.30.0-0"
    crds = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    assert {crd["kind"] for crd in crds} == {"GPUClass", "GPUDevice", "GPUNode"}
    project = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project and project[1] == chart["appVersion"]
    changelog = (ROOT / "chart" / "CHANGELOG.md").read_text()
    assert f"## {chart['version']}" in changelog and "### Upgrade notes" in changelog
