"""The product's source as syntax trees, for the checks in this suite."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("journal", "reconciler", "webhooks")


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    """(dotted name, path, tree) of every module of the product, sorted."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT).with_suffix("")
            name = ".".join(relative.parts).removesuffix(".__init__")
            yield name, path, ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, with the names of `from` imports appended."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def docstrings(tree: ast.Module) -> set[int]:
    """The ids of the constants that are documentation: statements made of one string."""
    return {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
