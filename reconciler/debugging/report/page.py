"""Render the report as one self-contained HTML page: no network, no server, no second file.

Owns the packing of report data and its escaping: names and messages come from tenants. The page's script renders them
as text only; a content security policy allows no other script and no requests. Neighbours: `assets` (script and style),
`page_data` (what is shown).
"""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from importlib import resources
from string import Template
from typing import Any

import msgspec

from reconciler.core.model.text import moment
from reconciler.debugging.report.page_data import Bar, Explained, Incident, ReportData
from reconciler.debugging.report.series import assign_lanes

KINDS = ("bound", "lost", "raw")
_NO_MARKUP = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class LibraryMissing(RuntimeError):
    """The plotting library is not installed."""


def page(data: ReportData, source: str) -> str:
    """The whole page. `source`: what was read, for the title. Raises `LibraryMissing`."""
    script, library = _asset("report.js"), _library()
    content = _json(_Packed(data).plain())
    title = f"GPU units, {moment(data.start)[:19]} to {moment(data.end)[:19]} UTC"
    return Template(_asset("report.html")).substitute(
        policy=_policy(library, script),
        title=escape(title),
        source=escape(f"{source}, entries {data.first_seq} to {data.last_seq}"),
        style=_asset("report.css"),
        library=library,
        data=content,
        script=script,
    )


def _library() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise LibraryMissing("the report needs plotly: pip install 'gpu-binder[report]'") from error
    text: str = get_plotlyjs()
    return text.replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return resources.files("reconciler.debugging.report").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Allow only these scripts and images the page itself generates; load nothing."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(value: Any) -> str:
    """JSON that is safe inside a script element, whatever its texts say."""
    text = msgspec.json.encode(value).decode()
    return re.sub("[<>&\u2028\u2029]", lambda found: _NO_MARKUP[found[0]], text)


class _Packed:
    """Compact report data: repeated texts are stored once and referred to by index."""

    def __init__(self, data: ReportData) -> None:
        self._picture = data
        self._texts: dict[str, int] = {}
        nodes = {node for node, _ in data.series} | {bar.node for bar in data.bars}
        nodes |= {node for found in data.explained for group in found.groups for node in group.nodes}
        self._nodes = {name: index for index, name in enumerate(sorted(nodes))}

    def plain(self) -> dict[str, Any]:
        """What the page's script reads."""
        found = self._picture
        heights = _lanes(found.bars)
        return {
            "start": found.start,
            "end": found.end,
            "step": found.step,
            "nodes": list(self._nodes),
            "classes": found.classes,
            "totals": {name: self._points(points) for name, points in found.totals.items()},
            "series": [
                [self._nodes[node], name, self._points(points)] for (node, name), points in found.series.items()
            ],
            "heights": [[self._nodes[node], name, height] for (node, name), height in heights.items()],
            "bars": [self._bar(bar) for bar in found.bars],
            "droppedBars": found.dropped_bars,
            "marks": [self._incident(incident) for incident in found.incidents],
            "counts": dict(found.counts),
            "explanations": {one.key: self._explanation(one) for one in found.explained},
            "texts": list(self._texts),
        }

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _points(self, points: list[tuple[int, tuple[int, ...]]]) -> list[list[int]]:
        return [[at - self._picture.start, *value] for at, value in points]

    def _bar(self, bar: Bar) -> list[int]:
        return [
            self._nodes[bar.node],
            bar.start - self._picture.start,
            bar.end - self._picture.start,
            KINDS.index(bar.kind),
            self._text(bar.namespace),
            self._text(bar.name),
            self._text(bar.vmi),
            self._text(bar.resource),
            bar.units,
            bar.lane,
            bar.seq,
            int(bar.open),
        ]

    def _incident(self, incident: Incident) -> dict[str, Any]:
        plain: dict[str, Any] = {**msgspec.structs.asdict(incident), "key": incident.key}
        return {key: value for key, value in plain.items() if value not in ("", 0, (), {})}

    def _explanation(self, found: Explained) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(found.what, str_keys=True)
        groups = [msgspec.structs.asdict(group) for group in found.groups]
        for group in groups:
            group["nodes"] = [self._nodes[node] for node in group["nodes"]]
        return plain | {"groups": groups}


def _lanes(bars: list[Bar]) -> dict[tuple[str, str], int]:
    """(node, resource name) to the lanes its bars take."""
    found: dict[tuple[str, str], list[Bar]] = {}
    for bar in bars:
        found.setdefault((bar.node, bar.resource), []).append(bar)
    return {key: assign_lanes(own) for key, own in found.items()}
