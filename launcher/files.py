"""Files that go together on the command line: all of them or none, and each one there."""

from __future__ import annotations

import os
from pathlib import Path

from mesh.rpc.identity import MeshIdentity, read_identity
from mesh.settings import exit_with

__all__ = ["files_of", "mesh_identity"]


def files_of(prefix: str, **files: Path | None) -> tuple[Path, ...]:
    """The files of `--PREFIX-…` in their order, absolute; empty when none was given.

    Ends the process with one line when one is missing.
    """
    given = [path for path in files.values() if path is not None]
    if given and len(given) < len(files):
        exit_with(" and ".join(f"--{prefix}-{name}" for name in files) + " go together")
    for path in given:
        if not path.is_file():
            exit_with(f"{path} is no file")
    return tuple(path.resolve() for path in given)


def mesh_identity(files: tuple[Path, ...]) -> MeshIdentity | None:
    """What the services show each other, as certificate, key and authority; None: the mesh is plain.

    Ends the process with one line when the files are no identity.
    """
    if not files:
        return None
    certificate, key, authority = map(str, files)
    try:
        return read_identity(certificate, key, authority, os.environ.get("SEEDANCE_MTLS_NAME", ""))
    except OSError as error:
        exit_with(f"--mtls-cert, --mtls-key and --mtls-ca are no identity: {error.strerror}")
