"""The Dockerfile and the chart's metadata: pinned, non-root, labelled."""

import re
import tomllib

import pytest
import yaml

from tests.chart.charting import CHART, ENABLED, RELEASE, ROOT, flags, helm, pick, pod_specs, render, render_error

DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [line for line in DOCKERFILE.splitlines() if line and not line.lstrip().startswith("#")]


def test_dependencies_come_from_the_lock_file_with_hashes_only():
    assert "--require-hashes" in DOCKERFILE and "requirements.lock" in DOCKERFILE
    installs = re.findall(r"pip [^&\n]*install ([^&\n]*)", DOCKERFILE)
    assert len(installs) == 2
    assert all("--no-deps" in install for install in installs)


def test_j6_the_image_has_what_report_and_parquet_need():
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.M))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {re.match(r"[a-z0-9-]+", one)[0] for name in ("report", "parquet") for one in extras[name]} <= locked


def test_the_pods_scratch_space_holds_a_copy_of_the_journal():
    """Otherwise `journal export --copy -` would have the pod evicted."""
    volumes = pick(render({"journal.maxMegabytes": 500}), "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    (limit,) = [volume["emptyDir"]["sizeLimit"] for volume in volumes if volume["name"] == "tmp"]
    assert limit == "628Mi"


def test_the_image_runs_as_the_user_of_the_chart_without_root():
    (user,) = [line.split()[1] for line in INSTRUCTIONS if line.startswith("USER")]
    context = pick(render(), "StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"


def images(values):
    """The images of all pods, which are one."""
    specs = pod_specs(render(values))
    assert len(specs) == 3
    (image,) = {container["image"] for spec in specs.values() for container in spec["containers"]}
    return image


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({"image.registry": "r.example:5000/team"}, "r.example:5000/team/gpu-binder:0.1.0"),
        ({"image.registry": "r.example", "image.tag": "v2"}, "r.example/gpu-binder:v2"),
        ({"image.registry": "r.example", "image.digest": DIGEST, "image.tag": "v2"}, f"r.example/gpu-binder@{DIGEST}"),
        ({"image.registry": "r.example", "global.imageRegistry": "mirror.example"}, "mirror.example/gpu-binder:0.1.0"),
        ({"image.registry": "", "global.imageRegistry": "mirror.example"}, "mirror.example/gpu-binder:0.1.0"),
        ({"image.registry": "", "image.repository": "r.example/a/binder"}, "r.example/a/binder:0.1.0"),
        ({"image.registry": "", "image.repository": "localhost/binder"}, "localhost/binder:0.1.0"),
    ],
)
def test_N2_the_image_is_composed_of_registry_repository_and_tag_or_digest(values, image):
    assert images(values) == image


BUILD = "docker build -t REGISTRY/gpu-binder:0.1.0 . && docker push REGISTRY/gpu-binder:0.1.0"


@pytest.mark.parametrize("repository", ["gpu-binder", "team/gpu-binder"])
def test_N2_without_a_registry_rendering_stops_with_the_line_that_builds_the_image(repository):
    told = render_error({"image.registry": "", "image.repository": repository})
    assert BUILD.replace("gpu-binder", repository) in told and "--set image.registry=REGISTRY" in told


@pytest.mark.parametrize("registry", ["https://r.example", "r.example/"])
def test_N2_a_registry_is_a_host_and_a_path(registry):
    assert "registry" in render_error({"image.registry": registry})


@pytest.mark.parametrize("document", ["README.md", "chart/README.md", "Dockerfile"])
def test_N2_documents_say_the_line_that_builds_the_image(document):
    text = (ROOT / document).read_text()
    assert BUILD in text
    assert document == "Dockerfile" or "--set gpu.enabled=true --set image.registry=REGISTRY" in text


@pytest.mark.parametrize(("values", "registry"), [({}, "REGISTRY"), (ENABLED, ENABLED["image.registry"])])
def test_N2_the_release_notes_say_the_line_that_builds_the_image(values, registry):
    text = helm("install", RELEASE, str(CHART), "--dry-run=client", *flags(values)).stdout
    assert BUILD.replace("REGISTRY", registry) in text


def notes(values):
    return helm("install", RELEASE, str(CHART), "--dry-run=client", *flags({**ENABLED, **values})).stdout


def test_J6_the_release_notes_fetch_the_journals_of_all_replicas():
    text = notes({"controller.replicas": 3})
    assert "for n in $(seq 0 2); do kubectl -n " in text
    assert "gpu-binder journal export --copy - /var/lib/gpu-binder/journal.db > journal-$n.db" in text


def test_W7_the_release_notes_say_when_nothing_guards_the_webhooks():
    unguarded = "Nothing guards the webhooks' port"
    assert unguarded in notes({})
    guard = {"mode": "Require", "tokenSecret": {"name": "t", "key": "token"}}
    guards = [{"networkPolicy.webhooksFrom": [{"podSelector": {}}]}, {"networkPolicy.cilium": True}]
    for values in ({"webhooks.clientAuth": guard}, *guards):
        assert unguarded not in notes(values)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, None),
        ({"imagePullSecrets": [{"name": "own"}]}, ["own"]),
        ({"global.imagePullSecrets": [{"name": "platform"}]}, ["platform"]),
        ({"imagePullSecrets": [{"name": "own"}], "global.imagePullSecrets": ["platform", "own"]}, ["own", "platform"]),
        ({"global.imagePullSecrets": [{"name": "platform"}, "platform"]}, ["platform"]),
    ],
)
def test_N2_every_pod_pulls_with_the_secrets_of_the_chart_and_of_the_platform(values, names):
    specs = pod_specs(render(values))
    assert len(specs) == 3
    for spec in specs.values():
        assert spec.get("imagePullSecrets") == (names and [{"name": name} for name in names])


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
