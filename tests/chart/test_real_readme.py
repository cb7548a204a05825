"""The chart's README leads from an empty cluster to a billed hour: its commands, run as they are written (N2, U3)."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from reconciler.cluster.memory.manifests import release_body
from reconciler.core.model.vocabulary import ROOT_TENANT
from tests.chart.api import wait_until
from tests.chart.charting import CHART, NAMESPACE, ROOT
from tests.chart.conftest import make_namespace
from tests.chart.policy_cases import KUBEVIRT, instance
from tests.chart.test_real_run import NODE, permit, running
from tests.realserver.binaries import find

pytestmark = pytest.mark.realserver
__all__ = ["running"]

TENANT, GPU = "tenant-acme", "nvidia.com/GA102GL_A10"
SECTION = (CHART / "README.md").read_text().partition("## From an empty cluster")[2].partition("\n## ")[0]
CLASS, ORDER, MACHINE, BILL = re.findall(r"```sh\n(.*?)```", SECTION, re.S)


@pytest.fixture
def bash(server, running, tmp_path):
    """Runs a block of the README. `kubectl` talks to the server as its administrator; `kubectl exec` runs the command
    on the journal of the replica, which has no container here."""
    tools = tmp_path / "bin"
    tools.mkdir()
    binder = f"{shlex.quote(sys.executable)} -c 'from reconciler.main import main; main()'"
    kubectl = f"{shlex.quote(str(find('kubectl')))} --kubeconfig={shlex.quote(str(server.kubeconfig))}"
    journal = running.directory / "journal.db"
    scripts = {
        "gpu-binder": f'exec {binder} "$@"',
        "kubectl": f"""
            if [ "$3" = exec ]; then
              [ "$2" = {NAMESPACE} ] || exit 9
              shift 6; set -- "${{@//\\/var\\/lib\\/gpu-binder\\/journal.db/{journal}}}"
              exec {binder} "$@"
            fi
            exec {kubectl} "$@" """,
    }
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/bash\n{script}\n")
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def run(block):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def provided(server, running):
    """What a cluster with KubeVirt and a GPU has before: the node's resource, the permission, the tenant."""
    amounts = {GPU: "1"}
    server.patch("Node", NODE, {"status": {"allocatable": amounts, "capacity": amounts}}, sub="status")
    permit(server, "nvidia.com/CHART_A10", GPU)
    for name in (ROOT_TENANT, TENANT):
        make_namespace(server, name)
        if not server.exists("HelmRelease", name, ROOT_TENANT):
            server.create({"kind": "HelmRelease", **release_body(name)}, ROOT_TENANT)
    yield
    for kind, name in (("VirtualMachineInstance", "trainer"), ("VirtualMachine", "trainer"), ("GPUDevice", "training")):
        if server.exists(kind, name, TENANT):
            server.delete(kind, name, TENANT)
    wait_until(lambda: not server.exists("GPUDevice", "training", TENANT), "the device is gone")
    server.delete("GPUClass", "a10")
    for name in (TENANT, ROOT_TENANT):
        server.delete("HelmRelease", name, ROOT_TENANT)


def test_N2_U3_the_readme_leads_from_an_empty_cluster_to_a_billed_hour(server, provided, bash):
    """N2, U3: virt-controller is played where the VirtualMachine has been applied."""
    bash(CLASS)
    bash(ORDER)
    applied, waited = MACHINE.rsplit("kubectl", 1)
    bash(applied)
    template = yaml.safe_load(re.search(r"<<YAML\n(.*?)\nYAML", MACHINE, re.S)[1])["spec"]["template"]
    made = instance("trainer", memory=template["spec"]["domain"]["memory"], **template["metadata"])
    server.as_user(KUBEVIRT).create(made, TENANT)
    bash(f"kubectl {waited}")
    table = bash(BILL)
    (line,) = [row for row in table.splitlines() if TENANT in row]
    assert " a10 " in line and "cost in EUR" in table
    held, bound, *_, cost = (float(cell) for cell in line.replace("│", " ").split()[2:])
    assert held > 0 and bound > 0 and cost == pytest.approx(held * 0.6 + bound * 2.4)
