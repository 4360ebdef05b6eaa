"""One WebSocket of a client, from dialling to its last close frame."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from seedance.client.subprotocols import Talk, talk
from seedance.protocol.client_events import Event, Lost, Opened, Received
from seedance.protocol.errors import CloseCode, ProtocolFault
from seedance.protocol.frames import ClientFrame

__all__ = ["Link"]

# The largest message is an answer in one piece with log-probabilities: 8 MiB at most in the binary
# form (§5), twice that in JSON.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
OPEN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
HANG_UP_TIMEOUT_S = 2.0

_LOST = 1006
# What a refused handshake means, said as a close code (contract §1); anything else is a wrong URL.
_CODE_OF_STATUS = {401: CloseCode.UNAUTHORIZED, 403: CloseCode.FORBIDDEN, 429: 4429}


class Link:
    """Dials `url` and reports what happens to `tell`, until it was hung up or lost.

    `tls` is for `wss://`; None: what the system trusts.
    Frames leave in the order of `send`. The outbox holds no more than the machine has to say:
    acknowledgements, and as many generations as it may hold.
    """

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        tell: Callable[[Event], None],
        offers: Sequence[str],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = url
        self._offers = [Subprotocol(item) for item in offers]
        self._headers = headers
        self._tell = tell
        self._tls = (tls or True) if url.startswith("wss:") else None
        self._outbox: asyncio.Queue[ClientFrame | int] = asyncio.Queue()
        self._hung_up = False
        self._open = False
        self.task = asyncio.create_task(self._run(), name=f"seedance link {url}")

    def send(self, frame: ClientFrame) -> None:
        """Send a frame when those before it are sent."""
        self._outbox.put_nowait(frame)

    def hang_up(self, close_code: int) -> None:
        """Close after what was sent; nothing is reported any more."""
        self._hung_up = True
        if self._open:
            self._outbox.put_nowait(close_code)
            # A peer that reads nothing any more is not waited for.
            asyncio.get_running_loop().call_later(HANG_UP_TIMEOUT_S, self.task.cancel)
        else:
            self.task.cancel()

    async def _run(self) -> None:
        code: int = CloseCode.PROTOCOL_ERROR
        try:
            async with connect(
                self._url,
                ssl=self._tls,
                subprotocols=self._offers,
                additional_headers=self._headers,
                compression=None,  # the frames are small, and deflate costs 100 kB a connection
                max_size=MESSAGE_BYTES_MAX,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=None,  # the session asks by itself, in frames (§2)
            ) as socket:
                self._open = True
                code = await self._talk(socket)
        except InvalidStatus as refusal:
            status = refusal.response.status_code
            unknown = CloseCode.TRY_AGAIN_LATER if status >= 500 else CloseCode.PROTOCOL_ERROR  # noqa: PLR2004
            code = _CODE_OF_STATUS.get(status, unknown)
        except (OSError, TimeoutError, InvalidHandshake, EOFError):
            code = _LOST
        finally:
            self._report(Lost(code))

    async def _talk(self, socket: ClientConnection) -> int:
        spoken = talk(socket.subprotocol)
        writer = asyncio.create_task(self._write(socket, spoken))
        self._report(Opened())
        try:
            while True:
                for frame, seq in spoken.decode(await socket.recv()):
                    self._report(Received(frame, seq))
        except ConnectionClosed as closed:
            if (
                closed.rcvd is None
                and closed.sent
                and closed.sent.code == CloseCode.MESSAGE_TOO_BIG
            ):
                # A message that is too big for us: a resume would only bring it again.
                return CloseCode.PROTOCOL_ERROR
            return closed.rcvd.code if closed.rcvd else _LOST
        except ProtocolFault as fault:
            await socket.close(CloseCode.UNSUPPORTED_DATA, fault.message)
            return CloseCode.PROTOCOL_ERROR
        finally:
            writer.cancel()
            await asyncio.wait([writer])

    async def _write(self, socket: ClientConnection, spoken: Talk) -> None:
        try:
            while True:
                frame = await self._outbox.get()
                if isinstance(frame, int):
                    await socket.close(frame)
                    return
                await socket.send(spoken.encode(frame))
        except ProtocolFault as fault:
            await socket.close(fault.close_code, fault.message)
        except ConnectionClosed:
            return  # the reader reports it

    def _report(self, event: Event) -> None:
        if not self._hung_up:
            self._tell(event)
