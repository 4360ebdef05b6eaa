"""Requests into tokens for a model with a tokenizer and a chat template."""

from __future__ import annotations

from tokenizers import Tokenizer

from inference.engine.runner import Prepared
from inference.model.chat_template import ChatTemplate
from inference.model.token_bytes import token_byte_table
from inference.model.tokenizer import TextEncoder, guard_mark
from seedance.protocol.request import ChatMessage, GenerateRequest, bad_field

__all__ = ["HfPreparer"]


class HfPreparer:
    """The `Preparer` of a real model; it keeps no state between requests."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, vocab_size: int
    ) -> None:
        self._encoder = TextEncoder(tokenizer)
        self._template = template
        self._vocab_size = vocab_size
        self._bytes = token_byte_table(tokenizer, vocab_size)

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Render the template and tokenize.

        Raises `SeedanceError` (`bad_request`) for token ids outside the vocabulary, for a
        conversation that the template refuses, and for one where the model has no template.
        """
        return Prepared(prompt_ids=self._prompt_ids(request), token_bytes=self._bytes.__getitem__)

    def _prompt_ids(self, request: GenerateRequest) -> list[int]:
        if request.prompt_token_ids:
            top = self._vocab_size - 1
            for index, token_id in enumerate(request.prompt_token_ids):
                if not 0 <= token_id <= top:
                    raise bad_field(f"prompt[{index}]", f"a token id from 0 to {top}")
            return list(request.prompt_token_ids)
        if request.prompt is not None:
            return self._encoder.encode_text(request.prompt)
        return self._conversation(request.messages)

    def _conversation(self, messages: tuple[ChatMessage, ...]) -> list[int]:
        if self._template is None:
            raise bad_field(
                "prompt", "given instead of `messages`: this model has no chat template"
            )
        mark = guard_mark(message.content for message in messages)
        guarded = [
            ChatMessage(message.role, self._encoder.guard(message.content, mark))
            for message in messages
        ]
        return self._encoder.encode_rendered(self._template.render(guarded), mark)
