"""The played virt-controller treats VirtualMachines as the real one does (P7, W8)."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.cluster.memory.json_objects import Document
from reconciler.core.model.objects import VMI
from tests.realserver.controlplane import ControlPlane
from tests.realserver.ecosystem import RealEcosystem
from tests.realserver.kubevirt import VM, WebhookServer, webhook_configuration
from tests.realserver.registration import MUTATING, in_force, put, remove

pytestmark = pytest.mark.realserver


async def status(ecosystem: RealEcosystem, namespace: str, name: str) -> Document:
    machine = await ecosystem.get(VM, namespace, name)
    return (machine or {}).get("status") or {}


async def test_p7_a_refused_start_keeps_its_first_message_and_an_edit_tries_at_once(
    control_plane: ControlPlane, ecosystem: RealEcosystem, name: str
) -> None:
    """P7: pauses double from 5 ms. After eight refusals the next comes by itself after seconds, after an edit now."""
    refusals: list[str] = []
    open_now = False

    async def guard(review: dict[str, Any]) -> dict[str, Any]:
        refusals.append(f"refusal {len(refusals)}")
        response = {"uid": review["request"]["uid"], "allowed": open_now, "status": {"message": refusals[-1]}}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

    namespace = await ecosystem.tenant(name)
    server = WebhookServer(control_plane.authority, {"/guard": guard})
    await server.start()
    configuration = f"guard-{name}"
    rule = {"apiGroups": [VMI.group], "apiVersions": ["v1"], "resources": [VMI.plural], "operations": ["CREATE"]}
    inside = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    body = webhook_configuration(
        configuration,
        "guard.example.org",
        f"{server.base_url}/guard",
        server.ca_pem,
        rule,
        namespaceSelector=inside,
    )
    try:
        await put(ecosystem.admin, MUTATING, body)
        await in_force(ecosystem.admin)
        await ecosystem.vm(namespace, "m1")
        await ecosystem.until(lambda: len(refusals) >= 8, "eight attempts")
        (failure,) = (await status(ecosystem, namespace, "m1"))["conditions"]
        assert failure["reason"] == "FailedCreate"
        assert failure["message"].startswith("Failure while starting VMI: admission webhook")
        assert failure["message"].endswith("refusal 0")
        open_now = True
        await ecosystem.tenant_port.patch(VM, namespace, "m1", {"metadata": {"annotations": {"edited": "yes"}}})

        async def created() -> bool:
            return "conditions" not in await status(ecosystem, namespace, "m1")

        await ecosystem.until(created, "the failure has gone")
    finally:
        await remove(ecosystem.admin, MUTATING, configuration)
        await server.stop()


async def test_a_machine_that_never_runs_is_restarted_with_growing_delays(ecosystem: RealEcosystem, name: str) -> None:
    namespace = await ecosystem.tenant(name)
    node = f"{name}-n1"
    await ecosystem.add_node(node, {})
    ecosystem.hold(node)
    await ecosystem.vm(namespace, "m1", spec={"nodeSelector": {"kubernetes.io/hostname": node}})
    uids = set()
    for failures in (1, 2):

        async def launched() -> bool:
            vmi = await ecosystem.get(VMI, namespace, "m1")
            fresh = vmi is not None and vmi["metadata"]["uid"] not in uids
            return fresh and bool(await ecosystem.launchers(namespace, "m1"))

        await ecosystem.until(launched, "a launcher")
        vmi = await ecosystem.get(VMI, namespace, "m1")
        assert vmi is not None
        uids.add(vmi["metadata"]["uid"])
        await ecosystem.finish(namespace, "m1", "Failed")

        async def crashed(failures: int = failures) -> bool:
            told = await status(ecosystem, namespace, "m1")
            counted = (told.get("startFailure") or {}).get("consecutiveFailCount")
            return told.get("printableStatus") == "CrashLoopBackOff" and counted == failures

        await ecosystem.until(crashed, f"failure {failures} is told")
    ecosystem.let_go(node)
