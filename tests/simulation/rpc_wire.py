"""What both ends of the simulated gRPC agree on: envelopes, and one call's messages in one direction.

One connection per channel carries all its calls. A message is an envelope with the call's number.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque

import grpc

__all__ = [
    "BEGIN",
    "CALL",
    "CANCEL",
    "HALF_CLOSE",
    "MESSAGE",
    "PING",
    "PONG",
    "STATUS",
    "Inbox",
]

BEGIN, MESSAGE, HALF_CLOSE, CANCEL, STATUS, PING, PONG = range(1, 8)
CALL = struct.Struct(">I")


class Inbox:
    """Messages of one call in one direction, and how they end (None: not yet)."""

    def __init__(self) -> None:
        self.end: grpc.StatusCode | None = None
        self.details = ""
        self._messages: deque[bytes] = deque()
        self._news = asyncio.Event()

    def put(self, message: bytes) -> None:
        self._messages.append(message)
        self._news.set()

    def finish(self, code: grpc.StatusCode, details: str = "") -> None:
        if self.end is None:
            self.end, self.details = code, details
            self._news.set()

    async def get(self) -> bytes | None:
        """The next message; None: the end."""
        while not self._messages:
            if self.end is not None:
                return None
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()
