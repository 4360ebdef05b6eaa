"""The binary subprotocols, whole: frames to the bytes of messages and back (contract §5).

One object for each direction of a connection. Needs the extra `binary`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seedance.protocol.client_batch import client_payload, read_client_payload
from seedance.protocol.compression import Compressor, Decompressor
from seedance.protocol.envelope import PAYLOAD_BYTES_MAX, EnvelopeDecoder, seal
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import ClientFrame
from seedance.protocol.server_batch import Numbered, ServerBatchReader, ServerBatchWriter

__all__ = ["ClientDecoder", "ClientEncoder", "ServerDecoder", "ServerEncoder"]


class _Sealer:
    """Payload to envelope."""

    def __init__(self, *, compressed: bool) -> None:
        self._compressor = Compressor() if compressed else None

    def seal(self, payload: bytes) -> bytes:
        """The envelope of the connection's next payload. Raises as `envelope.seal` does."""
        sealed = seal(payload)
        return seal(self._compressor.compress(payload)) if self._compressor else sealed


class _Opener:
    """Bytes to payloads."""

    def __init__(self, *, compressed: bool) -> None:
        self._envelopes = EnvelopeDecoder()
        self._decompressor = Decompressor() if compressed else None

    def feed(self, data: bytes, *, message_bytes_max: int | None = None) -> Iterator[bytes]:
        """The payloads that are whole with `data`; all of them together at most so much, if given."""
        left = PAYLOAD_BYTES_MAX if message_bytes_max is None else message_bytes_max
        for sealed in self._envelopes.feed(data):
            if self._decompressor is None:
                yield sealed
                continue
            payload = self._decompressor.decompress(sealed, min(left, PAYLOAD_BYTES_MAX))
            if message_bytes_max is not None:
                left -= len(payload)
            yield payload


class ServerEncoder:
    """A gateway's way out."""

    def __init__(self, *, compressed: bool) -> None:
        self._batches = ServerBatchWriter()
        self._sealer = _Sealer(compressed=compressed)

    def encode(self, frames: Sequence[Numbered]) -> list[bytes]:
        """Envelopes that hold these frames, nearly always one."""
        return [self._sealer.seal(payload) for payload in self._batches.payloads(frames)]


class ServerDecoder:
    """A client's way in."""

    def __init__(self, *, compressed: bool) -> None:
        self._opener = _Opener(compressed=compressed)
        self._batches = ServerBatchReader()

    def feed(self, data: bytes) -> Iterator[Numbered]:
        """The frames that are whole with this message, and their numbers.

        Raises `ProtocolFault` for what no gateway of this contract sends.
        """
        for payload in self._opener.feed(data):
            yield from self._batches.read(payload)


class ClientEncoder:
    """A client's way out."""

    def __init__(self, *, compressed: bool) -> None:
        self._sealer = _Sealer(compressed=compressed)

    def encode(self, frames: Sequence[ClientFrame]) -> bytes:
        """The envelope that holds these frames.

        Raises `ProtocolFault` (1009) when they are over 1 MiB.
        """
        return self._sealer.seal(client_payload(frames))


class ClientDecoder:
    """A gateway's way in."""

    def __init__(self, *, compressed: bool) -> None:
        self._opener = _Opener(compressed=compressed)

    def feed(self, data: bytes) -> Iterator[Iterator[ClientFrame | SeedanceError]]:
        """For each envelope that is whole with this message its frames, or what is wrong with them.

        A message expands to no more than an uncompressed one may hold, so that a small one cannot
        keep a gateway busy. Raises `ProtocolFault` (4400) for bytes that cannot be read.
        """
        for payload in self._opener.feed(data, message_bytes_max=PAYLOAD_BYTES_MAX):
            yield read_client_payload(payload)
