"""One connection of a run, whichever way it speaks: dialled, asked, lost and dialled again."""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass

from launcher.loadtest.load import Load, Target
from launcher.loadtest.tally import Answer

__all__ = ["LOST", "Caller", "DialError", "Who", "connect_socket"]

# Why an answer ended that its connection did not bring to its end.
LOST = "connection_lost"
# A slow reader's own kernel is not to hide it.
SLOW_RECEIVE_BUFFER_BYTES = 4096


class DialError(ConnectionError):
    """The server refused the connection; `code` is what it said."""

    def __init__(self, code: str, *, final: bool = False) -> None:
        super().__init__(code)
        self.code = code
        # Whether it will say so again, as of a wrong key.
        self.final = final


@dataclass(frozen=True, slots=True)
class Who:
    """Whose a connection is. `user` is what the router's rule goes by (§5 of the design)."""

    user: str
    key: str = ""
    slow: bool = False


class Caller(ABC):
    """`streams` requests at once at most; whoever runs it dials it whenever `lost` is set."""

    def __init__(self, target: Target, load: Load, who: Who) -> None:
        self.target = target
        self.load = load
        self.who = who
        self.is_open = False
        self.lost = asyncio.Event()
        # Requests that it could carry but that wait until it is open again.
        self.parked = 0

    @abstractmethod
    async def dial(self) -> None:
        """Connect, and resume what can be resumed. Raises `OSError`, of which `DialError` has a code."""

    @abstractmethod
    def ask(self, answer: Answer) -> None:
        """Send a request; what comes of it is told to `answer`."""

    @abstractmethod
    def cut(self) -> None:
        """End the connection at once, as a broken network does."""

    @abstractmethod
    def give_up(self, code: str) -> None:
        """End all answers with this code; the connection comes back no more."""

    @abstractmethod
    async def close(self) -> None:
        """Part in good order."""


async def connect_socket(protocol: asyncio.Protocol, target: Target, who: Who) -> None:
    """Connect a protocol to its target, with the small buffers of a slow reader if it is one."""
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if target.tls else None
    name = target.host if target.tls else None
    host = target.address or target.host
    if not who.slow:
        await loop.create_connection(
            lambda: protocol, host, target.port, ssl=context, server_hostname=name
        )
        return
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_RECEIVE_BUFFER_BYTES)
    sock.setblocking(False)
    try:
        await loop.sock_connect(sock, (host, target.port))
    except OSError:
        sock.close()
        raise
    await loop.create_connection(lambda: protocol, sock=sock, ssl=context, server_hostname=name)
