"""Mutated samples: JSON documents with fields dropped, retyped, repeated and nested, and bytes that are cut or flipped.

Owns the ways to break a document. Knows nothing of what a document means.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

Path = tuple[Any, ...]


class Verbatim(str):
    """JSON text that `json.dumps` cannot produce."""


class Twice(list[Any]):
    """The values of one key that stands more than once in its object."""


def written(value: Any) -> str:
    """A document as JSON text, which is invalid where the document says so."""
    if isinstance(value, Verbatim):
        return str(value)
    if isinstance(value, dict):
        members = [
            f"{json.dumps(key)}:{written(one)}"
            for key, found in value.items()
            for one in (found if isinstance(found, Twice) else [found])
        ]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(one) for one in value) + "]"
    return json.dumps(value)


def nested(depth: int, opening: str = "[", closing: str = "]") -> Verbatim:
    return Verbatim(opening * depth + "1" + closing * depth)


ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        7,
        2**31,
        2**53 + 1,
        2**63 - 1,
        2**63,
        -(2**63) - 1,
        2**64,
        0.5,
        -0.0,
        1e308,
        5e-324,
    ),
    *(float("nan"), float("inf"), float("-inf"), Verbatim("1e999"), Verbatim("9" * 5000), Verbatim("0." + "3" * 5000)),
    *(
        "",
        " ",
        "\x00",
        "\n",
        "a",
        "é",
        "日本",
        "\u202e",
        "\U0001f5a5",
        "\ud800",
        "\udfff\ud800",
        "x" * 300,
        "y" * 70_000,
    ),
    *("0", "1", "-1", "1.5", "1Gi", "1e3", "1e-3", "1e99999", "NaN", "٣", "1_000", " 1", "9" * 300, "100m", "0x10"),
    *("true", "null", "2026-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:60Z"),
    *("2026-01-01T00:00:00+99:99", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.9999999-14:00", "__proto__"),
    *([], {}, [None], [[]], [{}], {"": ""}, {"a": None}, {"a": {"b": []}}, [1, "1", None]),
    *(nested(60), nested(200, '{"a":', "}"), nested(1500), nested(5000, '{"a":', "}"), nested(1200, '[{"a":', "}]")),
]
"""Values no well-behaved client sends, and the usual ones at the wrong place."""

values = (
    st.sampled_from(ODD).map(copy.deepcopy)
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.recursive(
        st.none() | st.integers(-5, 5) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    )
)


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of every value in a document, itself included."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from places(one, (*path, index))


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def replaced(document: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    at(document, path[:-1])[path[-1]] = value
    return document


@st.composite
def broken(draw: st.DrawFn, document: Any) -> Any:
    """The document with one thing wrong, which may be nothing that matters."""
    paths = list(places(document))
    path = draw(st.sampled_from(paths))
    found = at(document, path)
    match draw(st.sampled_from(("set", "set", "drop", "move", "twice", "wrap", "more", "rename"))):
        case "drop" if path:
            del at(document, path[:-1])[path[-1]]
        case "move":
            other = copy.deepcopy(at(document, draw(st.sampled_from(paths))))
            return replaced(document, path, other)
        case "twice" if path and isinstance(path[-1], str) and not isinstance(found, Twice):
            return replaced(document, path, Twice([found, draw(values)]))
        case "wrap":
            return replaced(document, path, draw(st.sampled_from(([found], {"a": found}, [found] * 70))))
        case "more" if isinstance(found, dict):
            found[draw(st.text(max_size=6))] = draw(values)
        case "more" if isinstance(found, list):
            found.insert(0, draw(values))
        case "rename" if path and isinstance(path[-1], str):
            holder = at(document, path[:-1])
            holder[draw(st.text(max_size=6))] = holder.pop(path[-1])
        case _:
            return replaced(document, path, draw(values))
    return document


@st.composite
def documents(draw: st.DrawFn, samples: Sequence[Any], most: int = 4) -> Any:
    """A sample with up to `most` things wrong."""
    document = copy.deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, most))):
        document = draw(broken(document))
    return document


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes as they are, or cut, flipped, prefixed, or in another encoding."""
    match draw(st.sampled_from(("whole",) * 8 + ("cut", "flip", "insert", "mark", "utf-16", "nothing"))):
        case "cut":
            return content[: draw(st.integers(0, len(content)))]
        case "flip" if content:
            place, flip = draw(st.integers(0, len(content) - 1)), draw(st.integers(1, 255))
            return content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :]
        case "insert":
            place = draw(st.integers(0, len(content)))
            return content[:place] + draw(st.binary(min_size=1, max_size=6)) + content[place:]
        case "mark":
            return b"\xef\xbb\xbf" + content
        case "utf-16":
            return content.decode().encode("utf-16")
        case "nothing":
            return b""
    return content


@st.composite
def bodies(draw: st.DrawFn, samples: Sequence[Any], most: int = 4) -> bytes:
    """A mutated sample as it arrives."""
    return draw(damaged(written(draw(documents(samples, most))).encode()))
