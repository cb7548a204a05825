"""One story, billed twice: by the meter from either replica's journal, and by a reference model that watched the API
server's objects. The journal's page shows the loss, and a plan agrees with what is decided later (U1, U1b, U2, U3,
R7, J7)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from journal.sqlite import SqliteJournal
from reconciler.billing import export
from reconciler.cluster.memory.manifests import vmi_body
from reconciler.core.model.objects import POD, VMI
from reconciler.debugging.report.build import build
from reconciler.debugging.report.page import page
from tests.edges.test_report_browser import Browser, browser
from tests.realserver.binder import Binder
from tests.realserver.controlplane import ROOT, ControlPlane
from tests.realserver.usage_twin import Totals, Twin
from tests.realserver.world import CLASS_NAME, GPU, World, story

MAIN = "from reconciler.main import main; main()"
SETTLED_SECONDS = 4.0
"""Above the binders' settling time in these tests."""
__all__ = ["browser"]


def metered(paths: Sequence[Path], namespace: str, start: int, end: int) -> tuple[Totals, str]:
    """(unit milliseconds by subject and state, the export's bytes) of a window."""
    with TemporaryDirectory() as directory:
        journals = [_marked(path, Path(directory) / f"{number}.db", end) for number, path in enumerate(paths)]
        records = list(export.usage(journals, cluster="test", start=start, end=end, tenant=namespace))
        for journal in journals:
            journal.close()
    totals: Totals = defaultdict(int)
    for record in records:
        assert record.exact, record
        totals[(record.name, record.state.value)] += record.unit_milliseconds
    out = StringIO()
    export.write_jsonl(records, out)
    return dict(totals), out.getvalue()


def _marked(path: Path, copy: Path, end: int) -> SqliteJournal:
    """A copy of a journal as it is a minute later, when its idle replica has marked it past `end`."""
    live = SqliteJournal(str(path), readonly=True)
    try:
        live.copy_to(copy)
    finally:
        live.close()
    journal = SqliteJournal(str(copy))
    journal.mark(end + 1)
    return journal


async def planned_node(world: World, directory: Path, name: str, devices: list[Any]) -> str:
    """What `gpu-binder plan` says of a manifest against the live cluster."""
    manifest = vmi_body(name, devices) | {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance"}
    manifest["metadata"]["namespace"] = world.tenant
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(manifest))
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", MAIN, "plan", "-f", str(path), "-o", "json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": str(world.plane.kubeconfig("binder"))},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (plan,) = json.loads(done.stdout)["plans"]
    return str(plan["node"])


async def forged_launcher(world: World, vmi: str, node: str) -> str:
    """A pod with a launcher's labels and owner, which its VMI does not list (R7)."""
    owner = await world.ecosystem.get(VMI, world.tenant, vmi)
    assert owner is not None
    reference = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "name": vmi,
        "uid": owner["metadata"]["uid"],
    }
    resources = {"limits": {GPU: "1"}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "forged",
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": owner["metadata"]["uid"]},
            "annotations": {"kubevirt.io/domain": vmi},
            "ownerReferences": [reference],
        },
        "spec": {"nodeName": node, "containers": [{"name": "x", "image": "x", "resources": resources}]},
    }
    await world.ecosystem.tenant_port.create(POD, world.tenant, body)
    return "forged"


async def failover(world: World, follower: Binder) -> None:
    """The leader dies; the follower leads; the dead one comes back and follows."""
    world.binder.kill()
    await world.ecosystem.until(follower.leads, "the follower leads")
    await world.binder.start()


async def test_usage_is_the_twin_s_from_either_journal(
    control_plane: ControlPlane, tmp_path: Path, browser: Browser
) -> None:
    async with story(control_plane, tmp_path, a=4, b=3) as world:
        follower = await world.add_binder()
        twin = Twin(world.ecosystem.admin, world.tenant, GPU)
        await twin.start()
        start = round(time.time() * 1000)
        node_a, node_b = world.node("a"), world.node("b")

        await world.held("d1")
        await world.held("d2", 2)
        plan = await planned_node(world, tmp_path, "vm1", ["d1", {"className": CLASS_NAME, "count": 1}])
        await world.ecosystem.vmi(world.tenant, "vm1", ["d1", {"className": CLASS_NAME, "count": 1}])
        assert (await world.running("vm1"))["status"]["nodeName"] == plan == node_b
        await world.ecosystem.vmi(world.tenant, "vm2", ["d2"])
        assert (await world.running("vm2"))["status"]["nodeName"] == node_a

        await forged_launcher(world, "vm2", node_a)
        await world.ecosystem.pod(world.tenant, "raw", {GPU: 1}, node_b)
        await asyncio.sleep(SETTLED_SECONDS)

        await world.ecosystem.allocatable(node_a, {GPU: 1})
        await world.becomes("d2", "Lost")
        await failover(world, follower)
        await world.serve_from(follower)
        await world.ecosystem.allocatable(node_a, {GPU: 4})
        await world.becomes("d2", "Bound")

        await asyncio.to_thread(
            control_plane.kubectl, "delete", "pod", "raw", "-n", world.tenant, "--grace-period=1", user="tenant"
        )
        await world.ecosystem.delete_vmi(world.tenant, "vm1")
        await world.becomes("d1", "Held")
        await asyncio.to_thread(control_plane.kubectl, "delete", "gpudevice", "d1", "-n", world.tenant, user="tenant")
        await asyncio.sleep(SETTLED_SECONDS)
        end = round(time.time() * 1000)
        await asyncio.sleep(1.0)
        await twin.stop()
        paths = [world.binder.journal, follower.journal]
        for binder in (world.binder, follower):
            assert await binder.stop() == 0

    expected = twin.totals(start, end)
    assert {state for _, state in expected} == {"held", "bound", "lost", "raw"}
    assert expected[("forged", "raw")] > 0
    exports = []
    for chosen in ([paths[0]], [paths[1]], paths):
        totals, text = metered(chosen, world.tenant, start, end)
        assert totals == expected
        exports.append(text)
    assert exports[0] == exports[1] == exports[2]

    journal = SqliteJournal(str(paths[0]), readonly=True)
    browser.open(page(build(journal), "billing"), tmp_path / "report.html")
    assert len(browser.incidents(1)) == 1, "the loss is marked"
    assert not browser.errors
    journal.close()
