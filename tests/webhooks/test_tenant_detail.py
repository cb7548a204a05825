"""What tenants can read names nothing of other tenants and nodes, unless the hoster wants it so (N9)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import msgspec
import pytest

from journal import events
from journal.events import AdmissionRefused
from reconciler.core.admission import checks
from reconciler.core.model.objects import CLASS, DEVICE, NAMESPACE, NODE, Constraints, Device, GpuClass, Settings
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.vocabulary import Mode, Reason, TenantDetail
from reconciler.debugging.replay import decision_of
from reconciler.runtime.observability.event_messages import of_decision
from tests.core.world import R, World
from webhooks.catalog import answer
from webhooks.recording import Recording, wanted_of_order
from webhooks.review import Denied, Request

OWN = "tenant-overlord-acme"
ABOVE, RIVAL = "tenant-overlord", "tenant-rival"
V = "nvidia.com/NVIDIA_A40-8Q"
SECRETS = re.compile(r"secretnode|rival|tenant-overlord(?!-acme)|4711|\b37\b")
"""Names of nodes and of other tenants, a budget above and a number of units that only others use."""


def world_of(detail: TenantDetail) -> World:
    """Two nodes that a rival fills but for two and one units, a tenant below another whose budget is nearly spent."""
    world = World(tenant_detail=detail)
    world.node("secretnode-1", 39, allocatable={R: 39, V: 4})
    world.node("secretnode-2", 2)
    world.gpu_class()
    world.gpu_class("slice", V, Mode.VGPU)
    world.gpu_class("own", "example.com/own", max_count=3)
    world.kubevirt(R, V, "example.com/own")
    world.tenant("root", entitled="false")
    world.tenant("overlord", **{"gpu.cozystack.io/own": "rubbish-4711"})
    world.tenant("acme", parent=ABOVE)
    world.tenant("rival")
    world.sync()
    world.order("rivaldevice", count=37, ns=RIVAL)
    world.start("rivalvm", "rivaldevice", units=37, ns=RIVAL)
    world.order("rivalhold", count=1, ns=RIVAL)
    world.order("mine", ns=OWN)
    return world


def provoke(world: World) -> None:
    """Refused orders and starts of every kind, decided by the binder; a device lost and restored."""
    for count in (1, 2, 3, 50):
        world.order(f"more-{count}", count=count, ns=OWN)
    world.order("vgpu", class_name="slice", ns=OWN)
    world.order("unserved", class_name="own", ns=OWN)
    for name, constraints in (
        ("picky", Constraints(node_selector={"zone": "elsewhere"})),
        ("huge", Constraints(memory=1 << 50)),
    ):
        world.ask(name, "mine", ns=OWN, constraints=constraints)
        world.later(61)
        world.later(61)
    world.start("vm", "mine", ns=OWN)
    node = world.device("mine", OWN).placement
    assert node is not None
    world.change(NODE, "", node.node, allocatable={R: 0})
    world.later(61)
    world.later(61)
    world.change(NODE, "", node.node, allocatable={R: 39})
    world.later(1)


def statuses(world: World) -> Iterator[str]:
    """Messages in the statuses of the tenant's devices and of the classes, in every version there was."""
    for entry in world.entries:
        event = entry.event
        if not isinstance(event, events.Decided):
            continue
        decision = decision_of(event)
        for write in decision.writes:
            if write.kind == DEVICE.name and write.namespace == OWN:
                device = msgspec.json.decode(write.after, type=Device)
                yield from (condition.message for condition in device.conditions)
                yield device.bind_answer.message if device.bind_answer is not None else ""
            if write.kind == CLASS.name:
                found = msgspec.json.decode(write.after, type=GpuClass)
                yield from (condition.message for condition in found.conditions)
                yield msgspec.json.encode(write.body.get("status", {})).decode()
        yield from (note.note for note in of_decision(entry, decision) if note.regarding.namespace == OWN)


def own_place(text: str) -> str:
    """Without the tenant's own placement: where its VM runs it can read in the VM."""
    return re.sub(r"(\d+ units? (?:is|are)?|the units are) ?on node secretnode-\d", "", text)


def test_n9_statuses_and_events_of_a_tenant_name_nobody_else() -> None:
    """N9: and the decisions, which only the hoster reads, still tell all."""
    world = world_of(TenantDetail.OWN)
    provoke(world)
    found = [own_place(text) for text in statuses(world)]
    assert [text for text in found if SECRETS.search(text)] == []
    reasons = {decision.reason for decision in world.decisions if decision.subject.startswith(OWN)}
    assert reasons >= {"NoFreeUnits", "NoNodeFits", "BudgetUnreadable", "NotEntitled"}
    assert {"Lose", "Restore", "RefuseOrder", "RefuseBind"} <= {decision.action.value for decision in world.decisions}
    assert [one for one in world.decisions if one.subject.startswith(OWN) and SECRETS.search(one.message)]


def test_n9_full_detail_tells_all() -> None:
    """N9: the same world under Full, which shows that the search finds something."""
    world = world_of(TenantDetail.FULL)
    provoke(world)
    assert len([text for text in statuses(world) if SECRETS.search(own_place(text))]) > 10
    assert all(decision.public == "" for decision in world.decisions)


def refusals(world: World) -> Iterator[checks.Refusal]:
    """Refusals of random orders and starts in a world that changes meanwhile."""
    draw = random.Random(9)
    for _ in range(400):
        name = draw.choice(["a10", "slice", "own", "none"])
        count = draw.choice([1, 2, 3, 4, 50, 5000])
        found = checks.check_order(world.state, OWN, name, count)
        constraints = draw.choice(
            [Constraints(), Constraints(node_selector={"zone": "x"}), Constraints(memory=1 << draw.randint(30, 50))]
        )
        template = (TemplateReference(name, count),)
        start = checks.check_start(world.state, OWN, "vm", (), template, constraints)
        yield from (one for one in (found, start) if one is not None)
        if draw.random() < 0.1:
            quotas = {
                "gpu.cozystack.io/a10": draw.choice([0, 1, 4711]),
                "gpu.cozystack.io/slice": draw.choice([0, "x"]),
            }
            world.quotas("overlord", quotas)
        if draw.random() < 0.1:
            world.node("secretnode-3", draw.choice([1, 2, 3]), ready=draw.random() < 0.8)
        if draw.random() < 0.05:
            world.change(NAMESPACE, "", ABOVE, entitlement=draw.choice(["true", "false"]))


@pytest.mark.parametrize("detail", TenantDetail)
def test_n9_no_refusal_names_anybody_else(detail: TenantDetail) -> None:
    """N9: of any order or start; the full messages do."""
    world = world_of(detail)
    found = list(refusals(world))
    told = [one.text_for(detail) for one in found]
    leaks = {one.reason for one, text in zip(found, told, strict=True) if SECRETS.search(text)}
    kinds = {
        *(Reason.NO_FREE_UNITS, Reason.NO_NODE_FITS, Reason.BUDGET_EXCEEDED),
        *(Reason.BUDGET_UNREADABLE, Reason.NOT_ENTITLED),
    }
    assert leaks == (set() if detail is TenantDetail.OWN else kinds)
    assert kinds <= {one.reason for one in found}
    assert all(text.rstrip() and len(text) > 20 for text in told)


def test_n9_the_catalog_names_nobody_else() -> None:
    """N9, C1."""
    text = msgspec.json.encode(answer(world_of(TenantDetail.OWN).state, OWN)).decode()
    assert not SECRETS.search(text) and "asked for" in text
    assert SECRETS.search(msgspec.json.encode(answer(world_of(TenantDetail.FULL).state, OWN)).decode())


async def test_n9_a_denial_keeps_for_the_journal_what_the_caller_does_not_read() -> None:
    """N9, J7: the caller's words go to the Event, the full ones to the journal."""
    refusal = checks.Refusal(reason=Reason.NO_FREE_UNITS, message="secretnode-1 is full", public="none is free")
    written: list[AdmissionRefused] = []

    async def webhook(request: Request, seconds: float) -> None:
        raise Denied.because(refusal, Settings(tenant_detail=TenantDetail.OWN))

    request = msgspec.convert(
        {"uid": "u", "operation": "CREATE", "namespace": OWN, "object": msgspec.Raw(b"{}")}, Request, strict=False
    )
    with pytest.raises(Denied, match=r"^none is free$"):
        await Recording(webhook, DEVICE.name, wanted_of_order, written.append)(request, 1.0)  # type: ignore[arg-type]
    assert (written[0].message, written[0].public) == ("secretnode-1 is full", "none is free")


def test_n9_class_status_counts_what_is_served_and_free_and_not_what_others_use() -> None:
    """N9, O1: published numbers do not move with other tenants' holds."""
    world = world_of(TenantDetail.OWN)
    world.later(2)
    found = world.state.gpu_class("a10")
    assert found is not None and found.units is not None and found.largest_free is not None
    assert (found.units.served, found.units.bound, found.units.held, found.units.raw) == (41, 0, 0, 0)
    assert found.units.free == 2 and found.largest_free.node == ""
