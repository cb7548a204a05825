"""The structure of the source: one-way imports, a pure core, names defined once, small pieces."""

from __future__ import annotations

import ast
import re

import pytest

from tests.tidy.source import ROOT, docstrings, imports, modules

MODULES = {name: (path, tree) for name, path, tree in modules()}
ROOMS: dict[str, tuple[str, ...]] = {
    "journal": (),
    "reconciler": (),
    "reconciler.core.model": (),
    "reconciler.core.tenancy": ("reconciler.core.model",),
    "reconciler.core.capacity": ("reconciler.core.model",),
    "reconciler.core.metering": (
        "journal.events",
        "reconciler.core.model",
        "reconciler.core.tenancy",
        "reconciler.core.capacity",
    ),
    "reconciler.core.state": (
        "reconciler.core.model",
        "reconciler.core.tenancy",
        "reconciler.core.capacity",
        "reconciler.core.metering",
    ),
    "reconciler.core.admission": (
        "reconciler.core.model",
        "reconciler.core.tenancy",
        "reconciler.core.capacity",
        "reconciler.core.state",
    ),
    "reconciler.core.upkeep": (
        "reconciler.core.model",
        "reconciler.core.tenancy",
        "reconciler.core.state",
        "reconciler.core.admission",
    ),
    "reconciler.core": ("journal.events", "reconciler.core.*"),
    "reconciler.cluster": (
        "journal.events",
        "reconciler.core.model",
        "reconciler.core.tenancy",
        "reconciler.core.state",
    ),
    "reconciler.runtime": ("journal", "reconciler", "reconciler.core", "reconciler.core.*", "reconciler.cluster"),
    "reconciler.billing": ("journal", "reconciler.core", "reconciler.core.*"),
    "reconciler.debugging": (
        "journal",
        "reconciler",
        "reconciler.core",
        "reconciler.core.*",
        "reconciler.cluster.port",
        "reconciler.cluster.retry_policies",
        "reconciler.runtime.restore",
    ),
    "reconciler.node_agent": ("reconciler.core.model", "reconciler.cluster.port", "reconciler.cluster.retry_policies"),
    "webhooks": ("journal.events", "reconciler.core.*", "reconciler.cluster.port", "reconciler.cluster.retry_policies"),
    "reconciler.demo": ("*",),
    "reconciler.commands": ("*",),
    "reconciler.main": ("*",),
}
"""Every room and what it may import besides itself: a room, a room's rooms (`.*`), or one module of a room."""
NOBODY_IMPORTS = ("reconciler.demo", "reconciler.commands", "reconciler.main")
"""Assembly: imported by each other alone."""
ALSO = {"reconciler.runtime.serve": ("webhooks",)}
"""Modules that may import more than their room."""


def room_of(name: str) -> str:
    """The innermost room a module stands in; `journal.events` is in `journal`."""
    return max((room for room in ROOMS if name == room or name.startswith(f"{room}.")), key=len)


def may_import(importer: str, imported: str) -> bool:
    """Whether a module may import another of ours."""
    own, other = room_of(importer), room_of(imported)
    if own == other:
        return True
    if other in NOBODY_IMPORTS:
        return own in NOBODY_IMPORTS
    for allowed in (*ROOMS[own], *ALSO.get(importer, ())):
        within = imported == allowed or imported.startswith(f"{allowed}.")
        if allowed == "*" or other == allowed or (within and allowed not in ROOMS):
            return True
        if allowed.endswith(".*") and other.startswith(allowed[:-1]):
            return True
    return False


def ours(name: str) -> bool:
    return name.split(".")[0] in ("journal", "reconciler", "webhooks")


def module_of(name: str) -> str:
    """The module an import reads: the name itself, or the module that owns it."""
    while name not in MODULES and "." in name:
        name = name.rpartition(".")[0]
    return name


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_one_way(name: str) -> None:
    _, tree = MODULES[name]
    wrong = [
        f"line {line}: {imported}"
        for line, imported in imports(tree)
        if ours(imported) and not may_import(name, module_of(imported))
    ]
    assert not wrong, f"{name} imports against the direction: {wrong}"


def test_nothing_loose_stands_below_the_reconciler() -> None:
    loose = {path.name for path in (ROOT / "reconciler").glob("*.py")} - {"__init__.py", "main.py"}
    assert not loose
    assert {name for name in MODULES if re.fullmatch(r"reconciler\.\w+", name)} <= set(ROOMS)
    assert {room for room in ROOMS if room not in MODULES} == set(), "a room without its docstring"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_neighbours_a_module_names_exist(name: str) -> None:
    """A renamed module is renamed in the docstrings that point to it."""
    known = {part for module in MODULES for part in module.split(".")}
    known |= {path.name for path in (ROOT / "reconciler").rglob("*") if path.is_dir()}
    text = ast.get_docstring(MODULES[name][1]) or ""
    for sentence in re.findall(r"Neighbours?:(.*?)(?:\.\s|\.?$)", text, re.S):
        named = {each.split(".")[-1] for each in re.findall(r"`([a-z_.]+)`", sentence)}
        assert named <= known, f"{name}: {sorted(named - known)}"


CORE = [name for name in sorted(MODULES) if name.startswith("reconciler.core")]
IMPURE = {
    "asyncio", "time", "random", "socket", "logging", "structlog", "os", "uuid", "aiohttp", "threading",
    "secrets", "pathlib", "subprocess", "sqlite3", "kubernetes",
}  # fmt: skip


@pytest.mark.parametrize("name", CORE)
def test_j2_the_core_reaches_for_no_clock_socket_or_chance(name: str) -> None:
    _, tree = MODULES[name]
    wrong = [f"line {line}: {item}" for line, item in imports(tree) if item.split(".")[0] in IMPURE]
    for node in ast.walk(tree):
        clock = isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today")
        if clock and isinstance(node.value, ast.Name) and node.value.id in ("datetime", "date"):
            wrong.append(f"line {node.lineno}: {node.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print", "hash"):
            wrong.append(f"line {node.lineno}: {node.func.id}()")
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            wrong.append(f"line {node.lineno}: async")
    assert not wrong, f"{name} is not pure: {wrong}"


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")


@pytest.mark.parametrize("name", CORE)
def test_j2_the_core_iterates_no_set_unsorted(name: str) -> None:
    _, tree = MODULES[name]
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    wrong = [ast.unparse(loop.iter) for loop in loops if _is_set(loop.iter)]
    assert not wrong, f"{name} iterates a set, whose order changes with the hash seed: {wrong}"


KEYS = re.compile(r"gpu\.cozystack\.io|kubevirt\.io/[a-z]|apps\.cozystack\.io")


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if name != "reconciler.core.model.vocabulary"])
def test_only_the_vocabulary_spells_a_key(name: str) -> None:
    _, tree = MODULES[name]
    documented = docstrings(tree)
    wrong = [
        f"line {node.lineno}: {node.value!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documented
        and KEYS.search(node.value)
    ]
    assert not wrong, f"{name} spells keys that reconciler.core.model.vocabulary owns: {wrong}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_functions_stay_within_seventy_lines(name: str) -> None:
    _, tree = MODULES[name]
    wrong = [
        f"{node.name}: {node.end_lineno - node.lineno + 1}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= 70
    ]
    assert not wrong, f"{name} has long functions: {wrong}"


MAX_LINES = 320
LONGER = {
    "reconciler.core.model.objects": "one table of every stored shape; split it would be two places to look",
    "reconciler.core.state.placement_state": "one read side for every reader",
    "reconciler.core.admission.checks": "every refusal in one ordered list",
    "reconciler.core.index_updates": "one effect a kind, symmetrical, read side by side",
    "reconciler.core.fold": "one branch an event kind",
    "reconciler.core.tenancy.charges": "the tree and its arithmetic",
    "reconciler.core.model.wire": "one decoder for three forms of answer",
    "reconciler.cluster.informers": "one informer and the set of them",
    "reconciler.runtime.leader_election": "one protocol",
    "journal.sqlite": "one file format",
    "journal.store": "one protocol, its errors, and the journal in memory that shows what it means",
    "webhooks.binding": "one protocol: attach, wait, undo",
}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_stay_small(name: str) -> None:
    path, _ = MODULES[name]
    lines = len(path.read_text().splitlines())
    allowed = 400 if name in LONGER else MAX_LINES
    assert lines <= allowed, f"{name} has {lines} lines"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_module_says_what_it_owns(name: str) -> None:
    path, tree = MODULES[name]
    if path.read_text().strip():
        assert ast.get_docstring(tree), f"{name} has no docstring"
