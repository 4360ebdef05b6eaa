"""What a service imports is what its extra installs: an image has nothing else."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"seedance", "mesh", "gateway", "inference", "router", "metering", "launcher"}
# What runs in a process of each extra, beside the package of its name.
BESIDE = {
    "gateway": ("seedance", "mesh", "router/policy"),
    "router": ("seedance", "mesh"),
    "metering": ("seedance", "mesh"),
    "inference": ("seedance", "mesh"),
}


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~;( ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


@cache
def _closure(distribution: str) -> frozenset[str]:
    """A distribution and everything that it requires without extras, as installed here."""
    found = {distribution}
    for requirement in metadata.requires(distribution) or ():
        name = _name(requirement)
        if "extra ==" not in requirement and name not in found:
            try:
                found |= _closure(name)
            except metadata.PackageNotFoundError:
                continue  # for another platform or Python
    return frozenset(found)


def _installed_by(extra: str) -> set[str]:
    found: set[str] = set()
    requirements = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    for requirement in requirements:
        if _name(requirement) == PROJECT["name"]:
            for inner in re.findall(r"[\w-]+", requirement.partition("[")[2]):
                found |= _installed_by(inner)
        else:
            found |= _closure(_name(requirement))
    return found


def _imports(folder: Path) -> dict[str, Path]:
    """Top-level names of foreign modules that a folder imports, each with a file that does."""
    found: dict[str, Path] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for name in names:
                found.setdefault(name.split(".")[0], path)
    return {k: v for k, v in found.items() if k not in OURS and k not in sys.stdlib_module_names}


@pytest.mark.parametrize("extra", BESIDE)
def test_an_extra_installs_what_its_service_imports(extra: str) -> None:
    """Each foreign module of a service's code comes from a distribution that its extra brings."""
    installed = _installed_by(extra)
    providers = metadata.packages_distributions()
    for folder in (extra, *BESIDE[extra]):
        for module, path in _imports(ROOT / folder).items():
            distributions = {_name(name) for name in providers.get(module, [module])}
            assert distributions & installed, f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("extra", ["gateway", "router", "metering"])
def test_only_inference_brings_torch(extra: str) -> None:
    """The light services' extras install nothing of what runs a model."""
    assert not _installed_by(extra) & {"torch", "numpy", "gguf", "tokenizers", "safetensors"}
