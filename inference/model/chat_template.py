"""A model's chat template: messages into the text it was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.model.errors import ModelLoadError
from mesh.clock import Clock
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """A compiled template. A template comes with a model, so it runs in a sandbox.

    The environment is the one that templates are written for (Hugging Face's
    `apply_chat_template`): trimmed blocks, loop controls, `raise_exception`, `strftime_now`.
    Raises `ModelLoadError` when the template cannot be compiled.
    """

    def __init__(self, source: str, variables: Mapping[str, str], clock: Clock) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: _now(clock).strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelLoadError(f"the chat template cannot be read: {error}") from error
        self._variables = dict(variables)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as text, up to where the answer begins.

        Raises `SeedanceError` (`bad_request`) when the template refuses the conversation.
        """
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(
                messages=turns, add_generation_prompt=True, **self._variables
            )
        except TemplateError as error:
            raise SeedanceError(
                ErrorCode.BAD_REQUEST,
                f"this model's chat template refuses the conversation: {error}",
                field="messages",
            ) from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML, which a prompt is not.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.wall_ms() / 1000, tz=UTC)
