"""Chat templates in their sandbox."""

from __future__ import annotations

import pytest

from inference.model.chat_template import ChatTemplate
from inference.model.errors import ModelLoadError
from mesh.clock import SystemClock
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage
from tests.support.tiny_models import TEMPLATE

USER = (ChatMessage("user", "hi <b>"),)


class _Noon:
    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 1_700_000_000_000


def _render(source: str, messages: tuple[ChatMessage, ...] = USER, **variables: str) -> str:
    return ChatTemplate(source, variables, _Noon()).render(messages)


def test_a_conversation_ends_where_the_answer_begins() -> None:
    """Turns in order, contents unescaped, then the opening of the assistant's turn."""
    messages = (ChatMessage("system", "s"), *USER)
    assert _render(TEMPLATE, messages) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi <b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_what_templates_rely_on_is_there() -> None:
    """Named tokens, the date, JSON without HTML escapes, loop controls, trimmed blocks."""
    source = (
        "{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}\n"
        "{% for m in messages %}\n    {{ m | tojson }}{% break %}\n{% endfor %}\n"
    )
    expected = '<s>2023-11-14\n    {"role": "user", "content": "hi <b>"}'
    assert _render(source, bos_token="<s>").strip() == expected  # noqa: S106


def test_a_template_may_refuse() -> None:
    """Its reason reaches the client as `bad_request` of `messages`."""
    with pytest.raises(SeedanceError, match="roles must alternate") as caught:
        _render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.code is ErrorCode.BAD_REQUEST
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.clear() }}"]
)
def test_a_template_reaches_nothing_outside(source: str) -> None:
    """It neither climbs out through attributes nor changes what it is given."""
    with pytest.raises(SeedanceError):
        _render(source)


def test_a_template_that_is_none() -> None:
    """A syntax error is a fault of the model's files."""
    with pytest.raises(ModelLoadError, match="chat template"):
        ChatTemplate("{% for %}", {}, SystemClock())
