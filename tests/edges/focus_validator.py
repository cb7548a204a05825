"""The public FOCUS validator in its own environment, outside the checkout.

`python -m tests.edges.focus_validator` installs it once. It asks for Python 3.12 and for a numpy that today's
pyarrow does not run with, so it cannot share the tests' environment. `$GPU_BINDER_TEST_CACHE` moves the cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("focus-validator==2.2.1", "pyarrow<21")
MODEL = "1.2.0.1"
"""The rules of FOCUS 1.2 that come with the package, so that nothing is fetched."""
REASON = "no FOCUS validator: install it once with `python -m tests.edges.focus_validator` (needs Python 3.12 or newer)"
NEWER = ("python3.12", "python3.13", "python3.14", "python3")
_FAILED = re.compile(r"^\S+ (?P<rule>[A-Za-z]+-[CD]-\d{3}-[A-Z]): FAIL", re.MULTILINE)
_TOTAL = re.compile(r"Total: (\d+) \| Pass: (\d+) \| Fail: (\d+)")


def home() -> Path:
    root = Path(os.environ.get("GPU_BINDER_TEST_CACHE") or Path.home() / ".cache" / "gpu-binder")
    return root / "tools" / PACKAGES[0].replace("==", "-")


def installed() -> bool:
    return (home() / "bin" / "focus-validator").is_file()


def required() -> bool:
    """Whether a run without it must fail instead of skipping."""
    return os.environ.get("CI", "") not in ("", "0", "false")


def install() -> None:
    """Make the environment; it appears whole or not. Raises `LookupError` without a new enough Python."""
    if installed():
        return
    python = _python()
    if python is None:
        raise LookupError(f"none of {', '.join(NEWER)} is Python 3.12 or newer; install one, the validator needs it")
    shutil.rmtree(home(), ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(home())], check=True)
    try:
        pip = [str(home() / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES]
        subprocess.run(pip, check=True)
    except BaseException:
        shutil.rmtree(home())
        raise


def _python() -> str | None:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in (sys.executable, *NEWER, *map(str, sorted(pyenv.glob("3.*/bin/python")))):
        found = shutil.which(name)
        check = "import sys, venv; sys.exit(sys.version_info < (3, 12))"
        if found and subprocess.run([found, "-c", check], check=False, capture_output=True).returncode == 0:
            return found
    return None


def validate(data: Path, criteria: list[str], rules: Path) -> tuple[set[str], int]:
    """(rules that failed, rules that passed) for a CSV file. `rules`: an empty directory."""
    package = next((home() / "lib").glob("python3.*/site-packages"))
    model = json.loads((package / f"focus_validator/rules/model-{MODEL}.json").read_text())
    _repair(model)
    (rules / f"model-{MODEL}.json").write_text(json.dumps(model))
    done = subprocess.run(
        [
            str(home() / "bin" / "focus-validator"),
            "--data-file",
            str(data),
            "--validate-version",
            MODEL,
            "--rule-set-path",
            str(rules),
            "--block-download",
            "--applicability-criteria",
            ",".join(criteria),
        ],
        cwd=package,  # it reads its currency codes relative to where it is started
        capture_output=True,
        text=True,
        check=False,
    )
    total = _TOTAL.search(done.stdout)
    assert done.returncode == 0 and total is not None, done.stdout + done.stderr
    failed = set(_FAILED.findall(done.stdout))
    assert len(failed) == int(total[3]), done.stdout
    return failed, int(total[2])


def _repair(model: dict[str, Any]) -> None:
    """Two rules of this model state their condition as {"AND": …} instead of a check function, which the validator
    drops: CapacityReservationStatus would have to be null and not null in every row."""
    for name in ("CapacityReservationStatus-C-003-C", "CapacityReservationStatus-C-004-C"):
        criteria = model["ModelRules"][name]["ValidationCriteria"]
        stated = criteria["Condition"]["AND"]
        items = stated if isinstance(stated, list) else [stated]
        criteria["Condition"] = {"CheckFunction": "AND", "Items": items}


if __name__ == "__main__":
    install()
