"""Metrics as a scrape shows them, and logs as a line shows them (N4)."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
from typing import Any

import msgspec
import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from journal import events
from journal.store import MemoryJournal
from reconciler.cluster.memory import Fault
from reconciler.core.model.objects import CLASS, VMI
from reconciler.core.model.vocabulary import Outcome, Reason
from reconciler.core.state.decisions import Action, Decision
from reconciler.demo.environment import Environment
from reconciler.runtime.observability.logs import LOG_FIELDS, LogDecisions, configure_logs
from reconciler.runtime.observability.metrics import METRICS, Type
from reconciler.runtime.observability.telemetry import Telemetry
from tests.chart.test_monitoring import METRICS as CHARTED
from tests.tidy.source import modules

A10 = "nvidia.com/GA102GL_A10"


def scrape(telemetry: Telemetry) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name to label values (in the order of their names) to value."""
    body, content_type = telemetry.render()
    assert content_type.startswith("text/plain")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


class Certificate:
    expires_at: int | None = 1_900_000_000_000


async def replica(env: Environment, telemetry: Telemetry, **quotas: Any) -> Any:
    """One node with two units, a class, a tenant, a leader that is measured."""
    await env.open()
    await env.ecosystem.add_node("n1", {A10: 2})
    await env.ecosystem.kubevirt({A10: "10DE:2236"})
    await env.ecosystem.gpu_class("a10", A10)
    await env.ecosystem.tenant("acme", quotas=quotas)
    made = await env.add_replica(MemoryJournal(), "r0", observers=(telemetry,))
    telemetry.observe(made.controller, Certificate())
    await env.later(3)
    return made


async def test_N4_a_scrape_has_the_documented_metrics_and_no_others() -> None:
    env = Environment()
    telemetry = Telemetry(clock=env.time.clock)
    await replica(env, telemetry, **{A10.replace("GA102GL", "GA102"): "4", A10: "many"})
    telemetry.bind_answered(Outcome.BOUND, 0.2)
    suffixes = {Type.HISTOGRAM: ("_bucket", "_sum", "_count")}
    documented = {name + end for name, metric in METRICS.items() for end in suffixes.get(metric.type, ("",))}
    assert set(scrape(telemetry)) == documented
    body = telemetry.render()[0].decode()
    for name, metric in METRICS.items():
        family = name.removesuffix("_total") if metric.type is Type.COUNTER else name
        assert f"# HELP {name} {metric.help}" in body, family
        assert f"# TYPE {name} {metric.type}" in body
    await env.close()


def test_N4_labels_are_those_that_alerts_and_dashboard_use() -> None:
    for name, labels in CHARTED.items():
        assert METRICS[name].labels == labels


async def test_N4_units_losses_leadership_and_sizes_are_read_from_the_state() -> None:
    env = Environment()
    telemetry = Telemetry(clock=env.time.clock)
    made = await replica(env, telemetry)
    await env.do(env.ecosystem.order("tenant-acme", "one", "a10"))
    await env.do(env.ecosystem.order("tenant-acme", "two", "a10"))
    await env.do(env.ecosystem.vmi("tenant-acme", "vm", ["one"]))
    await env.later(5)
    found = scrape(telemetry)
    assert found["gpu_binder_units"] == {
        ("a10", "served"): 2, ("a10", "bound"): 1, ("a10", "held"): 1, ("a10", "raw"): 0, ("a10", "free"): 0,
    }  # fmt: skip
    assert found["gpu_binder_lost_devices"] == {(): 0}
    assert found["gpu_binder_leader"] == {(): 1}
    assert found["gpu_binder_journal_bytes"][()] == made.controller.journal.size_bytes > 0
    assert found["gpu_binder_certificate_expiry_timestamp_seconds"] == {(): 1_900_000_000}
    assert found["gpu_binder_fold_seconds_count"][()] > 0
    assert found["gpu_binder_decide_seconds_count"][()] > 0
    await env.do(env.ecosystem.allocatable("n1", {A10: 0}))
    await env.later(90)
    assert scrape(telemetry)["gpu_binder_lost_devices"] == {(): 1}
    await env.close()
    assert scrape(telemetry)["gpu_binder_leader"] == {(): 0}


async def test_N4_a_backlog_shows_its_depth_and_the_age_of_what_is_committed() -> None:
    env = Environment()
    telemetry = Telemetry(clock=lambda: env.time.clock() + 7_000)
    made = await replica(env, telemetry)
    loop = made.controller.loop
    assert scrape(telemetry)["gpu_binder_journal_lag_seconds"] == {(): 0}
    age = (env.time.clock() - made.controller.journal.last_at) / 1000 + 7
    loop.submit(events.TimeReached())
    found = scrape(telemetry)
    assert found["gpu_binder_queue_depth"] == {(): 1}
    assert found["gpu_binder_journal_lag_seconds"] == {(): pytest.approx(age)}
    await env.close()


async def test_N4_refusals_are_counted_once_where_they_are_told() -> None:
    env = Environment()
    telemetry = Telemetry(clock=env.time.clock)
    await replica(env, telemetry)
    for name in ("one", "two"):
        await env.do(env.ecosystem.order("tenant-acme", name, "a10"))
    await env.later(2)
    found = scrape(telemetry)["gpu_binder_refusals_total"]
    assert set(found.values()) == {0} and {reason for (reason,) in found} == {reason.value for reason in Reason}
    telemetry.answered("/admit/machines", "Allowed")
    telemetry.answered("/admit/machines", Reason.DEVICE_ATTACHED)
    assert scrape(telemetry)["gpu_binder_refusals_total"][("DeviceAttached",)] == 1
    await env.close()


async def test_N4_an_order_left_pending_is_a_refusal() -> None:
    env = Environment()
    telemetry = Telemetry(clock=env.time.clock)
    made = await replica(env, telemetry)
    env.cluster.admission.unregister("devices.gpu-binder")
    for name in ("one", "two", "three"):
        await env.do(env.ecosystem.order("tenant-acme", name, "a10"))
    await env.later(2)
    assert scrape(telemetry)["gpu_binder_refusals_total"][("NoFreeUnits",)] == 1
    assert made.state.device("tenant-acme", "three").phase == "Pending"
    await env.close()


async def test_B6_conflicts_of_the_binder_and_of_webhooks_are_counted() -> None:
    env = Environment()
    telemetry = Telemetry(clock=env.time.clock)
    await replica(env, telemetry)
    before = scrape(telemetry)["gpu_binder_conflicts_total"][()]
    hit: list[str] = []

    def once(call: Any) -> Fault | None:
        if call.verb == "patch" and call.subresource == "status" and not hit:
            hit.append(call.key.name)
            return Fault.CONFLICT
        return None

    env.cluster.faults = once
    await env.do(env.ecosystem.order("tenant-acme", "one", "a10"))
    await env.later(2)
    telemetry.conflicted()
    assert hit
    assert scrape(telemetry)["gpu_binder_conflicts_total"][()] == before + 2
    await env.close()


async def test_C13_budget_keys_that_bound_nothing_or_cannot_be_read_are_shown_by_tenant() -> None:
    env = Environment()
    telemetry = Telemetry(clock=env.time.clock)
    quotas = {"cpu": "10", "services.loadbalancers": "5", A10: "2", A10.lower(): "1", "gpu.cozystack.io/a10": "-3"}
    await replica(env, telemetry, **quotas)
    found = scrape(telemetry)
    assert found["gpu_binder_unmatched_budget_keys"] == {("tenant-acme",): 1}
    assert found["gpu_binder_unreadable_budget_keys"] == {("tenant-acme",): 1}
    await env.close()


async def test_N8_kinds_that_are_missing_and_objects_that_cannot_be_read_are_shown() -> None:
    env = Environment()
    env.cluster.uninstall_kind(VMI)
    telemetry = Telemetry(clock=env.time.clock)
    made = await replica(env, telemetry)
    made.controller.loop.submit(events.ObjectUnreadable(CLASS.name, "", "odd", "u9", "77", "spec.mode is missing"))
    await env.later(1)
    found = scrape(telemetry)
    assert found["gpu_binder_kind_missing"][(VMI.name,)] == 1
    assert sum(found["gpu_binder_kind_missing"].values()) == 1
    assert found["gpu_binder_unreadable_objects"][(CLASS.name,)] == 1
    await env.close()


def test_N4_a_start_that_was_placed_or_late_says_how_long_it_waited_and_one_refused_at_once_does_not() -> None:
    telemetry = Telemetry()
    telemetry.bind_answered(Outcome.BOUND, 0.2)
    telemetry.bind_answered(Reason.BIND_TIMEOUT, 8.0)
    telemetry.bind_answered(Reason.UNKNOWN_DEVICE, 0.0001)
    found = scrape(telemetry)
    assert found["gpu_binder_bind_latency_seconds_count"] == {(): 2}
    assert found["gpu_binder_bind_latency_seconds_sum"] == {(): pytest.approx(8.2)}


def test_N4_watch_restarts_are_counted_by_kind() -> None:
    telemetry = Telemetry()
    telemetry.watch_restarted(VMI.name, "expired")
    found = scrape(telemetry)["gpu_binder_watch_restarts_total"]
    assert found[(VMI.name,)] == 1 and sum(found.values()) == 1


# Logs


@pytest.fixture
def lines() -> Any:
    """Configured logs; call for what was written so far, decoded."""
    stream = io.StringIO()
    before = structlog.get_config()
    configure_logs("info", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    structlog.configure(**before)
    logging.basicConfig(handlers=[], force=True)


async def test_N4_a_start_can_be_followed_by_its_request_id_from_webhook_to_binder(lines: Any) -> None:
    env = Environment()
    await env.open()
    await env.ecosystem.add_node("n1", {A10: 1})
    await env.ecosystem.kubevirt({A10: "10DE:2236"})
    await env.ecosystem.gpu_class("a10", A10)
    await env.ecosystem.tenant("acme")
    made = await env.add_replica(MemoryJournal(), "r0", observers=(LogDecisions(),))
    await env.later(3)
    await env.do(env.ecosystem.order("tenant-acme", "one", "a10"))
    await env.do(env.ecosystem.vmi("tenant-acme", "vm", ["one"]))
    asked = next(line for line in lines() if line["event"] == "bind requested")
    bound = next(line for line in lines() if line.get("action") == "Bind")
    assert bound["request_id"] == asked["request_id"]
    assert (bound["subject"], bound["node"], bound["level"]) == ("tenant-acme/vm", "n1", "info")
    (entry,) = made.controller.journal.read(bound["seq"] - 1, bound["seq"])
    assert isinstance(entry.event, events.Decided)
    assert all(set(line) <= set(LOG_FIELDS) for line in lines())
    assert any(line["event"] == "leader" for line in lines())
    assert not [line for line in lines() if line.get("action") in ("Fence", "Guard", "PublishClass")]
    await env.close()


def test_N4_unreadable_objects_and_refused_writes_are_told_with_names(lines: Any) -> None:
    log = LogDecisions()
    found = (
        events.ObjectUnreadable("GPUDevice", "ns", "d", "u", "1", "spec.className is missing"),
        events.WriteRejected("7.0", "forbidden"),
        events.KindListed("KubeVirt", missing=True),
        events.KindListed("KubeVirt"),
        events.LeadershipLost("r0", "deaf"),
    )
    for event in found:
        log.recorded(events.Entry(9, 1, 1, event))
    told = [(line["level"], line["event"]) for line in lines()]
    assert told == [
        ("warning", "unreadable"),
        ("error", "write rejected"),
        ("warning", "kind not installed"),
        ("warning", "no longer leader"),
    ]
    first = lines()[0]
    assert (first["kind"], first["namespace"], first["name"]) == ("GPUDevice", "ns", "d")
    assert first["error"] == "spec.className is missing"


def test_N4_faults_and_libraries_log_in_the_same_form(lines: Any) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("x").exception("webhook failed")
    logging.getLogger("aiohttp.server").error("bad request line")
    logging.getLogger("aiohttp.server").info("chatter")
    ours, theirs = lines()
    assert "ValueError: broken" in ours["exception"]
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("bad request line", "aiohttp.server", "error")


async def test_n4_a_request_that_is_not_http_leaves_no_traceback(lines: Any) -> None:
    """Anybody in the network can send one to the ports of webhooks and metrics."""
    async with TestServer(web.Application()) as server:
        for sent in (
            b"GET /\x1f HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
            b"GET / HTTP/1.1\r\nA\x00: b\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(sent)
            assert b" 400 " in await reader.readline()
            writer.close()
    assert lines() == []


def test_an_unknown_level_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        configure_logs("loud")


def _logged_fields() -> set[str]:
    """Every keyword of a call on a logger in the product."""
    methods = {"debug", "info", "warning", "error", "exception"}
    found: set[str] = set()
    for _, _, tree in modules():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = ast.unparse(node.func.value)
            if node.func.attr in methods and owner.split(".")[-1] in ("log", "_log"):
                found |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return found


def test_N4_every_field_that_is_logged_is_documented() -> None:
    written = _logged_fields()
    assert len(written) > 15
    assert written <= set(LOG_FIELDS), written - set(LOG_FIELDS)


def test_N4_no_field_is_documented_that_nothing_logs() -> None:
    by_structlog = {"event", "level", "timestamp", "logger", "exception"}
    bound = {"request_id", "review", "vmi", "webhook", "missing", "reason", "node", "message", "subject"}
    assert set(LOG_FIELDS) - _logged_fields() <= by_structlog | bound


def test_what_decisions_log_is_in_the_entry_they_name() -> None:
    """J7: `seq` is the entry of the decision."""
    decision = Decision(action=Action.FENCE, kind="GPUDevice", subject="a/b")
    entry = events.Entry(5, 1, 1, events.Decided(msgspec.Raw(msgspec.json.encode(decision))))
    told: list[dict[str, Any]] = []

    class Log:
        def info(self, event: str, **fields: Any) -> None:
            told.append(fields)

        debug = warning = info

    LogDecisions(Log()).decided(entry, decision, 0.1)
    assert told == [{"action": "Fence", "kind": "GPUDevice", "subject": "a/b", "seq": 5}]
