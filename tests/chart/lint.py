"""`python -m tests.chart.lint`: helm's own lint and a full render of both charts, in every mode, without a cluster."""

import subprocess
import sys

import yaml

from tests.chart.charting import CHART, ENABLED, EXAMPLE, flags, helm_binary

MODES = {
    "off": {},
    "defaults": ENABLED,
    "everything": ENABLED
    | {
        "certificates.mode": "CertManager",
        "journal.persistence.enabled": True,
        "rbac.classesReadableByAll": True,
        "monitoring.serviceMonitor.enabled": True,
        "monitoring.prometheusRule.enabled": True,
        "networkPolicy.metricsFrom": [{"podSelector": {}}],
        "monitoring.dashboard.kind": "GrafanaDashboard",
        "imagePullSecrets": [{"name": "registry"}],
    },
    "least": ENABLED
    | {
        "controller.replicas": 1,
        "policy.enabled": False,
        "nodeAgent.enabled": False,
        "networkPolicy.enabled": False,
        "uninstall.enabled": False,
        "rbac.aggregateToTenantRoles": False,
        "monitoring.dashboard.enabled": False,
    },
}


def main() -> int:
    """The exit code; what is wrong goes to standard error in helm's words."""
    binary = helm_binary()
    if binary is None:
        print("no helm: build it with `python -m tests.realserver.binaries`", file=sys.stderr)  # noqa: T201
        return 1
    for name, values in MODES.items():
        _run(binary, "lint", "--strict", "--quiet", str(CHART), *flags(values))
        text = _run(binary, "template", "gpu-binder", str(CHART), "--namespace", "cozy-gpu-binder", *flags(values))
        objects = [item for item in yaml.safe_load_all(text) if item]
        print(f"{name}: {len(objects)} objects")  # noqa: T201
    _run(binary, "lint", "--strict", "--quiet", str(EXAMPLE))
    return 0


def _run(binary: str, *arguments: str) -> str:
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        sys.exit(f"helm {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
