"""zstd over the payloads of one connection and direction (contract §5).

Each payload is what one flush of a stream gives: a receiver has all of it at once, and what came
before serves as its dictionary.
"""

from __future__ import annotations

from typing import IO, cast

import zstandard

from seedance.protocol.envelope import PAYLOAD_BYTES_MAX, corrupted

__all__ = ["WINDOW_LOG", "Compressor", "Decompressor"]

LEVEL = 3
# What of the past a payload may refer to: 4 KiB, a chat's last thousand tokens. 16 KiB would save less
# than a thousandth of a chat and double what a connection holds: 70 kB to compress, 113 kB to
# decompress.
WINDOW_LOG = 12
_TABLE_LOG = 11


class Compressor:
    """Compresses the payloads of one direction, in order."""

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            LEVEL,
            window_log=WINDOW_LOG,
            hash_log=_TABLE_LOG,
            chain_log=_TABLE_LOG,
            write_content_size=False,
        )
        self._context = zstandard.ZstdCompressor(compression_params=parameters)
        self._stream = self._context.compressobj()

    @property
    def memory_bytes(self) -> int:
        """What the context holds."""
        return self._context.memory_size()

    def compress(self, payload: bytes) -> bytes:
        """The payload, compressed."""
        return self._stream.compress(payload) + self._stream.flush(
            zstandard.COMPRESSOBJ_FLUSH_BLOCK
        )


class _Sink:
    """Takes at most `room` bytes."""

    def __init__(self) -> None:
        self.room = 0
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise corrupted("a payload holds at most 1 MiB, decompressed too")
        self.parts.append(bytes(data))
        return len(data)


class Decompressor:
    """The other side; a window larger than `WINDOW_LOG` is refused, so its memory is bounded."""

    def __init__(self) -> None:
        self._sink = _Sink()
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
        self._stream = decompressor.stream_writer(cast("IO[bytes]", self._sink))

    @property
    def memory_bytes(self) -> int:
        """What the context holds."""
        return self._stream.memory_size()

    def decompress(self, payload: bytes, room: int = PAYLOAD_BYTES_MAX) -> bytes:
        """The payload, decompressed: at most `room` bytes, and little more is ever held.

        Raises `ProtocolFault` (4400) for more, and for what is not zstd.
        """
        self._sink.room, self._sink.parts = room, []
        try:
            self._stream.write(payload)
        except zstandard.ZstdError:
            raise corrupted("a payload must be zstd") from None
        return b"".join(self._sink.parts)
