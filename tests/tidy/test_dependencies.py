"""Every dependency has a reason and a lock; no download address is committed."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from tests.tidy.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEXT = (ROOT / "pyproject.toml").read_text()
EXTRAS = PROJECT["optional-dependencies"]
RUNTIME = PROJECT["dependencies"]
ALL = [*RUNTIME, *(found for extra in EXTRAS.values() for found in extra)]


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found.group()).lower()


@pytest.mark.parametrize("requirement", sorted(set(ALL)))
def test_every_dependency_says_why(requirement: str) -> None:
    assert re.search(rf'"{re.escape(requirement)}",\s+# \S', TEXT), f"{requirement} has no reason beside it"


@pytest.mark.parametrize(("lock", "wanted"), [("requirements.lock", RUNTIME), ("tests/requirements.lock", ALL)])
def test_the_locks_hold_every_dependency_with_hashes(lock: str, wanted: list[str]) -> None:
    text = (ROOT / lock).read_text()
    locked = set(re.findall(r"^([a-z0-9.-]+)(?:\[\S+\])?==", text, re.M))
    assert {name_of(requirement) for requirement in wanted} <= locked
    for block in re.split(r"\n(?=[a-z0-9])", text.strip()):
        assert "--hash=sha256:" in block, block.splitlines()[0]
    assert "://" not in text


def test_every_runtime_dependency_is_imported() -> None:
    modules = {
        "pyyaml": "yaml",
        "prometheus-client": "prometheus_client",
        "sqlite-utils": "sqlite_utils",
        "python-dateutil": "dateutil",
    }
    source = "\n".join(
        path.read_text() for p in ("journal", "reconciler", "webhooks") for path in (ROOT / p).rglob("*.py")
    )
    for requirement in RUNTIME:
        module = modules.get(name_of(requirement), name_of(requirement).replace("-", "_"))
        assert re.search(rf"^\s*(?:import|from) {module}\b", source, re.M), f"{requirement} is not used"


def test_no_download_host_is_named() -> None:
    hosts = "|".join(
        ("py" + "pi.org", "python" + "hosted", "proxy.golang" + ".org", "registry.npm" + "js", "deb.debian" + ".org")
    )
    done = subprocess.run(["git", "grep", "-lE", hosts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""
