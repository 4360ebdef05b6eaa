"""A socket behind which TLS is spoken, whose unfinished handshakes are counted before they begin.

asyncio's own server with TLS begins a handshake with whoever connects, 80 KiB each, and tells nobody
until it is through. So connections are accepted here, and only who may is spoken to.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from gateway.addresses import AddressLimit, Networks, is_within

__all__ = ["HANDSHAKES_MAX", "HANDSHAKES_PER_ADDRESS_MAX", "TlsListener"]

# Handshakes that have not finished: of all, and of one address. Who finishes takes a round trip or two,
# so a crowd behind one address still comes in by the thousand in a second.
HANDSHAKES_MAX = 2048
HANDSHAKES_PER_ADDRESS_MAX = 128
# A peer that does not answer the end of TLS is not waited for.
SHUTDOWN_S = 2.0
# How long nobody is let in when the process or the system has no more to give.
EXHAUSTED_S = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class TlsListener:
    """Lets in whom `make` makes a protocol for, once he speaks TLS, within `within_s`.

    Who is over a bound is cut off at once: without TLS there is no way to tell him more. Those of
    `proxies` bring other people's connections, and count in the sum alone.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        within_s: float,
        proxies: Networks = (),
    ) -> None:
        self._context = context
        self._make = make
        self._within_s = within_s
        self._proxies = proxies
        self._addresses = AddressLimit(HANDSHAKES_PER_ADDRESS_MAX)
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None

    def __len__(self) -> int:
        """Handshakes that have not finished."""
        return len(self._handshakes)

    def listen(self, sock: socket.socket, backlog: int) -> None:
        """Begin to accept on the socket, which is this object's from now on."""
        sock.setblocking(False)
        sock.listen(backlog)
        self._listening = sock
        self._accept_more(sock, backlog)

    def _accept_more(self, sock: socket.socket, at_once: int) -> None:
        if self._listening is sock:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock, at_once)

    def _accept(self, sock: socket.socket, at_once: int) -> None:
        for _ in range(at_once):
            try:
                connection, peer = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.error("no connection can be accepted: %s", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(sock)
                loop.call_later(EXHAUSTED_S, self._accept_more, sock, at_once)
                return
            self._let_in(connection, str(peer[0]))

    def _let_in(self, connection: socket.socket, address: str) -> None:
        counted = not is_within(address, self._proxies)
        full = len(self._handshakes) >= HANDSHAKES_MAX
        if full or (counted and not self._addresses.admits(address)):
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._shake_hands(connection))
        self._handshakes.add(task)
        if counted:
            self._addresses.enter(address)
            task.add_done_callback(lambda _: self._addresses.leave(address))
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._within_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:
            # What is no TLS, a time-out, and a peer that left are some; all of them are closed by now.
            return

    def close(self) -> None:
        """Accept nobody any more, and give up the handshakes that have not finished."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """Wait for those that were given up."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)
