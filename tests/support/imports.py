"""What a service's code imports, by reading it: its own modules and the foreign ones."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

__all__ = ["OURS", "reachable"]

ROOT = Path(__file__).resolve().parents[2]
OURS = ("seedance", "mesh", "gateway", "inference", "router", "metering", "launcher")


def _files_of(module: str) -> list[Path]:
    """What importing a module of ours runs: its file and those of the packages around it."""
    parts = module.split(".")
    bases = [ROOT.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    files = [file for base in bases for file in (base / "__init__.py", base.with_suffix(".py"))]
    return [file for file in files if file.exists()]


@cache
def _imports(path: Path) -> frozenset[str]:
    """Every module that a file may import; `from a import b` names both `a` and `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def reachable(package: str) -> tuple[set[Path], dict[str, Path]]:
    """All files of ours that a package leads to, its own included, and the foreign modules.

    The latter by their top-level name, each with a file that imports it; not the standard library.
    """
    waiting = list((ROOT / package).rglob("*.py"))
    files: set[Path] = set()
    foreign: dict[str, Path] = {}
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        for module in _imports(path):
            top = module.split(".")[0]
            if top in OURS:
                waiting += _files_of(module)
            elif top not in sys.stdlib_module_names:
                foreign.setdefault(top, path)
    return files, foreign
