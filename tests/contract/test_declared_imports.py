"""What a service imports is what its extra installs: an image has nothing else."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.imports import reachable

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVICES = ("gateway", "router", "inference", "metering")


@cache
def _closure(text: str) -> frozenset[str]:
    """A requirement's distribution and all that it requires, as installed here."""
    wanted = Requirement(text)
    found = {canonicalize_name(wanted.name)}
    for line in metadata.requires(wanted.name) or ():
        inner = Requirement(line)
        extras = ("", *wanted.extras)
        if inner.marker and not any(inner.marker.evaluate({"extra": e}) for e in extras):
            continue
        inner.marker = None
        if canonicalize_name(inner.name) not in found:
            found |= _closure(str(inner))
    return frozenset(found)


def _installed_by(extra: str) -> set[str]:
    found: set[str] = set()
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            found |= {name for inner in requirement.extras for name in _installed_by(inner)}
        else:
            found |= _closure(line)
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_an_extra_installs_what_its_service_imports(service: str) -> None:
    """Each foreign module that a service reaches comes from a distribution that its extra brings."""
    installed = _installed_by(service)
    providers = metadata.packages_distributions()
    for module, path in reachable(service)[1].items():
        distributions = {canonicalize_name(name) for name in providers.get(module, [module])}
        assert distributions & installed, f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("service", ["gateway", "router", "metering"])
def test_only_inference_brings_torch(service: str) -> None:
    """The light services' extras install nothing of what runs a model."""
    assert not _installed_by(service) & {"torch", "numpy", "gguf", "tokenizers", "safetensors"}
