"""Every rule of the contract and every case from the field is named by a test that proves it."""

from __future__ import annotations

import re

import pytest

from tests.tidy.source import ROOT

RULES = [
    "O1",
    "O2",
    "O3",
    "O4",
    "K1",
    "K2",
    "K3",
    "K4",
    "K5",
    "R1",
    "R2",
    "R3",
    "R4",
    "R5",
    "R6",
    "R7",
    "R8",
    "R9",
    "R10",
    "P1",
    "P1b",
    "P2",
    "P3",
    "P4",
    "P5",
    "P6",
    "B1",
    "B2",
    "B3",
    "B4",
    "B5",
    "B6",
    "W1",
    "W2",
    "W3",
    "W4",
    "W5",
    "W6",
    "W7",
    "V1",
    "V2",
    "J1",
    "J2",
    "J3",
    "J4",
    "J5",
    "J6",
    "J7",
    "U1",
    "U1b",
    "U2",
    "U3",
    "C1",
    "N1",
    "N2",
    "N3",
    "N4",
    "N5",
    "N6",
    "N7",
    "N8",
    "N9",
]
CASES = [
    "C01",
    "C03",
    "C04",
    "C05",
    "C06",
    "C07",
    "C09",
    "C10",
    "C11",
    "C13",
    "C16",
    "C17",
    "C20",
    "C21",
    "C22",
    "C24",
    "C25",
    "C26",
    "C27",
    "C28",
    "C30",
    "C31",
    "C34",
    "C36",
    "C38",
    "C39",
    "C41",
    "C42",
    "C44",
    "C45",
    "C47",
    "C50",
]


def _tests() -> str:
    files = [*ROOT.joinpath("tests").rglob("test_*.py"), *ROOT.joinpath("tests").rglob("*.txt")]
    return "\n".join(path.read_text() for path in files if path.parent.name != "tidy")


TEXT = _tests()


@pytest.mark.parametrize("rule", [*RULES, *CASES])
def test_every_rule_and_case_is_named(rule: str) -> None:
    found = re.search(rf"(?i)(?<![a-z0-9]){rule}(?![0-9a-z])", TEXT)
    assert found, f"no test names {rule}"
