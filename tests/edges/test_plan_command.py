"""The `plan` command: manifests and their errors, a journal at a time, a live cluster, and the same VM started
afterwards (J7, K1, W2, B2)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from journal.sqlite import SqliteJournal
from journal.store import MemoryJournal
from reconciler.cluster.port import KindMissing, Rejected
from reconciler.commands.exit_codes import EXIT_CLUSTER, EXIT_DIFFERS
from reconciler.commands.manifests import ManifestError, plan_all, read
from reconciler.commands.plan import plan_command
from reconciler.core.model.objects import (
    CLASS,
    CLOCK_MARGIN,
    DEVICE,
    GPU_NODE,
    KINDS,
    KUBEVIRT,
    NODE,
    RELEASE,
    SETTINGS,
    VMI,
    Function,
    Settings,
)
from reconciler.core.model.vocabulary import (
    DEVICES_ANNOTATION,
    DEVICES_LABEL,
    SCHEDULABLE_LABEL,
    TENANT_KIND,
    TENANT_KIND_LABEL,
    RawNamePolicy,
)
from reconciler.debugging.planning.live import read_state
from reconciler.debugging.planning.plan import Outcome
from reconciler.demo.embedded import NAMESPACE
from reconciler.demo.environment import Environment
from tests.core.world import NS, R, World
from tests.edges.fake_api import FakeApi, collection

KUBEVIRT_API = f"{VMI.group}/{VMI.version}"


def machine(name: str, references: Any, *, kind: str = "VirtualMachine", **spec: Any) -> dict[str, Any]:
    metadata = {
        "labels": {DEVICES_LABEL: "true"},
        "annotations": {DEVICES_ANNOTATION: references if isinstance(references, str) else json.dumps(references)},
    }
    body = {"domain": {"devices": {}}, **spec}
    if kind == VMI.name:
        metadata |= {"name": name, "namespace": NS}
        return {"apiVersion": KUBEVIRT_API, "kind": kind, "metadata": metadata, "spec": body}
    template = {"metadata": metadata, "spec": body}
    return {
        "apiVersion": KUBEVIRT_API,
        "kind": kind,
        "metadata": {"name": name, "namespace": NS},
        "spec": {"template": template},
    }


def order(name: str, class_name: str = "a10", count: int = 1) -> dict[str, Any]:
    spec = {"className": class_name, "count": count}
    return {
        "apiVersion": DEVICE.api_version,
        "kind": DEVICE.name,
        "metadata": {"name": name, "namespace": NS},
        "spec": spec,
    }


def write(path: Path, *documents: Any) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def journal_of(world: World, path: Path) -> str:
    journal = SqliteJournal(str(path))
    for entry in world.entries:
        journal.append([entry.event], at=entry.at, batch=entry.batch)
    journal.close()
    return str(path)


def call(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(plan_command, list(arguments), input=stdin)


# Manifests and a journal


def test_j7_documents_are_planned_one_after_another_each_on_what_the_last_left(tmp_path: Path) -> None:
    world = World().ready(("n1", 2), ("n2", 4))
    file = journal_of(world, tmp_path / "journal.db")
    manifest = write(
        tmp_path / "all.yaml",
        order("mine", count=2),
        machine("one", [{"device": "mine"}]),
        {"kind": "List", "items": [machine("two", [{"template": {"className": "a10", "count": 4}}])]},
        machine("three", [{"template": {"className": "a10"}}], kind=VMI.name),
    )
    result = call("-f", manifest, "--journal", file, "-o", "json")
    assert result.exit_code == EXIT_DIFFERS, result.output
    plans = json.loads(result.stdout)["plans"]
    assert [(plan["outcome"], plan.get("node", "")) for plan in plans] == [
        ("Held", ""),
        ("Bound", "n1"),
        ("Bound", "n2"),
        ("Blocked", ""),
    ]
    assert [blocker["missing"] for blocker in plans[3]["blockers"]] == [1, 1]
    assert [verdict["missing"] for verdict in plans[3]["nodes"]] == [1, 1]


def test_j7_a_journal_is_asked_at_a_moment(tmp_path: Path) -> None:
    world = World().ready(("n1", 1))
    before = world.state.seq
    world.pod("raw", "n1", 1)
    file = journal_of(world, tmp_path / "journal.db")
    manifest = write(tmp_path / "order.yaml", order("mine"))
    assert call("-f", manifest, "--journal", file, "--at", str(before)).exit_code == 0
    result = call("-f", manifest, "--journal", file)
    assert result.exit_code == EXIT_DIFFERS
    assert "NoFreeUnits" in result.stdout and "1 in raw use" in " ".join(result.stdout.split())


def test_j7_a_plan_of_a_running_vm_is_its_restart(tmp_path: Path) -> None:
    world = World().ready(("n1", 1))
    world.order("mine")
    world.start("vm", "mine")
    manifests = read((write(tmp_path / "vm.yaml", machine("vm", [{"device": "mine"}])),), None)
    (planned,) = plan_all(world.state, manifests)
    assert (planned.outcome, planned.node) == (Outcome.BOUND, "n1")
    assert "restart" in planned.notes[0]
    (existing,) = plan_all(world.state, read((write(tmp_path / "order.yaml", order("mine")),), None))
    assert existing.outcome is Outcome.HELD and "Bound" in existing.notes[0]
    (changed,) = plan_all(world.state, read((write(tmp_path / "order.yaml", order("mine", count=2)),), None))
    assert changed.blockers[0].reason == "ImmutableField"


def test_o2_an_order_that_is_being_deleted_is_no_order_to_apply_again(tmp_path: Path) -> None:
    """O2: the same manifest plans as blocked until the old device is gone."""
    world = World().ready(("n1", 2))
    world.order("d1", count=2)
    world.start("vm", "d1", units=2)
    world.change(DEVICE, NS, "d1", deleting=world.at)
    manifest, file = write(tmp_path / "d1.yaml", order("d1", count=2)), journal_of(world, tmp_path / "journal.db")
    found = call("-f", manifest, "--journal", file)
    assert found.exit_code == 1 and "is Releasing" in found.output


def test_w2_what_the_webhook_would_refuse_is_among_the_blockers(tmp_path: Path) -> None:
    world = World(raw_name_policy=RawNamePolicy.FORBIDDEN).ready(("n1", 4))
    world.order("taken")
    world.start("other", "taken")
    raw = {"domain": {"devices": {"gpus": [{"name": "mine", "deviceName": R}]}}}
    references = [{"device": "taken"}, {"device": "absent"}]
    (planned,) = plan_all(world.state, read((write(tmp_path / "vm.yaml", machine("vm", references, **raw)),), None))
    reasons = [blocker.reason for blocker in planned.blockers]
    assert reasons == ["RawNameForbidden", "UnknownDevice", "DeviceAttached"]


def test_j7_an_instancetype_leaves_the_memory_open_and_the_plan_says_so(tmp_path: Path) -> None:
    world = World().ready(("n1", 1))
    manifest = machine("vm", [{"template": {"className": "a10"}}])
    manifest["spec"]["instancetype"] = {"name": "u1.large"}
    (planned,) = plan_all(world.state, read((write(tmp_path / "vm.yaml", manifest),), None))
    assert planned.outcome is Outcome.BOUND and "u1.large" in planned.notes[0]


def _without(manifest: dict[str, Any], *path: str) -> dict[str, Any]:
    inner = manifest
    for part in path[:-1]:
        inner = inner[part]
    del inner[path[-1]]
    return manifest


BROKEN = {
    "not YAML": ("a: [", "is not YAML"),
    "no object": ("- a\n- b", "document 1: must be an object"),
    "nothing to plan": ("kind: Service", "contains Service; plan accepts VirtualMachine"),
    "wrong group": (yaml.safe_dump(order("a") | {"apiVersion": "v1"}), "document 1, apiVersion: is 'v1'"),
    "no name": (yaml.safe_dump(_without(order("a"), "metadata", "name")), "metadata.name: is missing"),
    "no namespace": (
        yaml.safe_dump(_without(order("a"), "metadata", "namespace")),
        "metadata.namespace: is missing; set it or give --namespace",
    ),
    "count of a word": (
        yaml.safe_dump(order("a") | {"spec": {"className": "a", "count": "x"}}),
        "spec.count: Expected",
    ),
    "count of nothing": (yaml.safe_dump(order("a", count=0)), "spec.count: is 0; it must be between 1 and"),
    "no class": (yaml.safe_dump(order("a") | {"spec": {}}), "spec: Object missing required field `className`"),
    "unknown field": (
        yaml.safe_dump(order("a") | {"spec": {"className": "a", "unit": 2}}),
        "unknown field `unit`",
    ),
    "no label": (
        yaml.safe_dump(_without(machine("a", []), "spec", "template", "metadata", "labels")),
        f'spec.template.metadata.labels: label {DEVICES_LABEL}: "true" is missing, although the annotation',
    ),
    "no annotation": (
        yaml.safe_dump(_without(machine("a", [], kind=VMI.name), "metadata", "annotations")),
        "metadata.annotations: the VM carries label",
    ),
    "malformed references": (
        yaml.safe_dump(machine("a", '[{"device": "a"},]')),
        "spec.template.metadata.annotations: annotation",
    ),
    "bad selector": (
        yaml.safe_dump(machine("a", [{"device": "a"}], nodeSelector=["zone"])),
        "spec.template.spec.nodeSelector: Expected",
    ),
    "bad memory": (
        yaml.safe_dump(machine("a", [{"device": "a"}], domain={"memory": {"guest": "much"}})),
        "spec.domain.memory.guest",
    ),
}


@pytest.mark.parametrize("text, expected", BROKEN.values(), ids=BROKEN.keys())
def test_k1_a_manifest_that_cannot_be_planned_names_file_document_and_field(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError) as error:
        read((str(path),), None)
    assert expected in str(error.value)
    assert str(error.value).startswith(str(path))


def test_j7_arguments_that_make_no_sense_and_unreadable_files_have_codes_of_their_own(tmp_path: Path) -> None:
    world = World().ready(("n1", 1))
    file = journal_of(world, tmp_path / "journal.db")
    manifest = write(tmp_path / "order.yaml", order("mine"))
    assert call("--journal", file).exit_code == 2
    assert call("-f", manifest, "--drain", "n1", "--journal", file).exit_code == 2
    assert call("-f", manifest, "--at", "3").exit_code == 2
    missing = call("-f", str(tmp_path / "none.yaml"), "--journal", file)
    assert missing.exit_code == 2 and "none.yaml" in missing.stderr
    foreign = tmp_path / "foreign.db"
    foreign.write_text("no journal")
    assert call("-f", manifest, "--journal", str(foreign)).exit_code == 3
    assert call("--drain", "n9", "--journal", file).exit_code == EXIT_DIFFERS
    piped = call("-f", "-", "--journal", file, stdin=Path(manifest).read_text())
    assert piped.exit_code == 0, piped.output


def test_p2_a_drain_is_a_table_and_ends_with_one_where_something_fits_nowhere(tmp_path: Path) -> None:
    world = World().ready(("n1", 1), ("n2", 1))
    world.order("mine")
    node = world.start("vm", "mine")
    file = journal_of(world, tmp_path / "journal.db")
    result = call("--drain", node, "--journal", file)
    assert result.exit_code == 0 and "n2" in result.stdout and f"{NS}/vm" in result.stdout
    world.change(NODE, "", "n2", unschedulable=True)
    file = journal_of(world, tmp_path / "later.db")
    result = call("--drain", node, "--journal", file, "-o", "yaml")
    assert result.exit_code == EXIT_DIFFERS
    (move,) = yaml.safe_load(result.stdout)["drain"]["moves"]
    assert move["blockers"][0]["reason"] == "NoNodeFits" and "cordoned" in move["nodes"][0]["why"]


# A live cluster


async def _env() -> Environment:
    env = Environment(settings={"raw_name_policy": RawNamePolicy.FORBIDDEN})
    await env.open()
    ecosystem = env.ecosystem
    for name, units in (("n1", 2), ("n2", 4)):
        await ecosystem.add_node(name, {R: units})
        functions = [Function(id=f"0000:{i}:00.0", stable_id=f"{name}-{i}", resource_name=R) for i in range(units)]
        await ecosystem.report(name, functions)
    await ecosystem.kubevirt({R: "10DE:2236"})
    await ecosystem.gpu_class("a10", R)
    await ecosystem.tenant("a", quotas={R: "4"})
    await env.add_replica(MemoryJournal(), "binder-0")
    await env.later(3)
    return env


async def test_b2_a_plan_on_a_live_cluster_is_what_then_happens_there(tmp_path: Path) -> None:
    """Read by lists alone: the accounts are the replica's; the planned node is the one the VM then gets, and the
    planned blocker is the refusal (C10)."""
    env = await _env()
    await env.do(env.ecosystem.order(NS, "mine", "a10", 1))
    await env.settle()
    references: list[Any] = [{"device": "mine"}, {"template": {"className": "a10", "count": 2}}]
    wanted = read((write(tmp_path / "vm.yaml", machine("vm", references), machine("more", references[1:])),), None)
    state = await read_state(env.cluster, Settings(namespace=NAMESPACE), now=env.time.clock())
    assert env.leader is not None
    assert state.accounts == env.leader.state.accounts
    assert state.settings.raw_name_policy is RawNamePolicy.FORBIDDEN
    first, second = plan_all(state, wanted)
    assert (first.node, second.outcome) == ("n2", Outcome.BLOCKED)

    await env.do(env.ecosystem.vmi(NS, "vm", ["mine", {"className": "a10", "count": 2}]))
    await env.settle()
    assert (env.cluster.peek(VMI, NS, "vm") or {})["status"]["nodeName"] == first.node
    with pytest.raises(Rejected) as refused:
        await env.do(env.ecosystem.vmi(NS, "more", [{"className": "a10", "count": 2}]))
    assert f"{second.blockers[0].reason}: {second.blockers[0].message}" in str(refused.value)
    await env.close()


async def test_n8_a_kind_that_is_not_installed_is_known_as_missing_and_ours_is_asked_for() -> None:
    env = await _env()
    env.cluster.uninstall_kind(KUBEVIRT)
    state = await read_state(env.cluster, Settings(namespace=NAMESPACE), now=env.time.clock())
    assert state.missing == {KUBEVIRT.name} and state.synced
    env.cluster.uninstall_kind(CLASS)
    with pytest.raises(KindMissing):
        await read_state(env.cluster, Settings(namespace=NAMESPACE), now=env.time.clock())
    await env.close()


async def test_r5_a_report_too_old_to_speak_is_silent_in_a_live_state() -> None:
    env = await _env()
    late = env.time.clock() + Settings().report_stale + CLOCK_MARGIN + 1000
    state = await read_state(env.cluster, Settings(namespace=NAMESPACE), now=late)
    assert state.silent == {"n1", "n2"}
    await env.close()


async def test_j7_the_live_cluster_is_read_through_a_kubeconfig(tmp_path: Path) -> None:
    api = FakeApi()
    await api.start()
    api.install(*KINDS.values())
    await api.put(NODE, "n1", metadata={"labels": {SCHEDULABLE_LABEL: "true"}}, status=_node_status(1))
    await api.put(GPU_NODE, "n1", status={})
    await api.put(CLASS, "a10", spec={"resourceName": R, "mode": "Passthrough"})
    permitted = {"pciHostDevices": [{"pciVendorSelector": "10DE:2236", "resourceName": R}]}
    await api.put(KUBEVIRT, "kubevirt", "kubevirt", spec={"configuration": {"permittedHostDevices": permitted}})
    await api.put(RELEASE, "tenant-a", "tenant-root", metadata={"labels": {TENANT_KIND_LABEL: TENANT_KIND}}, spec={})
    await api.put(DEVICE, "broken", NS, spec={"className": 5})
    kubeconfig = write(tmp_path / "config", _kubeconfig(api.url))
    manifest = write(tmp_path / "order.yaml", order("mine"))
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}

    async def plan(*more: str) -> tuple[int, str, str]:
        script = "from reconciler.commands.plan import plan_command as c; c()"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, "-f", manifest, "--kubeconfig", kubeconfig, *more,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    code, out, err = await plan("-o", "json")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["source"], answer["plans"][0]["outcome"]) == ("live cluster", "Held")
    asked = {request.path for request in api.requests}
    assert asked >= {collection(kind) for kind in KINDS.values() if kind is not SETTINGS}
    assert f"/api/v1/namespaces/{NAMESPACE}/configmaps" in asked
    assert all(request.method == "GET" for request in api.requests)

    api.uninstall(CLASS)
    code, _, err = await plan()
    assert code == EXIT_CLUSTER and "gpuclasses" in err and "--journal" in err
    await api.stop()
    code, _, err = await plan()
    assert code == EXIT_CLUSTER and "cannot be read" in err


def _node_status(units: int) -> dict[str, Any]:
    return {"allocatable": {R: str(units), "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
