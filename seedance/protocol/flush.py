"""When a stream's text has come to a place where a renderer may commit it (`flush`, §3)."""

from __future__ import annotations

from seedance.protocol.frames import Token

__all__ = ["FlushHints"]

# A semantic chunk has 16 to 64 tokens: the first sentence end from 16 on, 64 at the latest.
CHUNK_TOKENS_MIN = 16
CHUNK_TOKENS_MAX = 64
SENTENCE_ENDS = frozenset(".!?…。！？\n:；;")
PARAGRAPH = "\n\n"


class FlushHints:
    """Watches the tokens that are framed and says after which of them a hint is due."""

    __slots__ = (
        "_tail",
        "_tokens",
        "due",
    )

    def __init__(self) -> None:
        # The offset that is to be hinted at before the next token.
        self.due: int | None = None
        self._tokens = 0
        self._tail = ""

    def after(self, token: Token) -> int | None:
        """The offset to hint at, or None."""
        self._tokens += token.tokens
        if "\n" not in token.delta:
            self._tail = ""
            return self._chunk(token) if self._tokens >= CHUNK_TOKENS_MIN else None
        seam = self._tail + token.delta
        self._tail = seam[-1]
        at = seam.rfind(PARAGRAPH)
        if at >= 0:
            rest = seam[at + len(PARAGRAPH) :]
            self._tokens = 0
            return _end(token) - len(rest.encode())
        return self._chunk(token) if self._tokens >= CHUNK_TOKENS_MIN else None

    def _chunk(self, token: Token) -> int | None:
        last = token.delta[-1:]
        if last == " ":
            last = token.delta.rstrip(" ")[-1:]
        if last in SENTENCE_ENDS or self._tokens >= CHUNK_TOKENS_MAX:
            self._tokens = 0
            return _end(token)
        return None


def _end(token: Token) -> int:
    return token.offset + len(token.delta.encode())
