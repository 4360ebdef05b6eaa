"""Style that a linter has no rule for: sizes, banned names, one clock, drawn surfaces."""

from __future__ import annotations

import ast
import re
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


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("path", EVERYTHING, ids=_name)
def test_sizes(path: Path) -> None:
    """No function is over 60 lines, no file over 400, no class over 250 lines or 15 attributes."""
    source = path.read_text()
    tree = ast.parse(source)
    assert source.count("\n") <= FILE_LINES_MAX, f"{_name(path)}: {source.count(chr(10))} lines"
    for function in _functions(tree):
        assert _length(function) <= FUNCTION_LINES_MAX, f"{_name(path)}:{function.lineno}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert _length(node) <= CLASS_LINES_MAX, f"{_name(path)}:{node.lineno} {node.name}"


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


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_classes_hold_little(path: Path) -> None:
    """No class assigns more than 15 attributes of its own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            found = _attributes(node)
            assert len(found) <= CLASS_ATTRIBUTES_MAX, f"{_name(path)}: {node.name} {sorted(found)}"


@pytest.mark.parametrize("path", EVERYTHING, ids=_name)
def test_no_grab_bags(path: Path) -> None:
    """A module is named for what it does, never utils, helpers, common or misc."""
    assert not BANNED_NAMES & {path.stem, *path.relative_to(ROOT).parts}


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.relative_to(ROOT).parts[0] in CLOCKED], ids=_name
)
def test_one_clock(path: Path) -> None:
    """Services read the time from mesh.clock, so that a test or a simulation can own it."""
    if path in CLOCK_HOMES:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = node.func.value
            owner = value.id if isinstance(value, ast.Name) else ""
            assert (owner, node.func.attr) not in CLOCK_CALLS, f"{_name(path)}:{node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_public_surface_is_drawn(path: Path) -> None:
    """Every module with public definitions says in `__all__` which names are its surface."""
    tree = ast.parse(path.read_text())
    public = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }
    if not public:
        return
    drawn = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    assert drawn, f"{_name(path)} has no __all__"
    names = set(ast.literal_eval(drawn[0]))
    assert public <= names, f"{_name(path)}: not in __all__: {sorted(public - names)}"


@pytest.mark.parametrize("path", TESTS, ids=_name)
def test_every_test_states_its_promise(path: Path) -> None:
    """A test's docstring says what is promised."""
    for function in _functions(ast.parse(path.read_text())):
        if function.name.startswith("test_"):
            assert ast.get_docstring(function), f"{_name(path)}:{function.lineno} {function.name}"


@pytest.mark.parametrize("path", EVERYTHING, ids=_name)
def test_todo_names_its_issue(path: Path) -> None:
    """A TODO without an issue number is a wish nobody keeps."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.search(r"#\s*(TODO|FIXME|XXX)\b", line):
            assert re.search(r"#\d+", line), f"{_name(path)}:{number}"


def test_changelog_keeps_its_form() -> None:
    """The changelog opens with what is unreleased and names each release by version and date."""
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert headings
    assert headings[0] == "Unreleased"
    for heading in headings[1:]:
        assert re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading), heading
