"""A stream's text between the instance that makes it and the frames that carry it.

    tokens   0 ───────── whole ── framed ─────────── received
    bytes    0 ───────────── framed ──── pending ─── received

`whole` tokens lie entirely in frames, `framed` ones wholly or partly. Usage counts by token index
(§4.9): a token that has no text of its own yet (half a code point, a stop string's beginning) counts
with the frame that carries the next text, and a tail whose text never reaches a frame is free. So a
recovery, which hears tokens again, can count nothing twice.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Final

from seedance.protocol.events import UpstreamTokens
from seedance.protocol.frames import TokenLogprob
from seedance.protocol.receipt import TextDigest

__all__ = ["DELTA_BYTES_MAX", "Piece", "TextBuffer", "TextGapError", "cut"]

# A `token` frame is at most 4 KiB on the wire (§1); the rest of the frame, with an id of 64 escaped
# characters, stays under 512.
DELTA_BYTES_MAX = 4096 - 512
# JSON writes a control character as six bytes: shorter texts need no measuring.
_ESCAPE_BYTES_MAX = 6
_SHORT_BYTES_MAX = DELTA_BYTES_MAX // _ESCAPE_BYTES_MAX
_CONTINUATION_MASK, _CONTINUATION = 0xC0, 0x80


class TextGapError(Exception):
    """Text or tokens are missing, or the client's offset does not lie in this text."""


# Not frozen, like everything that is made once per token: that alone costs half a microsecond.
@dataclass(slots=True)
class Piece:
    """Text on its way into a frame: what it begins at, and how many tokens it adds to the count."""

    offset: int
    text: str
    tokens: int
    timestamp_ms: int
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def end(self) -> int:
        """The offset after it, in bytes."""
        return self.offset + len(self.text.encode())


# Where pending text begins and ends, and the token before which it belongs; then the bytes of each of
# the last tokens before that, where they came as one and none of them is without text at the end (empty:
# all of the text is one token's). A bare tuple, since one is made for each token.
_Mark = tuple[int, int, int, tuple[int, ...]]
_START: Final = 0
_END: Final = 1
_TOKEN: Final = 2
_LENGTHS: Final = 3


def _inside_code_point(data: bytes | bytearray, at: int) -> bool:
    return at < len(data) and data[at] & _CONTINUATION_MASK == _CONTINUATION


def cut(data: bytes | bytearray, size: int) -> int:
    """How many of the first `size` bytes of UTF-8 fit into one frame without cutting a code point."""
    size = min(len(data), size, DELTA_BYTES_MAX)
    while size:
        while size and _inside_code_point(data, size):
            size -= 1
        if size * _ESCAPE_BYTES_MAX <= DELTA_BYTES_MAX:
            break
        wire = len(encode_basestring(data[:size].decode(errors="replace")).encode())
        if wire <= DELTA_BYTES_MAX:
            break
        # Escapes are evenly spread more often than not; a step of a quarter ends soon either way.
        size -= max(1, size // 4)
    return size


class TextBuffer:
    """Takes tokens as they come, gives text as it may be sent, and counts both.

    A restored buffer begins with the token ids whose text was wholly framed; the text of the next
    ones comes again from the instance, and what the client has of it is dropped but counted.
    `digest` hashes the framed text, where somebody wants a receipt.
    """

    def __init__(
        self,
        token_ids: Sequence[int] = (),
        framed_bytes: int = 0,
        framed_tokens: int = 0,
        digest: TextDigest | None = None,
    ) -> None:
        self.token_ids = array("I", token_ids)
        self.framed_bytes = framed_bytes
        self.framed_tokens = framed_tokens
        self.whole_tokens = len(token_ids)
        self.digest = digest
        self._pending = bytearray()
        self._marks: deque[_Mark] = deque()
        self._logprobs: deque[tuple[int, TokenLogprob]] = deque()
        self._skip_to = 0
        self._timestamp_ms = 0

    @property
    def received_bytes(self) -> int:
        """Bytes of text heard so far."""
        return self.framed_bytes + len(self._pending)

    @property
    def pending(self) -> bool:
        """Whether text waits for a frame."""
        return bool(self._pending)

    @property
    def waiting_tokens(self) -> int:
        """Tokens whose text waits for a frame; a token without text of its own does not wait."""
        return self._marks[-1][_TOKEN] - self.framed_tokens if self._marks else 0

    @property
    def behind(self) -> bool:
        """Whether the client has text that the instance has not said again yet."""
        return self.framed_bytes < self._skip_to

    def receive(self, tokens: UpstreamTokens) -> None:
        """Take what an instance says, heard before or not. Raises `TextGapError`."""
        known, received = len(self.token_ids), self.framed_bytes + len(self._pending)
        if tokens.token_index > known or tokens.offset > received:
            raise TextGapError
        self._timestamp_ms = tokens.timestamp_ms
        for entry in _each_token(tokens) if len(tokens.token_ids) > 1 else (tokens,):
            self._receive(entry)
        if self.behind:
            self._skip()

    def append(self, tokens: UpstreamTokens) -> bool:
        """`receive` in the usual case, at a fraction of its cost; False: it is not, nothing was taken.

        Usual is what follows what is here, without log-probabilities, for a client that is not ahead.
        """
        known, pending = self.token_ids, self._pending
        received = self.framed_bytes + len(pending)
        if tokens.token_index != len(known) or tokens.offset != received:
            return False
        if tokens.logprobs or self._skip_to > self.framed_bytes:
            return False
        text = tokens.text
        lengths: tuple[int, ...] = ()
        if len(tokens.token_ids) == 1:
            known.append(tokens.token_ids[0])
        else:
            lengths = tokens.lengths
            if lengths and (not lengths[-1] or sum(lengths) > len(text)):
                return False
            known.extend(tokens.token_ids)
        self._timestamp_ms = tokens.timestamp_ms
        if text:
            pending += text
            self._marks.append((received, received + len(text), len(known), lengths))
        return True

    def _receive(self, tokens: UpstreamTokens) -> None:
        known, received = len(self.token_ids), self.received_bytes
        self.token_ids.extend(tokens.token_ids[max(0, known - tokens.token_index) :])
        end_token = tokens.token_index + len(tokens.token_ids)
        end_byte = tokens.offset + len(tokens.text)
        for index, logprob in enumerate(tokens.logprobs, tokens.token_index):
            if index >= max(known, self.framed_tokens):
                self._logprobs.append((index, logprob))
        if end_byte > received:
            self._pending += tokens.text[received - tokens.offset :]
            self._marks.append((tokens.offset, end_byte, end_token, ()))
        elif tokens.text and end_byte <= self.framed_bytes:
            self.whole_tokens = max(self.whole_tokens, end_token)
            self.framed_tokens = max(self.framed_tokens, end_token)

    def skip_to(self, offset: int) -> None:
        """The client has the text below `offset` already: drop it, but count its tokens."""
        self._skip_to = offset
        self._skip()

    def _skip(self) -> None:
        size = min(len(self._pending), self._skip_to - self.framed_bytes)
        if size <= 0:
            return
        if _inside_code_point(self._pending, size):
            raise TextGapError
        self._advance(size)
        self._take_logprobs()

    def take(self) -> Piece | None:
        """The next piece of at most one frame; None: no text waits."""
        pending = self._pending
        if not pending:
            return None
        if not self._logprobs and len(pending) <= _SHORT_BYTES_MAX:
            return self._all(pending)
        limit = len(pending)
        if self._logprobs:
            # A frame carries one token's worth then, since those fill it by themselves.
            self._split_first()
            limit = self._marks[0][_END] - self.framed_bytes
        return self._piece(cut(self._pending, limit))

    def _all(self, pending: bytearray) -> Piece:
        """All that waits, which fits into a frame however it is escaped."""
        offset, counted, last = self.framed_bytes, self.framed_tokens, self._marks[-1][_TOKEN]
        text = pending.decode("utf-8", "replace")
        if self.digest is not None:
            self.digest.update(pending)
        self.framed_bytes = offset + len(pending)
        self._pending = bytearray()
        self._marks.clear()
        self.whole_tokens = last
        if last <= counted:
            return Piece(offset, text, 0, self._timestamp_ms)
        self.framed_tokens = last
        return Piece(offset, text, last - counted, self._timestamp_ms)

    def _split_first(self) -> None:
        """The first mark as one for each of its tokens that has text."""
        start, end_of_all, last, lengths = self._marks[0]
        if not lengths:
            return
        self._marks.popleft()
        at, token, single = start, last - len(lengths), list[_Mark]()
        for length in lengths:
            token += 1
            end = end_of_all if token == last else at + length
            if end > at:
                single.append((at, end, token, ()))
            at = end
        self._marks.extendleft(reversed(single))

    def take_all(self) -> Piece | None:
        """All text that waits, whatever its size (for `done.text`)."""
        return self._piece(len(self._pending))

    def drop(self) -> None:
        """Discard what waits: it is never framed, hence free."""
        self._pending.clear()
        self._marks.clear()
        self._logprobs.clear()

    def _piece(self, size: int) -> Piece | None:
        if not size:
            return None
        offset, counted = self.framed_bytes, self.framed_tokens
        text = self._pending[:size].decode(errors="replace")
        self._advance(size)
        tokens = self.framed_tokens - counted
        return Piece(offset, text, tokens, self._timestamp_ms, self._take_logprobs())

    def _advance(self, size: int) -> None:
        if self.digest is not None:
            self.digest.update(self._pending[:size])
        del self._pending[:size]
        self.framed_bytes += size
        marks = self._marks
        while marks and marks[0][_END] <= self.framed_bytes:
            self.whole_tokens = marks.popleft()[_TOKEN]
            self.framed_tokens = max(self.framed_tokens, self.whole_tokens)
        if marks and marks[0][_START] < self.framed_bytes:
            if marks[0][_LENGTHS]:
                self._split_first()
                self._advance(0)
                return
            self.framed_tokens = max(self.framed_tokens, marks[0][_TOKEN])

    def _take_logprobs(self) -> tuple[TokenLogprob, ...]:
        taken = []
        while self._logprobs and self._logprobs[0][0] < self.framed_tokens:
            taken.append(self._logprobs.popleft()[1])
        return tuple(taken)

    def check(self) -> None:
        """Raise `AssertionError` when an invariant does not hold (tests call it at each step)."""
        assert self.whole_tokens <= self.framed_tokens or not self._marks  # noqa: S101
        assert bool(self._marks) == bool(self._pending)  # noqa: S101
        assert not self._marks or self._marks[-1][_END] == self.received_bytes  # noqa: S101
        assert self.whole_tokens <= len(self.token_ids)  # noqa: S101


def _each_token(tokens: UpstreamTokens) -> Iterator[UpstreamTokens]:
    """An entry of several tokens as single ones; without `lengths` all text is the last one's.

    What the entry has beyond its lengths was held back until the answer's end: the last one's, too.
    """
    at, last = 0, len(tokens.token_ids) - 1
    # Replayed tokens come without log-probabilities, those that follow them with: aligned at the end.
    without = len(tokens.token_ids) - len(tokens.logprobs)
    for number, token_id in enumerate(tokens.token_ids):
        size = tokens.lengths[number] if tokens.lengths else 0
        end = len(tokens.text) if number == last else at + size
        yield UpstreamTokens(
            (token_id,),
            tokens.token_index + number,
            tokens.text[at:end],
            tokens.offset + at,
            tokens.timestamp_ms,
            tokens.logprobs[number - without : number - without + 1] if number >= without else (),
        )
        at = end
