"""The report's timeline: units, holders, marks, reasons and bounds (J7, R5, R8, P4, U1b)."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import events
from journal.sqlite import SqliteJournal
from journal.store import Journal, MemoryJournal
from reconciler.commands.exit_codes import EXIT_OUTPUT
from reconciler.commands.report import report_command
from reconciler.core import snapshot
from reconciler.core.admission.placement import Verdict
from reconciler.core.model.objects import DEVICE, NODE, POD, VMI
from reconciler.core.model.start_request import StartRequest
from reconciler.core.model.vocabulary import Phase
from reconciler.debugging import explain
from reconciler.debugging.report.build import build
from reconciler.debugging.report.incidents import groups
from reconciler.debugging.report.page import page
from reconciler.debugging.report.page_data import Bar, Bounds, ReportData
from reconciler.debugging.report.series import Noted, Series, Span, assign_lanes
from reconciler.runtime import restore
from tests.core.world import NS, R, World

HOSTILE = "</script><img src=x onerror=\"window.hacked=1\"><a href='https://example.org'>%{x} ${y} &amp;"


def journal_of(world: World, journal: Journal | None = None) -> Journal:
    journal = journal or MemoryJournal()
    for entry in world.entries:
        journal.append([entry.event], at=entry.at, batch=entry.batch)
    return journal


def refused(world: World, message: str, *templates: tuple[str, int], name: str = "vm") -> None:
    """A webhook of this replica says no."""
    wanted = msgspec.Raw(msgspec.json.encode(StartRequest(templates=templates)))
    world.tell(events.AdmissionRefused(VMI.name, NS, name, "review", "NoFreeUnits", message, wanted))


def story() -> World:
    """Two nodes; a VM whose cards are lost and come back; an order that waits; a raw pod; a refused start."""
    world = World().ready(("n1", 2), ("n2", 4))
    world.order("d1", count=2)
    world.later(5)
    assert world.start("vm", "d1", units=2) == "n1"
    world.later(60)
    world.pod("raw", "n2", 3)
    world.later(60)
    world.order("waits", count=4)
    refused(world, "4 units were asked for", ("a10", 4), name="refused")
    world.later(60)
    world.change(NODE, "", "n1", allocatable={R: 1})
    world.later(61)
    assert world.device("d1").phase == Phase.LOST
    world.later(60)
    world.change(NODE, "", "n1", allocatable={R: 2})
    world.later(60)
    assert world.device("d1").phase == Phase.BOUND
    world.gone(POD, NS, "raw")
    world.later(60)
    return world


def bars(data: ReportData, name: str) -> list[Bar]:
    return sorted((bar for bar in data.bars if bar.name == name), key=lambda bar: bar.start)


# The picture


def test_j7_who_held_which_units_from_when_to_when() -> None:
    """A device bound, lost and returned is three bars without a gap; raw use is one of its own (P4, R8)."""
    world = story()
    data = build(journal_of(world))
    held = bars(data, "d1")
    assert [(bar.kind, bar.node, bar.units, bar.vmi) for bar in held] == [
        ("bound", "n1", 2, "vm"),
        ("lost", "n1", 2, "vm"),
        ("bound", "n1", 2, "vm"),
    ]
    assert held[0].end == held[1].start and held[1].end == held[2].start
    assert held[2].open and held[2].end == data.end == world.at
    (raw,) = bars(data, "raw")
    assert (raw.kind, raw.node, raw.units, raw.open) == ("raw", "n2", 3, False)
    assert {bar.name for bar in data.bars} == {"d1", "raw"}


def test_j7_units_over_time_are_the_accounts_of_the_state_at_any_moment() -> None:
    """R9: at every time a series has a point, it says what a replay to that time says."""
    journal = journal_of(story())
    data = build(journal)
    times = sorted({at for points in data.series.values() for at, _ in points})
    for at in times:
        state = restore.state_at(journal, at=at)
        for (node, name), points in data.series.items():
            served, placed, raw, free = [value for when, value in points if when <= at][-1]
            units = state.units_on(node, name)
            assert (None if served < 0 else served, placed, raw, free) == (
                units.served or 0 if units.served is not None else None,
                units.placed,
                units.raw,
                units.free,
            )
        total = [value for when, value in data.totals[R] if when <= at][-1]
        found = [state.units_on(node, R) for node in ("n1", "n2")]
        assert total[1:4] == (
            sum(units.placed for units in found),
            sum(units.raw for units in found),
            sum(units.free for units in found),
        )
        assert total[4] == state.held(R)


def test_r5_a_node_that_does_not_say_is_unknown_and_not_zero() -> None:
    world = World().ready(("n1", 2))
    world.later(5)
    world.change(NODE, "", "n1", ready=False)
    world.later(5)
    data = build(journal_of(world))
    assert data.series[("n1", R)][-1][1][0] == -1
    assert data.totals[R][-1][1] == (0, 0, 0, 0, 0, 1, 0)


def test_j7_marks_are_refusals_losses_and_returns_with_their_reasons() -> None:
    """A waiting order that is refused anew with other numbers is one mark."""
    world = story()
    data = build(journal_of(world))
    incidents = [(incident.kind, incident.action, incident.subject, incident.node) for incident in data.incidents]
    assert incidents == [
        ("refused", "RefuseOrder", f"{NS}/waits", ""),
        ("refused", "Refuse", f"{NS}/refused", ""),
        ("lost", "Lose", f"{NS}/d1", "n1"),
        ("returned", "Restore", f"{NS}/d1", "n1"),
    ]
    assert all(incident.resources == (R,) for incident in data.incidents)
    assert data.counts == {"refused": 2, "lost": 1, "returned": 1}
    refusals = [incident for incident in data.incidents if incident.kind == "refused"]
    assert {incident.reason for incident in refusals} == {"NoFreeUnits"}


def test_j7_each_incident_says_how_many_units_were_asked_for_and_how_many_are_missing() -> None:
    """A webhook records no number of missing units; they are judged again."""
    data = build(journal_of(story()))
    numbers = {incident.subject: (incident.asked, incident.missing) for incident in data.incidents}
    assert numbers[f"{NS}/waits"] == ({R: 4}, 3)
    assert numbers[f"{NS}/refused"] == ({R: 4}, 3)
    assert [incident.asked for incident in data.incidents if incident.subject == f"{NS}/d1"] == [{R: 2}, {R: 2}]


def test_r9_what_is_used_within_the_served_units_and_what_is_free_never_exceed_them() -> None:
    """A node with a lost device uses more than it serves; that part is counted apart."""
    data = build(journal_of(story()))
    beyond = 0
    for _, (served, placed, raw, free, _, _, over) in data.totals[R]:
        assert placed + raw - over + free <= served
        beyond = max(beyond, over)
    assert beyond == 1


def test_j7_each_explanation_is_the_one_explain_gives_for_that_entry() -> None:
    """Explained along the fold, it says what a replay to the entry before says, every node among it."""
    world = story()
    journal = journal_of(world)
    data = build(journal)
    assert {found.what.action for found in data.explained} == {"Bind", "RefuseOrder", "Refuse", "Lose", "Restore"}
    for found in data.explained:
        expected = explain.explain(journal, found.what.seq)
        assert found.what == msgspec.structs.replace(expected, nodes=())
        assert found.groups == groups(expected.nodes)
        assert sorted(node for group in found.groups for node in group.nodes) == sorted(
            verdict.node for verdict in expected.nodes
        )
    explained = {found.what.seq for found in data.explained}
    assert {incident.seq for incident in data.incidents} <= explained
    assert {bar.seq for bar in data.bars if bar.kind != "raw"} <= explained


def test_j7_a_refusal_that_repeats_keeps_its_first_time_and_its_last_words() -> None:
    world = World().ready(("n1", 3), ("n2", 2))
    for node in ("n1", "n2"):
        world.pod(f"raw-{node}", node, 1)
    world.order("waits", count=9)
    first = world.at
    for served in (4, 5, 6):
        world.later(10)
        world.change(NODE, "", "n1", allocatable={R: served})
    refusals = [decision for decision in world.decisions if decision.reason == "NoFreeUnits"]
    assert len(refusals) > 1
    data = build(journal_of(world), bounds=Bounds(explained=1))
    (incident,) = data.incidents
    assert (incident.at, incident.again) == (first, len(refusals) - 1)
    assert (incident.message, incident.missing) == (refusals[-1].message, refusals[-1].missing)
    assert [found.what.seq for found in data.explained] == [incident.seq]


def test_p4_a_loss_seen_by_a_follower_is_a_mark_without_an_explanation() -> None:
    """J5: the other replica's journal holds no decision, only what came of it."""
    seen = World().ready(("n1", 2))
    seen.order("d1")
    seen.start("vm", "d1")
    seen.tell(events.LeadershipLost("binder-0", "test"))
    seen.at += 60_000
    seen.put(DEVICE, msgspec.structs.replace(seen.device("d1"), phase="Lost"))
    seen.at += 60_000
    seen.put(DEVICE, msgspec.structs.replace(seen.device("d1"), phase="Bound"))
    data = build(journal_of(seen))
    assert [(incident.kind, incident.node) for incident in data.incidents] == [("lost", "n1"), ("returned", "n1")]
    assert {incident.seq for incident in data.incidents}.isdisjoint(found.what.seq for found in data.explained)


def test_u1b_a_launcher_listed_late_is_no_raw_use() -> None:
    world = World().ready(("n1", 2))
    world.order("d1")
    world.ask("vm", "d1")
    world.vmi("vm")
    pod = world.pod("virt-launcher-vm", "n1", 1, vmi_name="vm", launcher=True)
    world.later(20)
    assert world.state.units_on("n1", R).raw == 1
    world.change(VMI, NS, "vm", active_pods={pod.uid: "n1"}, phase="Running")
    world.later(20)
    assert [bar.kind for bar in build(journal_of(world)).bars] == ["bound"]


# A part of a journal


def test_j7_a_window_begins_with_what_held_then_and_ends_where_it_is_told() -> None:
    world = story()
    journal = journal_of(world)
    whole = build(journal)
    loss = next(incident.at for incident in whole.incidents if incident.kind == "lost")
    part = build(journal, start=loss - 10_000, end=loss + 10_000)
    assert (part.start, part.end) == (loss - 10_000, loss + 10_000)
    assert [(bar.kind, bar.start - loss, bar.end - loss) for bar in bars(part, "d1")] == [
        ("bound", -10_000, 0),
        ("lost", 0, 10_000),
    ]
    assert part.counts["lost"] == 1 and part.counts["returned"] == 0
    with pytest.raises(LookupError):
        build(journal, start=world.at + 1)
    with pytest.raises(LookupError):
        build(journal, end=1)


def test_j6_a_pruned_journal_is_drawn_from_its_snapshot_on(tmp_path: Path) -> None:
    world = story()
    path = str(tmp_path / "journal.db")
    journal = SqliteJournal(path)
    journal_of(world, journal)
    middle = journal.last_seq // 2
    at = next(iter(journal.read(after=middle - 1, until=middle))).at
    journal.snapshot(middle, at, snapshot.export(restore.state_at(journal, seq=middle)), build="test")
    assert journal.prune(before_at=at) > 0
    data = build(journal)
    journal.close()
    assert data.first_seq == middle + 1
    assert [bar.kind for bar in bars(data, "d1")] == ["bound", "lost", "bound"]


# Bounds


def test_j7_the_picture_is_bounded_and_keeps_the_newest() -> None:
    world = World().ready(*((f"n{index}", 2) for index in range(5)))
    for index in range(40):
        world.at += 7_000
        world.order(f"d{index}")
        world.start(f"vm{index}", f"d{index}")
        refused(world, f"refusal {index}", ("a10", 9))
        world.later(3)
        world.gone(POD, NS, f"virt-launcher-vm{index}")
        world.gone(VMI, NS, f"vm{index}")
        world.change(DEVICE, NS, f"d{index}", deleting=world.at)
    bounds = Bounds(points=40, bars=10, incidents=12, explained=5)
    data = build(journal_of(world), bounds=bounds)
    assert sum(len(points) for points in (*data.series.values(), *data.totals.values())) <= 40
    assert data.step > 1
    assert len(data.bars) == 10 and data.dropped_bars == 30
    assert [incident.message for incident in data.incidents] == [f"refusal {index}" for index in range(28, 40)]
    assert data.counts["refused"] == 40
    explained = sorted(found.what.seq for found in data.explained)
    assert len(explained) == 10
    assert {incident.seq for incident in data.incidents[-5:]} < set(explained)
    small = build(journal_of(world), bounds=Bounds(explained=5, explanation_bytes=2_000))
    assert 0 < len(small.explained) < 10
    assert small.explained[-1].what.seq == explained[-1]


POINTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3_000), st.integers(0, 3)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(POINTS, st.integers(4, 30))
def test_j7_down_sampling_moves_no_change_further_than_its_step(steps: list[tuple[str, int, int]], most: int) -> None:
    """Against a list of everything: exact while it fits, else right at every boundary of the step; never too many."""
    series: Series[str] = Series(most)
    every: dict[str, list[tuple[int, int]]] = {}
    at = 0
    for key, gap, value in steps:
        at += gap
        series.put(key, at, (value,))
        every.setdefault(key, []).append((at, value))
    assert sum(len(points) for points in series.points.values()) <= max(most, len(series.points))
    for key, told in every.items():
        for boundary in range(0, at + series.step, max(series.step, at // 20 + 1 if series.step == 1 else series.step)):
            before = [value for when, value in told if when // series.step < boundary // series.step]
            drawn = [v for when, (v,) in series.points[key] if when // series.step < boundary // series.step]
            assert before[-1:] == drawn[-1:]


SPANS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(1, 3)).map(
        lambda drawn: Span(start=drawn[0], end=drawn[0] + drawn[1], units=drawn[2])
    ),
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(SPANS)
def test_j7_no_two_bars_share_a_lane_at_the_same_time(spans: list[Span]) -> None:
    height = assign_lanes(spans)
    assert all(span.lane >= 0 and span.lane + span.units <= height for span in spans)
    for index, one in enumerate(spans):
        for other in spans[index + 1 :]:
            if one.start < other.end and other.start < one.end:
                assert one.lane + one.units <= other.lane or other.lane + other.units <= one.lane


def test_j7_a_watched_dict_tells_every_change_once() -> None:
    noted = Noted({"a": 1})
    assert noted.take() == ["a"]
    noted["b"] = 2
    noted["b"] = 3
    del noted["a"]
    assert noted.pop("b") == 3 and noted.pop("c", None) is None
    assert noted.take() == ["a", "b", "c"]
    assert noted.take() == []


def test_j7_nodes_with_the_same_verdict_stand_together_and_none_is_left_out() -> None:
    found = groups(
        [
            Verdict(node="n1", free={R: 0}, missing=1, reason="NoFreeUnits", why="node n1 serves 1, 0 free"),
            Verdict(node="n10", free={R: 0}, missing=1, reason="NoFreeUnits", why="node n10 serves 1, 0 free"),
            Verdict(node="n2", free={R: 0}, missing=1, reason="NoFreeUnits", why="node n2 serves 2, 0 free"),
        ]
    )
    assert [(group.why, group.nodes) for group in found] == [
        ("the node serves 1, 0 free", ("n1", "n10")),
        ("the node serves 2, 0 free", ("n2",)),
    ]


# The page


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    read: dict[str, Any] = json.loads(found[1])
    return read


def test_j7_the_page_stands_alone_and_takes_no_name_for_markup() -> None:
    pytest.importorskip("plotly")
    world = World().ready((HOSTILE, 1))
    world.order("d1", ns=NS)
    refused(world, HOSTILE, ("a10", 2), name=HOSTILE)
    text = page(build(journal_of(world)), f"{HOSTILE}.db")
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<img" not in text.partition('id="data"')[2].partition("</script>")[0]
    assert "<img" not in markup and "<a " not in markup
    assert re.findall(r"""(?:src|href)=["']?([^"' >]*)""", html.unescape(markup).replace(HOSTILE, "")) == ["data:,"]
    data = data_of(text)
    assert data["nodes"] == [HOSTILE]
    assert data["marks"][0]["message"] == HOSTILE
    assert text.count("</script>") == 3
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "default-src 'none'" in policy[1] and policy[1].count("'sha256-") == 2


def test_j7_the_command_writes_the_page_and_says_what_is_in_it(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    world = story()
    file, out = str(tmp_path / "journal.db"), tmp_path / "page.html"
    journal = SqliteJournal(file)
    journal_of(world, journal)
    journal.close()

    def call(*arguments: str) -> Any:
        return CliRunner().invoke(report_command, [file, "--html", str(out), *arguments])

    result = call()
    assert result.exit_code == 0, result.output
    assert "4 incidents" in result.output
    assert len(data_of(out.read_text())["marks"]) == 4
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    assert call("--to", "1970-01-01T00:20:00Z").exit_code == 0
    assert len(data_of(out.read_text())["marks"]) == 2
    assert call("--from", str(world.state.seq)).exit_code == 0
    assert call("--from", "2100-01-01T00:00:00Z").exit_code == 1
    assert call("--from", "999999").exit_code == 2
    assert call("--to", "yesterday").exit_code == 2
    assert call("--explained", "0").exit_code == 0
    assert data_of(out.read_text())["explanations"] == {}
    blocked = CliRunner().invoke(report_command, [file, "--html", str(tmp_path / "none" / "page.html")])
    assert blocked.exit_code == EXIT_OUTPUT and "cannot be written" in blocked.stderr
    (tmp_path / "foreign.db").write_text("no journal")
    foreign = CliRunner().invoke(report_command, [str(tmp_path / "foreign.db"), "--html", str(out)])
    assert foreign.exit_code == 3


def test_j7_without_the_plotting_library_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "journal.db")
    journal = SqliteJournal(file)
    journal_of(World().ready(("n1", 1)), journal)
    journal.close()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = CliRunner().invoke(report_command, [file, "--html", str(tmp_path / "page.html")])
    assert result.exit_code == EXIT_OUTPUT and "gpu-binder[report]" in result.stderr
    assert not (tmp_path / "page.html").exists()
