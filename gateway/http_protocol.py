"""uvicorn's HTTP with bounds for whoever does not get to the point.

A connection that never finishes its request line and headers would be held for ever, and a header
that never ends would be kept in memory; neither is a request yet, so no limit further in sees it.
uvicorn's private names move: the pin in pyproject.toml and this file go together.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HEAD_BYTES_MAX", "HEAD_WITHIN_S", "HttpProtocol"]

# A request line and headers; a browser's have a few KiB.
HEAD_BYTES_MAX = 64 * 1024
HEAD_WITHIN_S = 10.0
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"


class HttpProtocol(HttpToolsProtocol):
    """One HTTP connection; each request's head has a size and a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; what is still a head by then must not be too long."""
        super().data_received(data)
        if self._head_timer is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.write(_TOO_LARGE)
            self._stop_waiting()
            self.transport.close()

    def on_message_begin(self) -> None:
        """A further request on this connection has a head of its own."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._stop_waiting()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
