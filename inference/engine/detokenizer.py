"""Token bytes to text, never cutting a code point."""

from __future__ import annotations

import codecs

__all__ = ["Detokenizer"]


class Detokenizer:
    """Incremental UTF-8: what is whole leaves at once, an unfinished tail is held.

    Bytes that can belong to no code point become U+FFFD at once, and so does a tail that is still
    unfinished at the end: together exactly `bytes.decode("utf-8", "replace")` of all the bytes,
    however they were cut. Linear in the bytes.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """The text that `data` completes."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The end: the held tail, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
