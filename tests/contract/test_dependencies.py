"""docs/adr/0002 and pyproject.toml name the same dependencies."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ADR = ROOT / "docs" / "adr" / "0002-dependencies.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME_EXTRAS = (
    "binary",
    "receipts",
    "mesh",
    "gateway",
    "inference",
    "router",
    "metering",
    "postgres",
    "launcher",
)


def _names(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0] for requirement in requirements}
    return names - {PROJECT["name"]}


def test_every_runtime_dependency_has_its_row() -> None:
    """Each dependency of a service, the SDK or the launcher is accounted for, and no row is stale."""
    wanted = _names(PROJECT["dependencies"])
    for extra in RUNTIME_EXTRAS:
        wanted |= _names(PROJECT["optional-dependencies"][extra])
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", ADR.read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(wanted)


def test_every_development_dependency_is_named() -> None:
    """The page names what only development installs."""
    text = ADR.read_text()
    for name in _names(PROJECT["optional-dependencies"]["dev"]):
        assert f"`{name}`" in text or (name.startswith("types-") and "`types-*`" in text), name


def test_every_row_answers_all_three_questions() -> None:
    """What it saves, who keeps it, what it costs: no cell is empty."""
    for row in re.findall(r"^\| `[a-z0-9-]+` \|.*$", ADR.read_text(), flags=re.MULTILINE):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert all(cells), row


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test_every_range_admits_its_pin() -> None:
    """What users may install includes what we test with, and everything we test with is pinned."""
    pins = {
        _normal(name): version
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
        for name, _, version in [line.partition("==")]
    }
    extras = PROJECT["optional-dependencies"].values()
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]:
        wanted = Requirement(line)
        if wanted.name == PROJECT["name"]:
            continue
        assert _normal(wanted.name) in pins, f"{line} has no pin"
        assert wanted.specifier.contains(pins[_normal(wanted.name)]), f"{line} excludes its pin"
