"""The README says what the code does: tables equal the code, commands and paths exist, the two commands work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.core.vocabulary import Reason
from reconciler.main import main
from tests.docs.tables import README, REASONS, TABLES, rendered
from tests.tidy.source import ROOT

TEXT = README.read_text()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_tables_are_the_code_s(name: str) -> None:
    assert f"<!-- table: {name} -->" in TEXT
    assert rendered(TEXT) == TEXT, "run `python -m tests.docs.tables`"


def test_every_reason_is_explained() -> None:
    assert set(REASONS) == set(Reason)


def test_every_command_of_the_readme_exists_and_every_command_is_in_the_readme() -> None:
    named = set(re.findall(r"gpu-binder ([a-z][a-z-]+)", TEXT)) - {"run", "chart"}
    assert named <= set(main.commands), named - set(main.commands)
    assert set(main.commands) - named <= {"run"}


def test_every_file_the_readme_names_exists() -> None:
    for path in re.findall(r"`((?:journal|reconciler|webhooks|chart|tests)/[\w./]+)`", TEXT):
        assert (ROOT / path).exists(), path


def test_the_demo_plays_and_its_journal_answers(tmp_path: Path) -> None:
    """J7: what the first command leaves can be verified and explained, under any hash seed (J2)."""
    journal = tmp_path / "demo.db"
    told = _run("demo", "--journal", str(journal))
    for phrase in ("BudgetExceeded", "NoFreeUnits", "Lost", "nothing has moved", "all the same"):
        assert phrase in told
    for seed in ("0", "1", "4242"):
        assert "all the same" in _run("verify", str(journal), seed=seed)
    explained = _run("explain", str(journal), "vmi", "tenant-acme/wide")
    assert re.search(r"gpu-1 .* no .* 3 .* 1 ", explained), explained


def _run(*arguments: str, seed: str = "random") -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from reconciler.main import main; main()", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
