"""Documents point at what exists: files, headings and, as `path.py#Class.method`, code."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split()]


def _slug(heading: str) -> str:
    """The anchor that a heading gets: lower case, no punctuation, dashes for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@cache
def _symbols(path: Path) -> frozenset[str]:
    """Every definition of a module as `name` or `Class.name`, module constants included."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
            elif isinstance(node, ast.ClassDef):
                found.add(prefix + node.name)
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + t.id for t in targets if isinstance(t, ast.Name))

    visit(ast.parse(path.read_text()).body, "")
    return frozenset(found)


def _fault(document: Path, link: str) -> str | None:
    """What is wrong with a link; None: nothing."""
    target, _, fragment = link.partition("#")
    path = (document.parent / target).resolve() if target else document
    if not path.exists():
        return "no such file"
    if fragment and path.suffix == ".md":
        headings = {_slug(h) for h in _HEADING.findall(_FENCE.sub("", path.read_text()))}
        return None if fragment in headings else "no such heading"
    if fragment and path.suffix == ".py":
        return None if fragment in _symbols(path) else "no such definition"
    return None


@pytest.mark.parametrize("document", _documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Every link of a document inside the repository names a file, heading or definition of it."""
    links = _LINK.findall(_FENCE.sub("", document.read_text()))
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    faults = {link: fault for link in local if (fault := _fault(document, link))}
    assert not faults
