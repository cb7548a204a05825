"""The wall clock of the process, in the journal's unit."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return round(time.time() * 1000)
