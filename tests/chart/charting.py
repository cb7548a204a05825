"""Rendering the charts without a cluster: finds helm, renders once per set of values, hands out objects."""

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.realserver import binaries

ROOT = Path(__file__).parents[2]
CHART = ROOT / "chart"
EXAMPLE = Path(__file__).parent / "tenant-example"
NAMESPACE = "cozy-gpu-binder"
RELEASE = "gpu-binder"
CLUSTER_NAME = f"{NAMESPACE}-{RELEASE}"
MONITORING_APIS = ("monitoring.coreos.com/v1/ServiceMonitor", "monitoring.coreos.com/v1/PrometheusRule")

ENABLED = {"gpu.enabled": True, "image.registry": "registry.example.org"}
"""The least that renders the chart."""

Manifest = dict[str, Any]


def helm_binary() -> str | None:
    """Helm as the user names it, as the tools of the real-server suite built it, or on the path."""
    if named := os.environ.get("GPU_BINDER_HELM"):
        return named
    built = binaries.find("helm")
    return str(built) if built else shutil.which("helm")


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    binary = helm_binary()
    if binary is None:
        if binaries.required():
            pytest.fail(f"no helm: build it with `{binaries.COMMAND}`")
        pytest.skip(f"no helm: set GPU_BINDER_HELM, or build it with `{binaries.COMMAND}`")
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=120, check=False)
    if check and done.returncode:
        raise AssertionError(f"helm {' '.join(arguments)}\n{done.stderr}")
    return done


def flags(values: dict[str, Any]) -> list[str]:
    """`--set-json` flags, one a value; a key is a dotted path."""
    import json

    return [part for key, value in values.items() for part in ("--set-json", f"{key}={json.dumps(value)}")]


@functools.cache
def _template(chart: str, *arguments: str) -> tuple[Manifest, ...]:
    text = helm("template", RELEASE, chart, "--namespace", NAMESPACE, *arguments).stdout
    return tuple(item for item in yaml.safe_load_all(text) if item)


def render(values: dict[str, Any] | None = None, *, monitoring: bool = False) -> list[Manifest]:
    """Objects of the chart with `ENABLED` and these values, hooks included."""
    apis = [part for api in MONITORING_APIS if monitoring for part in ("--api-versions", api)]
    return list(_template(str(CHART), *flags(ENABLED | (values or {})), *apis))


def render_error(values: dict[str, Any]) -> str:
    """The message with which rendering these values fails."""
    done = helm(
        "template", RELEASE, str(CHART), "--namespace", NAMESPACE,
        *flags(ENABLED | values), check=False,
    )  # fmt: skip
    assert done.returncode, "these values were accepted"
    return done.stderr


def render_example(values: dict[str, Any]) -> Manifest:
    (machine,) = _template(str(EXAMPLE), *flags(values))
    return machine


def pick(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    """The one object of `kind` whose name ends with `name`."""
    found = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(name)]
    assert len(found) == 1, [m["metadata"]["name"] for m in found]
    return found[0]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [m for m in manifests if m["kind"] == kind]


def pod_specs(manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
    """Pod specs by the kind and name of what makes the pods."""
    return {
        f"{m['kind']} {m['metadata']['name']}": m["spec"]["template"]["spec"]
        for m in manifests
        if m["kind"] in ("StatefulSet", "Deployment", "DaemonSet", "Job")
    }


def arguments(manifests: list[Manifest], kind: str = "StatefulSet") -> tuple[str, dict[str, str]]:
    """The command a workload's container runs, and its flags without dashes."""
    (container,) = pick(manifests, kind)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["gpu-binder"]
    command, *rest = container["args"]
    return command, dict(argument.removeprefix("--").split("=", 1) for argument in rest)
