"""A client that keeps up with a gateway at full speed: it looks for what it needs, and parses no frame.

Of everything that comes in one piece the last token frame says how much text there was, and the last
`seq` what may be acknowledged; a token's text (`launcher.bench.fake_instance`) says when it was made.
"""

from __future__ import annotations

import asyncio

from launcher.bench.fake_instance import TEXT_BYTES, made_ago_s
from launcher.bench.reader import ACK_AFTER_S, ACK_EVERY, Reader, number_in

__all__ = ["LightReader"]

_SEQ, _DELTA, _TOKEN = b'"seq":', b'"delta":"', b'{"type":"token"'
_PING, _GREETING = b'{"type":"ping"', b'{"type":"session"'
_ENDS = (b'{"type":"done"', b'{"type":"error"')


class LightReader(Reader):
    """`greeted`: `session` came. `late_s`: given a list, each frame's lateness is put there."""

    receive_buffer_bytes = 0

    def __init__(self, host: str, *, windowed: bool, name: str) -> None:
        super().__init__(host, windowed=windowed, name=name)
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.late_s: list[float] | None = None
        self.seq = 0
        self._acknowledged = 0

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        if not self.greeted.done():
            self.greeted.set_exception(error)
            self.greeted.exception()  # heard: nobody has to ask

    def _read(self) -> None:
        # A frame is a header and JSON, and the text of these streams has no braces: what follows the
        # last one is a frame that is not whole yet.
        whole = self._data.rfind(b"}") + 1
        if not whole:
            return
        data = bytes(self._data[:whole])
        del self._data[:whole]
        if not self.greeted.done() and _GREETING in data:
            self.greeted.set_result(None)
        at = data.find(_PING)
        if at >= 0:
            self.write({"type": "pong", "t": number_in(data[at:], b'"t":')})
        at = data.rfind(_SEQ)
        if at >= 0:
            self._sequenced_until(data, at)

    def _sequenced_until(self, data: bytes, at: int) -> None:
        self.seq = number_in(data[at:], _SEQ)
        token = data.rfind(_TOKEN)
        if token >= 0:
            self._last_token = data[token:]
            if self.late_s is not None:
                self._watch(data, self.late_s)
        if any(end in data for end in _ENDS) and not self.ended.done():
            self.ended.set_result(None)
        if not self._windowed:
            return
        if self.seq - self._acknowledged >= ACK_EVERY:
            self.acknowledge()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_AFTER_S, self.acknowledge)

    @staticmethod
    def _watch(data: bytes, late_s: list[float]) -> None:
        at = data.find(_DELTA)
        while at >= 0:
            text = at + len(_DELTA)
            late_s.append(made_ago_s(data[text : text + TEXT_BYTES]))
            at = data.find(_DELTA, text)

    def acknowledge(self) -> None:
        """Say that everything that came is processed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.seq > self._acknowledged:
            self._acknowledged = self.seq
            self.acknowledge_until(self.seq)
