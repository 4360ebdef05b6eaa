"""Style that a linter has no rule for: sizes, banned names, one clock, drawn surfaces."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("seedance", "mesh", "gateway", "inference", "router", "metering", "launcher")
SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "v2" not in path.relative_to(ROOT).parts
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
EVERYTHING = [*SOURCES, *TESTS, *sorted((ROOT / "examples").rglob("*.py"))]

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 400
CLASS_LINES_MAX = 250
CLASS_ATTRIBUTES_MAX = 15
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
CLOCK_HOMES = {ROOT / "mesh" / "clock.py"}
CLOCK_CALLS = {("time", "time"), ("time", "monotonic"), ("datetime", "now"), ("datetime", "utcnow")}
# These packages tell time by the clock they are given. The SDK and the command line run on a
# user's machine, where the event loop's time and the wall are all there is.
CLOCKED = ("mesh", "gateway", "inference", "router", "metering")

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _length(node: _Definition) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Every file, parsed once for all rules."""
    return {path: ast.parse(path.read_text()) for path in EVERYTHING}


def _too_long(path: Path, tree: ast.Module) -> Iterator[str]:
    lines = path.read_text().count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{_name(path)}: {lines} lines"
    bounds = {
        ast.FunctionDef: FUNCTION_LINES_MAX,
        ast.AsyncFunctionDef: FUNCTION_LINES_MAX,
        ast.ClassDef: CLASS_LINES_MAX,
    }
    for node in ast.walk(tree):
        if isinstance(node, _Definition) and _length(node) > bounds[type(node)]:
            yield f"{_name(path)}:{node.lineno} {node.name}: {_length(node)} lines"


def test_sizes(trees: dict[Path, ast.Module]) -> None:
    """No function is over 60 lines, no file over 400, no class over 250 lines."""
    assert not [found for path in EVERYTHING for found in _too_long(path, trees[path])]


def _attributes(node: ast.ClassDef) -> set[str]:
    return {
        target.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Assign | ast.AnnAssign)
        for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def test_classes_hold_little(trees: dict[Path, ast.Module]) -> None:
    """No class assigns more than 15 attributes of its own."""
    assert not [
        f"{_name(path)}: {node.name} {sorted(_attributes(node))}"
        for path in SOURCES
        for node in ast.walk(trees[path])
        if isinstance(node, ast.ClassDef) and len(_attributes(node)) > CLASS_ATTRIBUTES_MAX
    ]


def test_no_grab_bags() -> None:
    """A module is named for what it does, never utils, helpers, common or misc."""
    assert not [
        _name(path)
        for path in EVERYTHING
        if BANNED_NAMES & {path.stem, *path.relative_to(ROOT).parts}
    ]


def _own_clock(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = node.func.value
            owner = value.id if isinstance(value, ast.Name) else ""
            if (owner, node.func.attr) in CLOCK_CALLS:
                yield node.lineno


def test_one_clock(trees: dict[Path, ast.Module]) -> None:
    """Services read the time from mesh.clock, so that a test or a simulation can own it."""
    assert not [
        f"{_name(path)}:{line}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] in CLOCKED and path not in CLOCK_HOMES
        for line in _own_clock(trees[path])
    ]


def _undrawn(tree: ast.Module) -> set[str]:
    """Public definitions that `__all__` does not name."""
    public = {
        node.name
        for node in tree.body
        if isinstance(node, _Definition) and not node.name.startswith("_")
    }
    drawn = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    return public - set(drawn[0] if drawn else [])


def test_public_surface_is_drawn(trees: dict[Path, ast.Module]) -> None:
    """Every module with public definitions says in `__all__` which names are its surface."""
    undrawn = {_name(path): _undrawn(trees[path]) for path in SOURCES}
    assert not {name: missing for name, missing in undrawn.items() if missing}


def test_every_test_states_its_promise(trees: dict[Path, ast.Module]) -> None:
    """A test's docstring says what is promised."""
    assert not [
        f"{_name(path)}:{node.lineno} {node.name}"
        for path in TESTS
        for node in ast.walk(trees[path])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


def test_todo_names_its_issue() -> None:
    """A TODO without an issue number is a wish nobody keeps."""
    assert not [
        f"{_name(path)}:{number}"
        for path in EVERYTHING
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"#\s*(TODO|FIXME|XXX)\b", line) and not re.search(r"#\d+", line)
    ]


def test_changelog_keeps_its_form() -> None:
    """The changelog opens with what is unreleased and names each release by version and date."""
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert headings
    assert headings[0] == "Unreleased"
    for heading in headings[1:]:
        assert re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading), heading
