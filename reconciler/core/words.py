"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 unit`, `2 units`; for nouns that take an s."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"
