"""The controller, its command line and its tools.

Owns everything but the journal file (`journal`) and the admission webhooks (`webhooks`). `README.md` next to this file
draws the rooms, says who may import whom, and lists the places to touch for each kind of extension.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("gpu-binder")
except PackageNotFoundError:
    VERSION = "0+unknown"
"""The installed distribution's version. Journaled at every start, so that `verify` can tell a difference in
behaviour from a change of build."""
