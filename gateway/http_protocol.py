"""uvicorn's HTTP with bounds for whoever does not get to the point.

A connection that never finishes its request line and headers would be held for ever, and a header
that never ends would be kept in memory; neither is a request yet, so no limit further in sees it.
uvicorn's private names move: the pin in pyproject.toml and this file go together.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.addresses import AddressLimit, Networks, is_within

__all__ = ["HEAD_BYTES_MAX", "HEAD_WITHIN_S", "HttpProtocol", "http_protocol"]

# A request line and headers; a browser's have a few KiB.
HEAD_BYTES_MAX = 64 * 1024
HEAD_WITHIN_S = 10.0
# What stands around a body: chunk sizes, their extensions, trailers. A body in chunks of one byte has
# five such bytes for each.
FRAMING_BYTES_MAX = 1024 * 1024
# What is left of a request that was answered before it had arrived.
REST_WITHIN_S = 10.0
# An answer that is not taken: from a full buffer to an almost empty one, as a stream of events (§6), and
# from the end of the connection to its last byte.
TAKEN_WITHIN_S = 45.0
CLOSED_WITHIN_S = 10.0
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"
# RFC 3986 §3.2: what may stand in a host and its port.
_HOST = re.compile(rb"[\w.~!$&'()*+,;=%:\[\]-]*", re.ASCII)


class _HeadRefusedError(Exception):
    """Stops the parser: nothing of this request is dealt with."""


class HttpProtocol(HttpToolsProtocol):
    """One HTTP connection; each request's head has a size and a time.

    `limit` counts the connections of an address that are no WebSocket (yet). Those of `proxies` are
    not counted: they bring other people's requests.
    """

    limit = AddressLimit(0)
    proxies: Networks = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Of this request, without its body; of a later one on the connection, from its second piece on.
        self._framing_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._refusal = _BAD_REQUEST
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
        if not address or is_within(address, self.proxies):
            return False
        if not self.limit.admits(address):
            return True
        self.limit.enter(address)
        self._counted = address
        return False

    def _count_no_more(self) -> None:
        if self._counted is not None:
            self.limit.leave(self._counted)
            self._counted = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        self._cut_off_after(None)
        self._has_arrived()
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
        """Parse; what is no body must not be too long."""
        self._framing_bytes += len(data)
        super().data_received(data)
        in_head = self._head_timer is not None
        if self._framing_bytes > (HEAD_BYTES_MAX if in_head else FRAMING_BYTES_MAX):
            self._refusal = _TOO_LARGE
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - as uvicorn's
        """Refuse what is no request; in the middle of an answer there is no place to say so."""
        answering = self._answering
        if answering is None or not answering.response_started or answering.response_complete:
            self.transport.write(self._refusal)
        self._stop_waiting()
        self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are no headers (RFC 9110 §6.5.1), and nobody reads them; space around a value is none of it (§5.5)."""
        if self._head_timer is not None:
            super().on_header(name, value.strip(b" \t"))

    def on_message_begin(self) -> None:
        """A further request on this connection has a head of its own."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head is there; a request that came while another is answered waits behind it."""
        self._stop_waiting()
        self._check_head()
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def _check_head(self) -> None:
        """Raises `_HeadRefusedError` for what is too long, or has not the one `Host` (RFC 9112 §3.2)."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEAD_BYTES_MAX:
            self._refusal = _TOO_LARGE
            raise _HeadRefusedError
        hosts = [value for name, value in self.headers if name == b"host"]
        optional = not hosts and self.parser.get_http_version() == "1.0"
        if not optional and (len(hosts) != 1 or not _HOST.fullmatch(hosts[0])):
            raise _HeadRefusedError

    def on_body(self, body: bytes) -> None:
        """How long a body may be is its reader's to say."""
        self._framing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """What follows belongs to the next request."""
        self._framing_bytes = 0
        self._has_arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The next request that waits is answered."""
        answered = self._answering
        if answered is not None and answered.more_body:
            self._rest_timer = self.loop.call_later(REST_WITHIN_S, self.transport.abort)
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()

    def _has_arrived(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _await_head(self) -> None:
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
