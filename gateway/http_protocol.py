"""uvicorn's HTTP with bounds for whoever does not get to the point.

A connection that never finishes its request line and headers would be held for ever, and a header
that never ends would be kept in memory; neither is a request yet, so no limit further in sees it.
uvicorn's private names move: the pin in pyproject.toml and this file go together.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.addresses import AddressLimit

__all__ = ["HEAD_BYTES_MAX", "HEAD_WITHIN_S", "HttpProtocol", "http_protocol"]

# A request line and headers; a browser's have a few KiB.
HEAD_BYTES_MAX = 64 * 1024
HEAD_WITHIN_S = 10.0
# An answer that is not taken: from a full buffer to an almost empty one, as a stream of events (§6), and
# from the end of the connection to its last byte.
TAKEN_WITHIN_S = 45.0
CLOSED_WITHIN_S = 10.0
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\n\r\n"


class HttpProtocol(HttpToolsProtocol):
    """One HTTP connection; each request's head has a size and a time.

    `limit` counts the connections of an address that are no WebSocket (yet). Those of `proxies` are
    not counted: they bring other people's requests.
    """

    limit = AddressLimit(0)
    proxies: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._taking_timer: asyncio.TimerHandle | None = None
        self._counted: str | None = None
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Begin to wait for the first head."""
        super().connection_made(transport)
        if self._is_one_too_many():
            transport.write(_TOO_MANY)
            transport.close()
            return
        self._await_head()

    def _is_one_too_many(self) -> bool:
        address = self.client[0] if self.client else ""
        if not address or self._is_proxy(address):
            return False
        if not self.limit.admits(address):
            return True
        self.limit.enter(address)
        self._counted = address
        return False

    def _is_proxy(self, address: str) -> bool:
        return bool(self.proxies) and any(
            ipaddress.ip_address(address) in proxy for proxy in self.proxies
        )

    def _count_no_more(self) -> None:
        if self._counted is not None:
            self.limit.leave(self._counted)
            self._counted = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        self._cut_off_after(None)
        self._count_no_more()
        self._tell_gone()
        super().connection_lost(exc)

    def _tell_gone(self) -> None:
        # uvicorn tells the latest request alone, which may wait behind the one that is answered.
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()

    def pause_writing(self) -> None:
        """The buffer is full: who reads nothing is cut off in the end."""
        super().pause_writing()
        self._cut_off_after(TAKEN_WITHIN_S)

    def resume_writing(self) -> None:
        """The client reads on."""
        super().resume_writing()
        self._cut_off_after(None)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more was asked; what was answered has a moment to be read."""
        super().timeout_keep_alive_handler()
        self._cut_off_after(CLOSED_WITHIN_S)

    def _cut_off_after(self, seconds: float | None) -> None:
        if self._taking_timer is not None:
            self._taking_timer.cancel()
        self._taking_timer = None
        if seconds is not None:
            self._taking_timer = self.loop.call_later(seconds, self.transport.abort)

    def handle_websocket_upgrade(self) -> None:
        """From here on it is a WebSocket, and `gateway.connections` counts those."""
        self._cut_off_after(None)
        self._count_no_more()
        super().handle_websocket_upgrade()

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
        """The head is there; a request that came while another is answered waits behind it."""
        self._stop_waiting()
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def on_response_complete(self) -> None:
        """The next request that waits is answered."""
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def http_protocol(per_address: int, proxies: Sequence[str]) -> type[HttpProtocol]:
    """The protocol class of a server that lets an address hold so many connections."""
    networks = [ipaddress.ip_network(proxy) for proxy in proxies]
    return type(
        "LimitedHttpProtocol",
        (HttpProtocol,),
        {"limit": AddressLimit(per_address), "proxies": networks},
    )
