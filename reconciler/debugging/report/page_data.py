"""The data the report page shows, as plain values.

Owns the structs between the pass through the journal (`timeline`) and the page (`page`).
"""

from __future__ import annotations

from collections import Counter

import msgspec

from reconciler.core.state.decisions import Action
from reconciler.debugging.explain import Explanation
from reconciler.debugging.report.series import Point, Span

INCIDENTS = {
    Action.REFUSE_ORDER: "refused",
    Action.REFUSE_BIND: "refused",
    Action.LOSE: "lost",
    Action.RESTORE: "returned",
}
"""Decisions that are incidents, and their kind."""
BARS = (Action.BIND, Action.LOSE, Action.RESTORE)
"""Decisions that begin a bar."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a page, so that a browser opens it with ease; the newest data is kept.

    `points`: change points over all nodes and names. `bars`: on all nodes. `incidents`: refusals, and as many losses
    and returns. `explained`: incidents with their reasons, and as many binds; `explanation_bytes`: of these on the
    page."""

    points: int = 120_000
    bars: int = 20_000
    incidents: int = 2_000
    explained: int = 200
    explanation_bytes: int = 4_000_000


class Bar(Span, kw_only=True):
    """Units of a node held by one owner. `kind`: bound, lost or raw. `name`: the device's or the pod's. `seq`: the
    entry of the decision that began it, 0 where this journal holds none. `open`: still going on."""

    node: str
    kind: str
    namespace: str
    name: str
    vmi: str
    resource: str
    seq: int = 0
    open: bool = False

    @property
    def owner(self) -> object:
        return self.kind == "raw", self.namespace, self.name


class Incident(msgspec.Struct, kw_only=True):
    """A refusal, a loss or a return. `kind`: refused, lost or returned; `resources`: the names it is about.
    `asked`: units asked for, or of the lost or returned devices, per resource name. `missing`: units short, 0 where
    more units would not help or, for a webhook's refusal, where it is not explained.

    A pending order is refused again whenever the numbers change: one incident at the first time with the last message,
    repeated `again` times. `seq`: its last entry, in `journal` where that is not the page's own. `observed`: known from
    the objects only, its decision is in another journal."""

    at: int
    seq: int
    journal: str = ""
    observed: bool = False
    again: int = 0
    kind: str
    action: str
    subject: str
    node: str = ""
    reason: str = ""
    message: str = ""
    missing: int = 0
    asked: dict[str, int] = {}
    resources: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What names its explanation on the page."""
        return _key(self.journal, self.seq)


def _key(journal: str, seq: int) -> str:
    return f"{journal}:{seq}" if journal else str(seq)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes with the same verdict on a set. `why` "" means that it fits; it says "the node" for each of them."""

    why: str
    reason: str
    missing: int
    left: int
    free: dict[str, int]
    nodes: tuple[str, ...]


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """An explanation with its nodes grouped by verdict: every node is listed in little space."""

    what: Explanation
    groups: tuple[Group, ...]
    journal: str = ""

    @property
    def key(self) -> str:
        """What names the explanation on the page, as `Incident.key` does."""
        return _key(self.journal, self.what.seq)

    @property
    def bytes(self) -> int:
        """Approximate size on the page."""
        return 600 + sum(150 + len(group.why) + 5 * len(group.nodes) for group in self.groups)


class ReportData(msgspec.Struct, kw_only=True):
    """Everything the page shows. Times are ms since the epoch.

    `series`: (node, resource name) to points of (served or -1 where unknown, placed, raw, free). `totals`: a resource
    name to points of (served, placed, raw, free, held by orders placed nowhere, nodes whose number is unknown, units in
    use beyond what their nodes serve).
    `step`: the finest time told apart. `counts`: incidents per kind."""

    start: int
    end: int
    first_seq: int
    last_seq: int
    series: dict[tuple[str, str], list[Point]]
    totals: dict[str, list[Point]]
    step: int
    classes: dict[str, list[str]]
    bars: list[Bar]
    dropped_bars: int
    incidents: list[Incident]
    counts: Counter[str]
    explained: list[Explained]
