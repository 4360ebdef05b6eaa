"""When a stream's text has come to a place where a renderer may commit it (`flush`, §3)."""

from __future__ import annotations

from seedance.protocol.text import Piece

__all__ = ["FlushHints"]

# A semantic chunk has 16 to 64 tokens: the first sentence end from 16 on, 64 at the latest.
CHUNK_TOKENS_MIN = 16
CHUNK_TOKENS_MAX = 64
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "\n", ":", "；", ";")
PARAGRAPH = "\n\n"


class FlushHints:
    """Watches the pieces that are framed and says after which of them a hint is due."""

    def __init__(self) -> None:
        # The offset that is to be hinted at before the next piece.
        self.due: int | None = None
        self._tokens = 0
        self._tail = ""

    def after(self, piece: Piece) -> int | None:
        """The offset to hint at, or None."""
        self._tokens += piece.tokens
        if "\n" not in piece.text:
            self._tail = ""
            return self._chunk(piece) if self._tokens >= CHUNK_TOKENS_MIN else None
        seam = self._tail + piece.text
        self._tail = seam[-1]
        at = seam.rfind(PARAGRAPH)
        if at >= 0:
            rest = seam[at + len(PARAGRAPH) :]
            self._tokens = 0
            return piece.end - len(rest.encode())
        return self._chunk(piece)

    def _chunk(self, piece: Piece) -> int | None:
        if self._tokens < CHUNK_TOKENS_MIN:
            return None
        ended = piece.text.rstrip(" ").endswith(SENTENCE_ENDS)
        if ended or self._tokens >= CHUNK_TOKENS_MAX:
            self._tokens = 0
            return piece.end
        return None
