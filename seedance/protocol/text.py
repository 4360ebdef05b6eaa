"""A stream's text between the instance that makes it and the frames that carry it.

    tokens   0 ───────── whole ── framed ─────────── received
    bytes    0 ───────────── framed ──── waiting ─── received

`whole` tokens lie entirely in frames, `framed` ones wholly or partly. Usage counts by token index
(§4.9): a token that has no text of its own yet (half a code point, a stop string's beginning) counts
with the frame that carries the next text, and a tail whose text never reaches a frame is free. So a
recovery, which hears tokens again, can count nothing twice.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring

from seedance.protocol.events import UpstreamTokens
from seedance.protocol.frames import Token, TokenLogprob
from seedance.protocol.receipt import TextDigest

__all__ = ["DELTA_BYTES_MAX", "TextBuffer", "TextGapError", "cut"]

# A `token` frame is at most 4 KiB on the wire (§1); the rest of the frame, with an id of 64 escaped
# characters, stays under 512.
DELTA_BYTES_MAX = 4096 - 512
# JSON writes a control character as six bytes: shorter texts need no measuring.
_ESCAPE_BYTES_MAX = 6
_SHORT_BYTES_MAX = DELTA_BYTES_MAX // _ESCAPE_BYTES_MAX
_CONTINUATION_MASK, _CONTINUATION = 0xC0, 0x80


class TextGapError(Exception):
    """Text or tokens are missing, or the client's offset does not lie in this text."""


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

    __slots__ = (
        "_logprobs",
        "_skip_to",
        "digest",
        "framed_bytes",
        "framed_tokens",
        "prompt_tokens",
        "received_bytes",
        "token_ids",
        "waiting",
        "whole_tokens",
    )

    def __init__(
        self,
        token_ids: Sequence[int] = (),
        framed_bytes: int = 0,
        framed_tokens: int = 0,
        digest: TextDigest | None = None,
        prompt_tokens: int = 0,
    ) -> None:
        self.token_ids = array("I", token_ids)
        self.framed_bytes = framed_bytes
        self.framed_tokens = framed_tokens
        # Of what it answers, once an instance has said so.
        self.prompt_tokens = prompt_tokens
        self.whole_tokens = len(token_ids)
        self.digest = digest
        # Bytes of text heard so far.
        self.received_bytes = framed_bytes
        # What came and has text that waits for a frame, as it came: each begins at the latest where the
        # one before it ends, the first one perhaps in text that is framed.
        self.waiting: deque[UpstreamTokens] = deque()
        self._logprobs: deque[tuple[int, TokenLogprob]] = deque()
        self._skip_to = 0

    @property
    def waiting_tokens(self) -> int:
        """Tokens whose text waits for a frame; a token without text of its own does not wait."""
        return _end_token(self.waiting[-1]) - self.framed_tokens if self.waiting else 0

    @property
    def behind(self) -> bool:
        """Whether the client has text that the instance has not said again yet."""
        return self.framed_bytes < self._skip_to

    def receive(self, tokens: UpstreamTokens) -> None:
        """Take what an instance says, heard before or not. Raises `TextGapError`."""
        if tokens.token_index > len(self.token_ids) or tokens.offset > self.received_bytes:
            raise TextGapError
        for entry in _each_token(tokens) if len(tokens.token_ids) > 1 else (tokens,):
            self._receive(entry)
        if self.behind:
            self._skip()

    def append(self, tokens: UpstreamTokens) -> bool:
        """`receive` in the usual case, at a fraction of its cost; False: it is not, nothing was taken.

        Usual is what follows what is here, without log-probabilities, for a client that is not ahead.
        """
        known, ids, text = self.token_ids, tokens.token_ids, tokens.text
        if tokens.token_index != len(known) or tokens.offset != self.received_bytes:
            return False
        if tokens.logprobs or self._skip_to > self.framed_bytes:
            return False
        if len(ids) == 1:
            known.append(ids[0])
        else:
            lengths = tokens.lengths
            if lengths and (not lengths[-1] or sum(lengths) > len(text)):
                return False
            known.extend(ids)
        if text:
            self.received_bytes += len(text)
            self.waiting.append(tokens)
        return True

    def _receive(self, tokens: UpstreamTokens) -> None:
        known, received = len(self.token_ids), self.received_bytes
        self.token_ids.extend(tokens.token_ids[max(0, known - tokens.token_index) :])
        end_token, end_byte = _end_token(tokens), _end_byte(tokens)
        for index, logprob in enumerate(tokens.logprobs, tokens.token_index):
            if index >= max(known, self.framed_tokens):
                self._logprobs.append((index, logprob))
        if end_byte > received:
            self.received_bytes = end_byte
            self.waiting.append(tokens)
        elif tokens.text and end_byte <= self.framed_bytes:
            self.whole_tokens = max(self.whole_tokens, end_token)
            self.framed_tokens = max(self.framed_tokens, end_token)

    def skip_to(self, offset: int) -> None:
        """The client has the text below `offset` already: drop it, but count its tokens."""
        self._skip_to = offset
        self._skip()

    def _skip(self) -> None:
        size = min(self.received_bytes, self._skip_to) - self.framed_bytes
        if size <= 0:
            return
        text = self._next(size + 1)
        if _inside_code_point(text, size):
            raise TextGapError
        self._advance(text[:size])
        self._take_logprobs()

    def take(self, stream: str = "") -> Token | None:
        """The next text of at most one frame, as a frame of that stream; None: no text waits."""
        if not self.waiting:
            return None
        limit = self.received_bytes - self.framed_bytes
        if not self._logprobs:
            if limit <= _SHORT_BYTES_MAX:
                return self._short(stream)
        else:
            # A frame carries one token's worth then, since those fill it by themselves.
            self._split_first()
            limit = _end_byte(self.waiting[0]) - self.framed_bytes
        text = self._next(DELTA_BYTES_MAX + 1)
        return self._frame(stream, text[: cut(text, limit)])

    def _short(self, stream: str) -> Token:
        """All that waits, which fits into a frame however it is escaped."""
        offset, counted, last = self.framed_bytes, self.framed_tokens, self.waiting[-1]
        text = last.text if last.offset == offset else self._next(_SHORT_BYTES_MAX)
        if self.digest is not None:
            self.digest.update(text)
        self.waiting.clear()
        self.framed_bytes = self.received_bytes
        self.whole_tokens = whole = last.token_index + len(last.token_ids)
        new = whole - counted if whole > counted else 0
        self.framed_tokens = counted + new
        return Token(stream, offset, text.decode("utf-8", "replace"), last.timestamp_ms, new)

    def _split_first(self) -> None:
        """What came first as one piece for each of its tokens that has text."""
        if self.waiting[0].lengths:
            single = [each for each in _each_token(self.waiting.popleft()) if each.text]
            self.waiting.extendleft(reversed(single))

    def take_all(self) -> Token | None:
        """All text that waits, whatever its size (for `done.text`)."""
        return self._frame("", self._next(self.received_bytes)) if self.waiting else None

    def drop(self) -> None:
        """Discard what waits: it is never framed, hence free."""
        self.received_bytes = self.framed_bytes
        self.waiting.clear()
        self._logprobs.clear()

    def _next(self, size: int) -> bytes:
        """The text that waits, or its beginning: at least `size` bytes of it."""
        at, parts = self.framed_bytes, []
        for tokens in self.waiting:
            start = at - tokens.offset
            parts.append(tokens.text[start : start + size])
            at = _end_byte(tokens)
            if at - self.framed_bytes >= size:
                break
        return b"".join(parts)

    def _frame(self, stream: str, text: bytes) -> Token:
        offset, counted, last = self.framed_bytes, self.framed_tokens, self.waiting[-1]
        self._advance(text)
        tokens, logprobs = self.framed_tokens - counted, self._take_logprobs()
        delta = text.decode(errors="replace")
        return Token(stream, offset, delta, last.timestamp_ms, tokens, logprobs or None)

    def _advance(self, text: bytes) -> None:
        if self.digest is not None:
            self.digest.update(text)
        self.framed_bytes += len(text)
        self._count()

    def _count(self) -> None:
        waiting = self.waiting
        while waiting and _end_byte(waiting[0]) <= self.framed_bytes:
            self.whole_tokens = _end_token(waiting.popleft())
            self.framed_tokens = max(self.framed_tokens, self.whole_tokens)
        if waiting and waiting[0].offset < self.framed_bytes:
            if waiting[0].lengths:
                self._split_first()
                self._count()
                return
            self.framed_tokens = max(self.framed_tokens, _end_token(waiting[0]))

    def _take_logprobs(self) -> tuple[TokenLogprob, ...]:
        taken = []
        while self._logprobs and self._logprobs[0][0] < self.framed_tokens:
            taken.append(self._logprobs.popleft()[1])
        return tuple(taken)

    def check(self) -> None:
        """Raise `AssertionError` when an invariant does not hold (tests call it at each step)."""
        assert self.whole_tokens <= self.framed_tokens or not self.waiting  # noqa: S101
        assert bool(self.waiting) == (self.received_bytes > self.framed_bytes)  # noqa: S101
        assert not self.waiting or _end_byte(self.waiting[-1]) == self.received_bytes  # noqa: S101
        assert self.whole_tokens <= len(self.token_ids)  # noqa: S101


def _end_byte(tokens: UpstreamTokens) -> int:
    return tokens.offset + len(tokens.text)


def _end_token(tokens: UpstreamTokens) -> int:
    return tokens.token_index + len(tokens.token_ids)


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
