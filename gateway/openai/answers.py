"""What OpenAI's API answers with: completion objects, chunks of a stream.

`ChatShape` and `CompletionShape` are the two faces of an answer, or of one of its choices; each makes
plain dicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from gateway.openai.run import End
from seedance.protocol.frames import Token, TokenLogprob, Usage

__all__ = ["AnswerShape", "ChatShape", "CompletionShape"]

Json = dict[str, Any]


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass(frozen=True, slots=True)
class _Head:
    """What stands at the top of every object of one answer. `created`: Unix seconds.

    `index` is the choice that chunks belong to.
    """

    id: str
    created: int
    model: str
    index: int = 0

    def choice(self, index: int) -> Self:
        """The shape of one choice's chunks."""
        return replace(self, index=index)

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


Answers = Sequence[tuple[Token | None, End]]


class AnswerShape(Protocol):
    """How an answer looks: all choices in one piece, or one choice as the chunks of a stream."""

    def whole(self, answers: Answers, usage: Usage, /) -> Json:
        """All choices in one piece."""
        ...

    def choice(self, index: int) -> AnswerShape:
        """The shape of one choice's chunks."""
        ...

    def first(self) -> Json | None:
        """The chunk before any text, if there is one."""
        ...

    def delta(self, token: Token, at: int, /) -> Json:
        """A chunk with text, which has `at` characters before it."""
        ...

    def last(self, end: End) -> Json:
        """The chunk that says why it ended."""
        ...

    def usage(self, usage: Usage) -> Json:
        """The chunk with the usage, which has no choices."""
        ...


class ChatShape(_Head):
    """`chat.completion` and `chat.completion.chunk`."""

    KIND = "chat.completion"
    CHUNK_KIND = "chat.completion.chunk"

    def whole(self, answers: Answers, usage: Usage, /) -> Json:
        """All choices in one piece."""
        choices = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": token.delta if token else "",
                    "refusal": None,
                },
                "logprobs": _chat_logprobs(token),
                "finish_reason": end.finish_reason,
            }
            for index, (token, end) in enumerate(answers)
        ]
        return self._object(self.KIND, choices) | {"usage": _usage(usage)}

    def first(self) -> Json:
        """The chunk that says who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, token: Token, _at: int, /) -> Json:
        """A chunk with text."""
        return self._chunk({"content": token.delta}, _chat_logprobs(token))

    def last(self, end: End) -> Json:
        """The chunk that says why it ended."""
        return self._chunk({}, finish_reason=end.finish_reason)

    def usage(self, usage: Usage) -> Json:
        """The chunk with the usage, which has no choices."""
        return self._object(self.CHUNK_KIND, []) | {"usage": _usage(usage)}

    def _chunk(
        self, delta: Json, logprobs: Json | None = None, finish_reason: str | None = None
    ) -> Json:
        choice = {
            "index": self.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return self._object(self.CHUNK_KIND, [choice])


class CompletionShape(_Head):
    """`text_completion`, whose chunks have the same kind."""

    KIND = "text_completion"

    def whole(self, answers: Answers, usage: Usage, /) -> Json:
        """All choices in one piece."""
        choices = [
            _completion_choice(index, token, 0, end.finish_reason)
            for index, (token, end) in enumerate(answers)
        ]
        return self._object(self.KIND, choices) | {"usage": _usage(usage)}

    def first(self) -> None:
        """Nothing comes before the text."""

    def delta(self, token: Token, at: int, /) -> Json:
        """A chunk with text."""
        return self._chunk(token, at)

    def last(self, end: End) -> Json:
        """The chunk that says why it ended."""
        return self._chunk(None, 0, end.finish_reason)

    def usage(self, usage: Usage) -> Json:
        """The chunk with the usage, which has no choices."""
        return self._object(self.KIND, []) | {"usage": _usage(usage)}

    def _chunk(self, token: Token | None, at: int, finish_reason: str | None = None) -> Json:
        return self._object(self.KIND, [_completion_choice(self.index, token, at, finish_reason)])


def _completion_choice(index: int, token: Token | None, at: int, finish_reason: str | None) -> Json:
    return {
        "index": index,
        "text": token.delta if token else "",
        "logprobs": _completion_logprobs(token, at),
        "finish_reason": finish_reason,
    }


# ---------------------------------------------------------------- log-probabilities


def _chat_entry(entry: TokenLogprob) -> Json:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": list(entry.bytes)}


def _chat_logprobs(token: Token | None) -> Json | None:
    if token is None or not token.logprobs:
        return None
    content = [
        _chat_entry(entry) | {"top_logprobs": [_chat_entry(top) for top in entry.top]}
        for entry in token.logprobs
    ]
    return {"content": content, "refusal": None}


def _completion_logprobs(token: Token | None, at: int) -> Json | None:
    if token is None or not token.logprobs:
        return None
    entries = token.logprobs
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{top.token: top.logprob for top in entry.top} for entry in entries],
        "text_offset": _text_offsets(entries, at),
    }


def _text_offsets(entries: Sequence[TokenLogprob], at: int) -> list[int]:
    """Where each token's text begins, in characters as OpenAI counts them."""
    offsets = []
    for entry in entries:
        offsets.append(at)
        at += len(entry.token)
    return offsets
