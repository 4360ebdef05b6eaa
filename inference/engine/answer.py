"""An answer in the making: what becomes of the tokens that were chosen, and when they are enough."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from inference.engine.detokenizer import Detokenizer
from inference.engine.plan import Sampled
from inference.engine.stop import StopMatcher

__all__ = ["Answer", "AnswerRules", "FinishReason", "Piece"]


class FinishReason(Enum):
    """Why a generation ended well."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """When an answer ends.

    `max_tokens` and `min_tokens` count the forced prefix; `ending_ids` are end-of-text and stop
    ids: they end the answer and are no part of it; `script_length` is where a script ends.
    """

    max_tokens: int
    min_tokens: int = 0
    ending_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    script_length: int | None = None


# Made once per token, like `Tokens`: frozen it would cost three times as much.
@dataclass(slots=True)
class Piece:
    """A run of the answer: token ids and the text that they released.

    `token_index` is the index of the first id, `offset` the bytes of text before `text`. `lengths`,
    given with several ids, is how many bytes of `text` each released: the bill counts by it.
    """

    token_index: int
    ids: list[int]
    offset: int
    text: bytes
    sampled: list[Sampled]
    lengths: list[int] = field(default_factory=list)

    def lengths_of_ids(self) -> list[int]:
        """Bytes that each id released, one per id, also for a single one."""
        return self.lengths or [len(self.text)] * len(self.ids)


class Answer:
    """The transcript of one generation, from its first token, forced prefix included.

    Text leaves in whole code points and never contains (the head of) a stop string that is met
    later. What a token released depends on the tokens before it alone, so that another instance
    that is given the same ids releases, and holds, the very same.
    """

    def __init__(self, rules: AnswerRules, token_bytes: Callable[[int], bytes]) -> None:
        self.ids: list[int] = []
        self.text = bytearray()
        self._rules = rules
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer()
        self._stop = StopMatcher(rules.stop)
        # Bytes of text that had left when token i was taken: where a replay from i + 1 begins.
        self._text_ends = array("Q")
        # One for each id from `_sampled_from` on, when log-probabilities were asked.
        self._sampled: list[Sampled] = []
        self._sampled_from = 0

    def prime(self, forced_ids: Iterable[int]) -> FinishReason | None:
        """Take the ids of a continuation, as if they had been chosen here."""
        reason = None
        for token_id in forced_ids:
            reason = self._append(token_id)
            if reason is not None:
                break
        self._sampled_from = len(self.ids)
        return reason

    def take(self, sampled: Sampled, *, keep_logprobs: bool = False) -> FinishReason | None:
        """Take the token that was chosen; says whether and why the answer has ended with it."""
        if sampled.token_id in self._rules.ending_ids:
            return FinishReason.STOP
        if keep_logprobs:
            self._sampled.append(sampled)
        return self._append(sampled.token_id)

    def close(self) -> None:
        """The answer has ended: what was held back is text after all."""
        text, stop_met = self._stop.push(self._detokenizer.flush())
        self.text += text.encode()
        if not stop_met:
            self.text += self._stop.flush().encode()

    def piece(self, first: int, end: int) -> Piece:
        """Tokens `first` to `end` with the text from where the token before `first` had left it.

        With `end` the last token, all text that has left, the closing tail included.
        """
        offset = self._text_ends[first - 1] if first else 0
        text_end = len(self.text) if end == len(self.ids) else self._text_ends[end - 1]
        low, high = max(first - self._sampled_from, 0), max(end - self._sampled_from, 0)
        return Piece(
            token_index=first,
            ids=self.ids[first:end],
            offset=offset,
            text=bytes(self.text[offset:text_end]),
            sampled=self._sampled[low:high],
            lengths=self._lengths(first, end) if end - first > 1 else [],
        )

    def _lengths(self, first: int, end: int) -> list[int]:
        ends = self._text_ends[first:end]
        begin = self._text_ends[first - 1] if first else 0
        return [after - before for before, after in zip([begin, *ends], ends, strict=False)]

    def _append(self, token_id: int) -> FinishReason | None:
        rules = self._rules
        text, stop_met = self._detokenizer.push(self._token_bytes(token_id)), False
        # Before `min_tokens` nothing may end the answer, so nothing is held back for it.
        if len(self.ids) + 1 >= rules.min_tokens:
            text, stop_met = self._stop.push(text)
        self.ids.append(token_id)
        self.text += text.encode()
        self._text_ends.append(len(self.text))
        if stop_met or len(self.ids) == rules.script_length:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.ids) >= rules.max_tokens else None
