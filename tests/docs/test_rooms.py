"""`reconciler/README.md` draws the rooms as the structure test knows them, and names every place of an extension."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from journal.events import EVENTS
from reconciler.core.model import objects
from reconciler.core.model.objects import KINDS, Kind
from reconciler.core.model.vocabulary import REASONS
from reconciler.runtime.observability import metrics
from reconciler.runtime.observability.event_messages import NOTICES
from tests.tidy.source import ROOT
from tests.tidy.test_structure import ROOMS

TEXT = (ROOT / "reconciler" / "README.md").read_text()
FILES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in ("journal", "reconciler", "webhooks", "chart/templates", "chart/files")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".yaml") and "crds" not in path.parts
}


def _constants(values: Iterable[str], module: object) -> list[tuple[str, ...]]:
    """For each value of a table, what a file may call it: the value or the constant that holds it."""
    names = {value: name for name, value in vars(module).items() if isinstance(value, str) and name.isupper()}
    return [(value, names[value]) if value in names else (value,) for value in values]


def _kind_names() -> list[tuple[str, ...]]:
    names = {value.name: name for name, value in vars(objects).items() if isinstance(value, Kind)}
    return [(kind.plural, names[kind.name]) for kind in KINDS.values()]


COMMAND_MODULES = [
    path
    for path in (ROOT / "reconciler" / "commands").glob("*.py")
    if re.search(r"^COMMANDS = ", path.read_text(), re.M)
]
MEMBERS: dict[str, list[tuple[str, ...]]] = {
    "A refusal reason": [(f"Reason.{reason.name}", f"{reason.name} =") for reason in REASONS],
    "A journal event": [(name,) for name in EVENTS],
    "A Kubernetes Event": [(f'"{name}"',) for name in NOTICES],
    "A metric": _constants(metrics.METRICS, metrics),
    "A watched kind": _kind_names(),
    "A CLI command": [(f"{path.stem}.COMMANDS",) for path in COMMAND_MODULES],
}
"""What there is of each extension today, by the words a file may use for it."""


def _places(title: str) -> set[str]:
    """Files named in the numbered list below a heading."""
    section = TEXT.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]
    items = re.findall(r"^\d+\. (.*(?:\n {3}.*)*)", section, re.M)
    return {path for item in items for path in re.findall(r"`([\w./-]+\.(?:py|yaml))`", item)}


def _mentions(path: str, words: tuple[str, ...]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", FILES[path]) for word in words)


@pytest.mark.parametrize("title", sorted(MEMBERS))
def test_the_list_of_places_is_complete(title: str) -> None:
    """A file that mentions every member of today is one that the next member has to touch."""
    members = MEMBERS[title]
    common = {path for path in FILES if all(_mentions(path, words) for words in members)}
    assert common <= _places(title), f"not in the list: {sorted(common - _places(title))}"


@pytest.mark.parametrize("title", sorted(MEMBERS))
def test_every_place_exists(title: str) -> None:
    places = _places(title)
    assert places
    assert [path for path in places if not (ROOT / path).exists()] == []


def test_the_picture_has_every_room_and_what_it_may_import() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \|", TEXT, re.M))
    assert set(rows) == set(ROOMS)
    for room, allowed in ROOMS.items():
        assert re.findall(r"`([\w.*]+)`", rows[room]) == list(allowed), room


def test_every_file_it_names_exists() -> None:
    for path in re.findall(r"`((?:journal|reconciler|webhooks|chart|tests)/[\w./]+)`", TEXT):
        assert Path(ROOT / path).exists(), path
