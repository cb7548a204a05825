"""Formats numbers and times for people."""

from __future__ import annotations

from datetime import UTC, datetime


def counted(count: int, noun: str) -> str:
    """`1 unit`, `2 units`; for nouns that take an s."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def moment(at: int) -> str:
    """Milliseconds since the Unix epoch in readable form, "" for 0."""
    if not at:
        return ""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
