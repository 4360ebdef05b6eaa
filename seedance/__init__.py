"""What a client of the mesh imports: the SDK, and the contract both ends speak."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seedance.client import AsyncSeedanceClient, Chunk, Completion, SeedanceClient
    from seedance.protocol.errors import ErrorCode, SeedanceError

__all__ = [
    "AsyncSeedanceClient",
    "Chunk",
    "Completion",
    "ErrorCode",
    "SeedanceClient",
    "SeedanceError",
    "__version__",
]

__version__ = "0.1.0"

_HOME = {
    "AsyncSeedanceClient": "seedance.client",
    "Chunk": "seedance.client",
    "Completion": "seedance.client",
    "ErrorCode": "seedance.protocol.errors",
    "SeedanceClient": "seedance.client",
    "SeedanceError": "seedance.protocol.errors",
}


def __getattr__(name: str) -> Any:
    # Looked up when asked for (PEP 562): a service that imports the protocol loads no client.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
