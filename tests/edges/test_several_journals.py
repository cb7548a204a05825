"""Commands on the journals of several replicas: a decision lies with the leader, a refusal with who served it (J7)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from freezegun import freeze_time

from journal import events
from journal.sqlite import SqliteJournal
from reconciler.debugging.report.build import build, build_all
from reconciler.debugging.report.page_data import ReportData
from tests.edges.cli import run

FIRST = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def replicas(journal: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The demo's journal as two replicas would have written it: the leader's lacks the refusals (outcomes of writes
    name entries, so their place is kept), the other's the decisions, their outcomes and the leadership."""
    directory = tmp_path_factory.mktemp("replicas")
    paths = str(directory / "leader.db"), str(directory / "server.db")
    leads = (
        *(events.Decided, events.LeadershipAcquired, events.LeadershipLost),
        *(events.WriteSucceeded, events.WriteConflicted, events.WriteFoundGone, events.WriteRejected),
    )
    source = SqliteJournal(str(journal), readonly=True)
    leader, server = SqliteJournal(paths[0]), SqliteJournal(paths[1])
    for entry in source.read():
        refused = isinstance(entry.event, events.AdmissionRefused)
        leader.append([events.TimeReached() if refused else entry.event], at=entry.at, batch=entry.batch)
        if not isinstance(entry.event, leads):
            server.append([entry.event], at=entry.at, batch=entry.batch)
    leader.close()
    server.close()
    source.close()
    return paths


def test_j7_a_refusal_is_found_in_the_journal_of_the_replica_that_served_it(replicas: tuple[str, str]) -> None:
    """J7: one journal alone says where to look."""
    leader, _ = replicas
    alone = run("explain", leader, "vmi", "tenant-acme/wide")
    assert alone.exit_code == 1
    assert "no decision about VMI tenant-acme/wide in this journal; decisions of other replicas are in" in alone.stderr
    both = run("explain", *replicas, "vmi", "tenant-acme/wide")
    assert both.exit_code == 0
    assert "Refuse tenant-acme/wide" in both.stdout and "server.db" in both.stdout
    assert "gpu-1" in both.stdout
    bound = run("explain", *replicas, "vmi", "tenant-acme/render", "-o", "json")
    assert json.loads(bound.stdout)["journal"] == leader


def test_j7_copies_of_one_journal_tell_everything_once(journal: Path, replicas: tuple[str, str]) -> None:
    """J7: the merged list of the two is that of the whole."""

    def listed(*files: str) -> list[dict[str, object]]:
        found = json.loads(run("decisions", *files, "-n", "1000", "--all", "-o", "json").stdout)
        return [{key: value for key, value in one.items() if key not in ("journal", "seq")} for one in found]

    whole = listed(str(journal))
    assert sorted(map(repr, listed(*replicas))) == sorted(map(repr, whole))
    assert listed(str(journal), str(journal)) == whole


def test_j7_replay_and_who_answer_from_the_journal_that_knows_most(replicas: tuple[str, str], tmp_path: Path) -> None:
    """J7: of a replica that ended early and one that went on, the second knows the end."""
    leader, server = replicas
    early = str(tmp_path / "early.db")
    source, copy = SqliteJournal(leader, readonly=True), SqliteJournal(early)
    for entry in source.read(until=70):
        copy.append([entry.event], at=entry.at, batch=entry.batch)
    copy.close()
    source.close()
    assert run("replay", early, leader, "-o", "json").stdout == run("replay", leader, "-o", "json").stdout
    assert run("who", early, server, "gpu-1").stdout == run("who", server, "gpu-1").stdout
    refused = run("replay", early, leader, "--at", "40")
    assert refused.exit_code == 2 and "which each journal has its own" in refused.stderr


# decisions


def shown(*arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run("decisions", *arguments, "-o", "json").stdout)
    return found


def test_j7_decisions_is_the_list_to_start_from(journal: Path) -> None:
    """J7: newest last, without housekeeping, by what a person asks for."""
    file = str(journal)
    everything = shown(file, "--all", "-n", "1000")
    usual = shown(file, "-n", "1000")
    assert {one["action"] for one in everything} - {one["action"] for one in usual} == {
        *("Fence", "Guard", "PublishClass", "PublishSettings")
    } & {one["action"] for one in everything}
    assert shown(file, "-n", "3") == usual[-3:]
    refused = shown(file, "--refused")
    assert {one["subject"] for one in refused} >= {"tenant-acme/wide", "tenant-acme-labs/training"}
    assert all(one["reason"] for one in refused)
    assert {one["node"] for one in shown(file, "--node", "gpu-2")} == {"gpu-2"}
    below = {str(one["subject"]).partition("/")[0] for one in shown(file, "--tenant", "tenant-acme")}
    assert below == {"tenant-acme", "tenant-acme-labs"}
    cut = [one for one in usual if str(one["at"]) < "2026-01-01T00:00:04"]
    assert shown(file, "--to", "2026-01-01T00:00:04Z", "-n", "1000") == cut != usual
    text = run("decisions", file, "-n", "2").stdout
    assert "2 newest of" in text and str(usual[-1]["seq"]) in text


def test_j7_no_such_decision_is_not_a_yes(journal: Path) -> None:
    found = run("decisions", str(journal), "--tenant", "tenant-acmee")
    assert found.exit_code == 1 and "did you mean tenant-acme" in found.stderr


# Times


def test_j7_times_relative_to_now(journal: Path) -> None:
    """J7: -1m is a minute before now."""
    with freeze_time("2026-01-01T00:01:04Z"):
        assert shown(str(journal), "--to", "-1m", "-n", "999") == shown(
            str(journal), "--to", "2026-01-01T00:00:04Z", "-n", "999"
        )
        late = run("who", str(journal), "gpu-1", "--at", "-0s", "-o", "json")
        assert run("who", str(journal), "gpu-1", "--at", "now", "-o", "json").stdout == late.stdout
    assert json.loads(late.stdout)["at"] == "2026-01-01T00:01:04.000000Z", "who answers for the time asked for"
    wrong = run("decisions", str(journal), "--from", "-1y")
    assert wrong.exit_code == 2 and "or -1h" in wrong.stderr


def test_j7_a_time_after_the_end_is_answered_as_of_the_end_and_says_so(journal: Path) -> None:
    found = run("who", str(journal), "gpu-1", "--at", "2026-02-01")
    assert found.exit_code == 0 and "ends at 2026-01-01 00:01:4" in found.stderr


@pytest.mark.parametrize(
    "command",
    [
        "replay FILE",
        "decisions FILE --all",
        "explain FILE vmi tenant-acme/wide",
        "explain FILE device tenant-acme/render-1",
        "who FILE gpu-1",
        "journal info FILE",
        "plan --drain gpu-1 --journal FILE",
    ],
)
def test_j7_times_in_json_are_rfc_3339(journal: Path, command: str) -> None:
    """J7: no milliseconds since the epoch anywhere."""
    found: Result = run(*command.replace("FILE", str(journal)).split(), "-o", "json")
    assert "2026-01-01T" in found.stdout

    def numbers(value: object) -> list[int]:
        if isinstance(value, dict):
            return [one for item in value.values() for one in numbers(item)]
        if isinstance(value, list):
            return [one for item in value for one in numbers(item)]
        return [value] if isinstance(value, int) else []

    assert max(numbers(json.loads(found.stdout))) < 10**12


# Names


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("explain FILE vmi tenant-acme/wid", "tenant-acme/wide"),
        ("explain FILE device tenant-acme/render1", "tenant-acme/render-1"),
        ("who FILE gpu1", "gpu-1"),
        ("who FILE tenant-acme/render1", "tenant-acme/render-1"),
        ("usage FILE --tenant tenant-acmee --open", "tenant-acme"),
    ],
)
def test_j7_a_name_nearly_right_gets_a_suggestion(journal: Path, command: str, meant: str) -> None:
    assert f"did you mean {meant}" in run(*command.replace("FILE", str(journal)).split()).stderr


def test_j7_explain_explains_the_last_decision(journal: Path) -> None:
    """J7: the release that ended it, not the bind before; a class's last publication."""
    found = json.loads(run("explain", str(journal), "device", "tenant-acme/render-1", "-o", "json").stdout)
    assert found["explanation"]["action"] == "Release" == found["history"][-1]["action"]
    assert run("explain", str(journal), "class", "a10").exit_code == 0


# The report


def test_j7_the_report_shows_refusals_and_decisions_of_all_replicas(
    journal: Path, replicas: tuple[str, str], tmp_path: Path
) -> None:
    """J7: the incidents of the two are those of the whole journal, each with its reasons and the journal it is in."""
    opened = {name: SqliteJournal(path, readonly=True) for name, path in zip("ls", replicas, strict=True)}
    whole_journal = SqliteJournal(str(journal), readonly=True)
    whole = build(whole_journal)
    name, both = build_all(opened)

    def told(data: ReportData) -> list[tuple[object, ...]]:
        return sorted((one.at, one.kind, one.action, one.subject, one.message) for one in data.incidents)

    assert told(both) == told(whole) and both.counts == whole.counts
    assert {one.journal for one in both.incidents} == {"", "l" if name == "s" else "s"}
    explained = {one.key for one in both.explained}
    assert all(one.key in explained for one in both.incidents if not one.observed)
    for one in (*opened.values(), whole_journal):
        one.close()
    out = tmp_path / "report.html"
    found = run("report", *replicas, "--html", str(out))
    assert found.exit_code == 0 and f"{len(whole.incidents)} incidents" in found.stdout
    assert run("report", *replicas, "--html", str(out), "--from", "5").exit_code == 2
