"""The controller's rights against the calls it makes: none lacks, none is spare (N2).

A whole story is played on the in-memory cluster, whose every call is seen; what belongs to a real process only
(certificates, callers' tokens) is listed with its reason and tried on the real API server.
"""

import asyncio

import pytest

from journal.store import MemoryJournal
from reconciler.cluster.memory.faults import Call, Fault
from reconciler.cluster.port import ClusterError
from reconciler.core.model import objects
from reconciler.core.model.objects import CLASS, DEVICE, POD, SETTINGS, VMI, Kind
from reconciler.demo.embedded import NAMESPACE, SERVICE_ACCOUNT
from reconciler.demo.environment import Environment
from reconciler.node_agent.agent import Agent
from tests.chart.charting import CLUSTER_NAME, RELEASE, render
from tests.chart.rights import Grant, granted, missing, spare

A10 = "nvidia.com/GA102GL_A10"
AGENT = f"{RELEASE}-node-agent"
PROCESS_ONLY = {
    ("admissionregistration.k8s.io", CLUSTER_NAME): "the self-made authority goes into the configurations",
    ("", f"{RELEASE}-webhook-cert"): "the self-made certificate",
    ("events.k8s.io", ""): "events for users, which tell and decide nothing",
    ("authentication.k8s.io", ""): "callers of the catalog",
    ("authorization.k8s.io", ""): "callers of the catalog",
}
"""Group and object name of grants that no story in memory needs."""


KIND_OF = {kind.name: kind for kind in vars(objects).values() if isinstance(kind, Kind)}


def grant_of(call: Call) -> Grant:
    kind = KIND_OF[call.kind]
    resource = kind.plural + (f"/{call.subresource}" if call.subresource else "")
    # RBAC knows no name at a create, and a list or watch has one only where a field selector gives it.
    verb = "watch" if call.verb == "event" else call.verb
    name = "" if verb == "create" else call.key.name
    return Grant(RELEASE, call.key.namespace, kind.group, resource, verb, name)


async def attempt(env, action):
    try:
        await env.do(action)
    except ClusterError:
        return False
    finally:
        await env.settle()
    return True


async def play(env):
    """Orders, starts, refusals, a loss, raw use, releases, deletions, a repair."""
    ecosystem = env.ecosystem
    await env.open()
    await ecosystem.add_node("n1", {A10: 2})
    await ecosystem.add_node("n2", {A10: 2})
    await ecosystem.kubevirt({A10: "10DE:2236"})
    await ecosystem.gpu_class("a10", A10)
    await ecosystem.tenant("acme", quotas={A10: "4"})
    await env.add_replica(MemoryJournal(), "r0")
    await env.later(3)
    for name in ("one", "two", "three", "spare"):
        await attempt(env, ecosystem.order("tenant-acme", name, "a10"))
    template = {"className": "a10", "count": 1}
    await attempt(env, ecosystem.vmi("tenant-acme", "vm", ["one"]))
    await attempt(env, ecosystem.vmi("tenant-acme", "wide", [{"className": "a10", "count": 3}]))
    await attempt(env, env.cluster.delete(DEVICE, "tenant-acme", "spare"))
    await attempt(env, ecosystem.vmi("tenant-acme", "quick", [template]))
    await attempt(env, ecosystem.stop("tenant-acme", "quick"))
    await attempt(env, ecosystem.pod("tenant-acme", "raw", {A10: 1}))
    await env.later(90)
    await env.do(ecosystem.allocatable("n1", {A10: 0}))
    await env.later(90)
    await env.do(ecosystem.allocatable("n1", {A10: 2}))
    await env.later(5)
    edited = {"data": {"rawNamePolicy": "Forbidden"}}
    await attempt(env, env.cluster.patch(SETTINGS, NAMESPACE, "gpu-settings", edited))
    await env.later(5)
    await attempt(env, env.cluster.delete(SETTINGS, NAMESPACE, "gpu-settings"))
    await env.later(5)
    await attempt(env, ecosystem.finish("tenant-acme", "vm"))
    await attempt(env, env.cluster.delete(VMI, "tenant-acme", "vm"))
    await attempt(env, env.cluster.delete(CLASS, "", "a10"))
    for name in ("one", "two", "three"):
        await attempt(env, env.cluster.delete(DEVICE, "tenant-acme", name))
    await attempt(env, env.cluster.delete(POD, "tenant-acme", "raw"))
    await env.later(30)
    await env.close()


@pytest.fixture(scope="module")
def calls():
    return asyncio.run(story())


async def story():
    """The grants that the controller's calls need."""
    env = Environment()
    seen: set[Grant] = set()

    def record(call: Call) -> Fault | None:
        if call.user != SERVICE_ACCOUNT:
            return None
        grant = grant_of(call)
        first = grant not in seen
        seen.add(grant)
        # The first patch of everything meets a newer object, so that what follows a conflict is seen too (B6).
        return Fault.CONFLICT if first and call.verb == "patch" else None

    env.cluster.faults = record
    await play(env)
    assert len(seen) > 20
    return seen


def controller_grants():
    return {grant for grant in granted(render()) if grant.account == RELEASE}


def test_N2_every_call_of_the_story_is_granted(calls):
    assert missing(controller_grants(), calls) == []


def test_N2_every_grant_is_used_or_belongs_to_the_process(calls):
    left = [grant for grant in spare(controller_grants(), calls) if (grant.group, grant.name) not in PROCESS_ONLY]
    assert not left, left


async def report(sysfs):
    """The grants that one look of a node agent needs, the first of its node and a later one."""
    env = Environment()
    seen: set[Grant] = set()

    def record(call: Call) -> None:
        if call.user == "agent":
            seen.add(grant_of(call)._replace(account=AGENT))

    env.cluster.faults = record
    await env.ecosystem.kubevirt({A10: "10DE:2236"})
    agent = Agent(env.cluster.as_user("agent"), node_name="n1", sysfs=sysfs, clock=env.time.clock)
    for _ in range(2):
        await agent.report()
    return seen


def test_N2_N5_the_agents_rights_are_what_it_calls(tmp_path):
    (tmp_path / "bus" / "pci" / "devices").mkdir(parents=True)
    calls = asyncio.run(report(tmp_path))
    grants = {grant for grant in granted(render()) if grant.account == AGENT}
    assert missing(grants, calls) == []
    assert spare(grants, calls) == []
