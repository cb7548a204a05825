"""`gpu-binder run`: startup failures and recoveries, each with one clear sentence (J6, N4, N7)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from journal import events
from journal.sqlite import SqliteJournal
from reconciler.main import main
from reconciler.runtime.observability.blocking_conditions import BlockingConditions
from reconciler.runtime.serve import open_journal
from reconciler.runtime.settings import OptionError, RunOptions
from tests.realserver.binder import NAMESPACE
from tests.realserver.controlplane import ROOT, ControlPlane, free_port

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: away
contexts: [{name: away, context: {cluster: away, user: away}}]
clusters: [{name: away, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: away, user: {token: none}}]
"""


def run(directory: Path, *flags: str) -> Result:
    """`run` with what it needs; `flags` come last and win."""
    config = directory / "kubeconfig"
    config.write_text(KUBECONFIG)
    always = ("--namespace=n", "--identity=i", "--service-account=me", f"--journal={directory / 'journal.db'}")
    return CliRunner().invoke(main, ["run", *always, f"--kubeconfig={config}", *flags], catch_exceptions=False)


def sentence(found: Result) -> str:
    last = found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr
    return last


def test_a_journal_that_another_process_writes(tmp_path: Path) -> None:
    """J1: two writers never share a file; the other one is named."""
    held = SqliteJournal(tmp_path / "journal.db")
    found = run(tmp_path)
    held.close()
    assert found.exit_code == 3
    assert f"is being written by process {os.getpid()}" in sentence(found)


def test_a_journal_that_cannot_be_there(tmp_path: Path) -> None:
    found = run(tmp_path, f"--journal={tmp_path / 'nowhere' / 'journal.db'}")
    assert found.exit_code == 3
    assert sentence(found).endswith(f"cannot be written: No such file or directory: {tmp_path / 'nowhere'}")


@pytest.mark.parametrize(
    ("flag", "text"),
    [("--kubeconfig=/nowhere", "no kubeconfig at /nowhere"), ("--context=other", "other")],
)
def test_a_kubeconfig_that_leads_nowhere(tmp_path: Path, flag: str, text: str) -> None:
    found = run(tmp_path, flag)
    assert found.exit_code == 4
    assert text in sentence(found)


@pytest.mark.parametrize("what", ["metrics", "listen"])
def test_a_port_that_is_taken(tmp_path: Path, what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {"metrics-port": 0, "listen-port": 0, f"{what}-port": port, "metrics-host": "127.0.0.1"}
        flags["listen-host"] = "127.0.0.1"
        found = run(tmp_path, *(f"--{name}={value}" for name, value in flags.items()))
    assert found.exit_code == 2
    assert f"--{what}-host 127.0.0.1 --{what}-port {port} cannot be listened on: Address already in use" in sentence(
        found
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("log_level", "loud"),
        ("listen_port", 65_536),
        ("metrics_port", -1),
        ("journal_days", 0),
        ("journal_megabytes", -5),
        ("snapshot_entries", 0),
        ("lost_grace_seconds", -1),
        ("drain_seconds", float("nan")),
    ],
)
def test_a_value_that_cannot_work_is_named_with_its_flag(tmp_path: Path, field: str, value: Any) -> None:
    options = RunOptions(namespace="n", identity="i", journal=tmp_path / "j.db", **{field: value})
    with pytest.raises(OptionError, match=f"--{field.replace('_', '-')}") as refused:
        options.check()
    assert str(value) in str(refused.value)


def test_a_clock_behind_the_journal_is_told_and_time_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    written = SqliteJournal(path)
    written.append([events.ControllerStarted("i", "1")], at=int(time.time() * 1000) + 3_600_000, batch=1)
    written.close()
    with capture_logs() as told:
        journal = open_journal(RunOptions(namespace="n", identity="i", journal=path))
        journal.close()
    assert [line["event"] for line in told] == ["clock behind journal"]
    assert str(path) in told[0]["message"] and "Set the clock right" in told[0]["message"]


def test_a_file_that_is_no_journal_makes_room(tmp_path: Path) -> None:
    """J6: the message says where it went."""
    path = tmp_path / "journal.db"
    path.write_text("Dear Sir or Madam,\n")
    with capture_logs() as told:
        open_journal(RunOptions(namespace="n", identity="i", journal=path)).close()
    (aside,) = tmp_path.glob("journal.db.damaged-*")
    assert aside.read_text().startswith("Dear Sir")
    assert [line["event"] for line in told] == ["journal set aside"] and str(aside) in told[0]["message"]


def test_a_trouble_is_told_when_it_begins_changes_and_ends() -> None:
    with capture_logs() as told:
        blocking = BlockingConditions()
        for now in (
            {"Pod": "forbidden"},
            {"Pod": "forbidden"},
            {"Pod": "gone", "Lease": "away"},
            {"Lease": "away"},
            {},
        ):
            blocking.look(now)
    assert [(line["event"], line["kind"], line.get("error")) for line in told] == [
        ("cannot follow", "Pod", "forbidden"),
        ("cannot follow", "Lease", "away"),
        ("cannot follow", "Pod", "gone"),
        ("follows again", "Pod", None),
        ("follows again", "Lease", None),
    ]


@pytest.mark.realserver
async def test_a_controller_without_rights_says_of_each_kind_what_it_lacks(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """W6, N4: it started, is not ready, and its log and /readyz say why in the API server's words."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", "from reconciler.main import main; main()", "run", f"--namespace={NAMESPACE}", "--identity=nobody"),
        *(f"--journal={tmp_path / 'journal.db'}", f"--kubeconfig={control_plane.kubeconfig('tenant')}"),
        *("--listen-host=127.0.0.1", "--listen-port=0", "--metrics-host=127.0.0.1", f"--metrics-port={port}"),
        *("--lease-name=nobody", "--drain-seconds=0"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lacking: dict[str, str] = {}
    try:
        async with asyncio.timeout(60):
            while not {"Lease", "Node"} <= lacking.keys():
                line = json.loads(await process.stderr.readline())
                if line["event"] == "cannot follow":
                    lacking[line["kind"]] = line["error"]
        status, body = await asyncio.to_thread(_get, port, "/readyz")
    finally:
        process.terminate()
        await process.communicate()
    assert 'cannot list resource "nodes"' in lacking["Node"]
    assert 'cannot get resource "leases"' in lacking["Lease"]
    assert status == 503 and "the cluster is not read yet" in body and 'cannot list resource "nodes"' in body
    assert process.returncode == 0


def _get(port: int, path: str) -> tuple[int, str]:
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
