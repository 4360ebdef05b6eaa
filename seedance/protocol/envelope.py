"""Envelopes in a byte stream: `CA FE BA BE`, length, payload (contract §5)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from seedance.protocol.errors import CloseCode, ProtocolFault

__all__ = ["MAGIC", "PAYLOAD_BYTES_MAX", "EnvelopeDecoder", "corrupted", "seal"]

MAGIC = bytes.fromhex("cafebabe")
PAYLOAD_BYTES_MAX = 1024 * 1024
_LENGTH = struct.Struct(">I")
_HEADER_BYTES = len(MAGIC) + _LENGTH.size


def corrupted(what: str) -> ProtocolFault:
    """The fault of bytes that cannot be what the peer meant: close 4400."""
    return ProtocolFault(CloseCode.PROTOCOL_ERROR, what)


def seal(payload: bytes) -> bytes:
    """The envelope around a payload. Raises `ProtocolFault` (1009) when that is over 1 MiB."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ProtocolFault(CloseCode.MESSAGE_TOO_BIG, "a payload holds at most 1 MiB")
    return MAGIC + _LENGTH.pack(len(payload)) + payload


class EnvelopeDecoder:
    """Payloads out of a byte stream, however it is cut into messages.

    What is kept between calls is less than one envelope: 1 MiB and its header.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that are whole with `data`; to be exhausted before the next call.

        Raises `ProtocolFault` (4400) at the first byte that cannot belong to an envelope, after the
        payloads before it.
        """
        pending = self._pending
        pending += data
        at = 0
        try:
            while (length := _length(pending, at)) is not None:
                begin = at + _HEADER_BYTES
                if len(pending) < begin + length:
                    break
                at = begin + length
                yield bytes(pending[begin:at])
        finally:
            del pending[:at]


def _length(pending: bytearray, at: int) -> int | None:
    """The length that the header at `at` says; None: it is not all there yet."""
    magic = pending[at : at + len(MAGIC)]
    if not MAGIC.startswith(magic):
        raise corrupted("an envelope begins with CA FE BA BE")
    if len(pending) < at + _HEADER_BYTES:
        return None
    length: int = _LENGTH.unpack_from(pending, at + len(MAGIC))[0]
    if length > PAYLOAD_BYTES_MAX:
        raise corrupted("an envelope holds at most 1 MiB")
    return length
