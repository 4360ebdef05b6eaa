"""What the client offers to speak, and how it then speaks (contract §1, §5)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Literal, Protocol

from seedance.protocol.errors import CloseCode, ProtocolFault
from seedance.protocol.frames import ClientFrame, ServerFrame
from seedance.protocol.json_codec import decode_server, encode_client

__all__ = ["SubprotocolChoice", "Talk", "offers", "talk"]

# JSON is the default: it needs nothing installed, anybody can read it in a browser's network view,
# it is the cheapest to decode in Python, and only a slow or metered line notices its size. `auto`
# takes `proto`, a sixth of JSON's bytes: unlike `proto.zstd` it holds no token back and no contexts.
SubprotocolChoice = Literal["auto", "json", "proto", "proto.zstd"]

_JSON, _PROTO, _ZSTD = "seedance.v2.json", "seedance.v2.proto", "seedance.v2.proto.zstd"
_PREFERRED = {"auto": (_PROTO,), "json": (), "proto": (_PROTO,), "proto.zstd": (_ZSTD,)}


def _binary_codec() -> ModuleType | None:
    """The codec, if its packages are installed: most programs that use the SDK go without."""
    try:
        return import_module("seedance.protocol.binary_codec")
    except ImportError:
        return None


def offers(choice: SubprotocolChoice) -> tuple[str, ...]:
    """The subprotocols to offer, JSON last: a gateway that does not know the others speaks it.

    Raises `ValueError` for an unknown choice, `ImportError` for one whose packages are missing;
    `auto` does without them.
    """
    if choice not in _PREFERRED:
        raise ValueError(f"subprotocol must be one of {', '.join(_PREFERRED)}")
    preferred = _PREFERRED[choice]
    if preferred and _binary_codec() is None:
        if choice != "auto":
            raise ImportError(f"subprotocol={choice!r} needs: pip install 'seedance[binary]'")
        preferred = ()
    return (*preferred, _JSON)


class Talk(Protocol):
    """One connection's subprotocol."""

    def encode(self, frame: ClientFrame) -> str | bytes:
        """The message that says a frame. Raises `ProtocolFault` (1009) when it would be too large."""
        ...

    def decode(self, message: str | bytes) -> Iterator[tuple[ServerFrame, int | None]]:
        """The frames that are whole with this message. Raises `ProtocolFault`."""
        ...


class _JsonTalk:
    def encode(self, frame: ClientFrame) -> str:
        return encode_client(frame)

    def decode(self, message: str | bytes) -> Iterator[tuple[ServerFrame, int | None]]:
        if isinstance(message, bytes):
            raise ProtocolFault(CloseCode.UNSUPPORTED_DATA, "JSON messages are text")
        yield decode_server(message)


class _BinaryTalk:
    def __init__(self, *, compressed: bool) -> None:
        codec = _binary_codec()
        assert codec is not None  # noqa: S101 - it was asked before it was offered
        self._encoder = codec.ClientEncoder(compressed=compressed)
        self._decoder = codec.ServerDecoder(compressed=compressed)

    def encode(self, frame: ClientFrame) -> bytes:
        return bytes(self._encoder.encode([frame]))

    def decode(self, message: str | bytes) -> Iterator[tuple[ServerFrame, int | None]]:
        if isinstance(message, str):
            raise ProtocolFault(CloseCode.UNSUPPORTED_DATA, "binary messages are not text")
        yield from self._decoder.feed(message)


def talk(chosen: str | None) -> Talk:
    """How to speak on a connection whose gateway has chosen (None: nothing, which means JSON)."""
    if chosen in {_PROTO, _ZSTD}:
        return _BinaryTalk(compressed=chosen == _ZSTD)
    return _JsonTalk()
