"""What the processes of a local mesh are told by environment: secrets, and each only what it knows.

A service refuses a `SEEDANCE_…` variable that it does not know, so that a typing error is found. A
mesh started from one shell has one environment for all services: it is checked against all of
them here, and each is handed its part.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.config import GatewaySettings
from inference.config import InferenceSettings
from launcher.blueprint import DRAIN_GRACE_S, LOCAL_TENANT, MTLS_FLAGS, TLS_FLAGS, ProcessSpec
from mesh.settings import ENV_PREFIX, FOREIGN_VARIABLES, ServiceSettings
from metering.config import MeteringSettings
from router.config import RouterSettings

__all__ = [
    "SETTINGS",
    "keep_mesh_secret",
    "mesh_environment",
    "mesh_secret",
    "overruled",
    "part_of",
    "unknown_to_all",
]

SECRET_FILE = "mesh.secret"  # noqa: S105 - the name of the file
_SECRET = f"{ENV_PREFIX}MESH_SECRET"
# What a mesh on one machine begins with, unless the shell says otherwise.
_LOCAL = {
    f"{ENV_PREFIX}DRAIN_GRACE_S": str(DRAIN_GRACE_S),
    f"{ENV_PREFIX}ANONYMOUS_TENANT": LOCAL_TENANT,
}

SETTINGS: Mapping[str, type[ServiceSettings]] = {
    "router": RouterSettings,
    "metering": MeteringSettings,
    "inference": InferenceSettings,
    "gateway": GatewaySettings,
}


def _variables(kind: str) -> set[str]:
    settings = SETTINGS.get(kind)
    return {ENV_PREFIX + name.upper() for name in settings.model_fields} if settings else set()


def mesh_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The shell's environment and what a local mesh adds to it.

    The mesh's secret is made anew at every start.
    """
    return {_SECRET: secrets.token_urlsafe(32), **_LOCAL, **environ}


def keep_mesh_secret(environ: Mapping[str, str], data: Path) -> None:
    """Lay the secret beside `mesh.json`, for the commands of who owns the mesh and nobody else."""
    target = data / SECRET_FILE
    target.unlink(missing_ok=True)  # its mode would be kept
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(environ[_SECRET])


def mesh_secret(environ: Mapping[str, str], data: Path) -> str:
    """The secret of the shell, else of the mesh that runs on `data`; empty: there is none."""
    if _SECRET in environ:
        return environ[_SECRET]
    try:
        return (data / SECRET_FILE).read_text()
    except OSError:
        return ""


def unknown_to_all(environ: Mapping[str, str]) -> list[str]:
    """`SEEDANCE_…` variables that no service knows, sorted."""
    known = set(FOREIGN_VARIABLES).union(*(_variables(kind) for kind in SETTINGS))
    return sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known)


def overruled(environ: Mapping[str, str], specs: Iterable[ProcessSpec]) -> list[str]:
    """`SEEDANCE_…` variables that no process would hear, since each is told by a flag; sorted.

    The certificates' are none: `seedance up` hands on what they say.
    """
    flags = {part for spec in specs for part in spec.argv if part.startswith("--")}
    told = flags.difference(TLS_FLAGS, MTLS_FLAGS)
    names = {ENV_PREFIX + flag.removeprefix("--").replace("-", "_").upper() for flag in told}
    return sorted(names.intersection(environ))


def part_of(kind: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for one kind of process: without the variables of the other services."""
    known = _variables(kind) | FOREIGN_VARIABLES
    return {k: v for k, v in environ.items() if not k.startswith(ENV_PREFIX) or k in known}
