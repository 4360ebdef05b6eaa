"""The Python SDK: the mesh's streams in asyncio programs and in ordinary ones."""

from __future__ import annotations

from seedance.client.aio import AsyncSeedanceClient
from seedance.client.options import ChatOptions, Message
from seedance.client.stream import AsyncStream, Chunk, Completion
from seedance.client.sync import SeedanceClient, Stream

__all__ = [
    "AsyncSeedanceClient",
    "AsyncStream",
    "ChatOptions",
    "Chunk",
    "Completion",
    "Message",
    "SeedanceClient",
    "Stream",
]
