"""Logs conditions that block a replica, once when each starts, changes or clears (N4, N7).

Owns when to log: a lasting condition is one line, not one per retry. The caller supplies the conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog


class BlockingConditions:
    """`look` is called every few seconds with all troubles there are now."""

    def __init__(self, log: Any = None) -> None:
        self._log = log or structlog.get_logger("gpu-binder")
        self._told: dict[str, str] = {}

    def look(self, now: Mapping[str, str]) -> None:
        """`now`: what cannot be done (a kind, "Lease") to why, in the API server's words."""
        for kind in sorted(now):
            if self._told.get(kind) != now[kind]:
                self._log.warning("cannot follow", kind=kind, error=now[kind])
        for kind in sorted(self._told.keys() - now.keys()):
            self._log.info("follows again", kind=kind)
        self._told = dict(now)
