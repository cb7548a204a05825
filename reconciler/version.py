"""The version of this build, as the distribution states it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("gpu-binder")
    except PackageNotFoundError:
        return "0+unknown"


VERSION = _installed()
"""Journaled with each start, so that a difference in `verify` can be told from a change of build."""
