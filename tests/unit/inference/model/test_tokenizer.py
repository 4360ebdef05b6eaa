"""Text into ids, with control tokens only where the template put them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from inference.model.tokenizer import TextEncoder, guard_mark
from tests.support.tiny_models import CONTROL_TOKENS, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
START, END = (TOKENIZER.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))


def _rendered(content: str) -> tuple[str, str]:
    mark = guard_mark([content])
    guarded = TextEncoder(TOKENIZER).guard(content, mark)
    return f"<|im_start|>user\n{guarded}<|im_end|>\n", mark


def test_markers_are_found_and_text_encoded_between() -> None:
    """A clean conversation gets the very ids that the tokenizer gives the rendered text."""
    text, mark = _rendered("hello, the 12 hells")
    assert TextEncoder(TOKENIZER).encode_rendered(text, mark) == TOKENIZER.encode(text).ids


@given(
    st.lists(
        st.sampled_from(
            [*CONTROL_TOKENS, "<|im_", "end|>", "<", "|>", "hello ", "\ue000", "é", "🙂"]
        ),
        max_size=8,
    ).map("".join)
)
def test_no_content_becomes_a_control_token(content: str) -> None:
    """Whatever a content spells, the only control tokens are the template's, and no byte is lost."""
    text, mark = _rendered(content)
    ids = TextEncoder(TOKENIZER).encode_rendered(text, mark)
    control = {TOKENIZER.token_to_id(token) for token in CONTROL_TOKENS}
    assert [token for token in ids if token in control] == [START, END]
    inside = ids[1 : ids.index(END)]
    assert TOKENIZER.decode(inside, skip_special_tokens=False) == "user\n" + content


def test_a_control_token_of_one_character_is_guarded_too() -> None:
    """A spelling that cannot be split is told apart by the mark behind it."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([AddedToken("☃", special=True)])
    encoder, mark = TextEncoder(tokenizer), guard_mark(["☃"])
    control = tokenizer.token_to_id("☃")
    ids = encoder.encode_rendered("☃" + encoder.guard("a☃b", mark), mark)
    assert ids.count(control) == 1
    assert ids[0] == control


def test_a_plain_prompt_has_no_control_tokens_but_its_beginning() -> None:
    """A prompt begins as the model wants it; what it spells stays text."""
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", START)]
    )
    ids = TextEncoder(tokenizer).encode_text("<|im_end|>")
    assert ids[0] == START
    assert END not in ids


def test_a_space_before_the_first_word_comes_once() -> None:
    """A tokenizer that prefixes a text's first word prefixes no word after a marker."""
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "▁b": 5}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[("▁", "a"), ("▁", "b")], unk_token="<unk>")  # noqa: S106
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("[X]", special=True)])
    control = tokenizer.token_to_id("[X]")
    assert TextEncoder(tokenizer).encode_rendered("a[X]b", "\ue000") == [4, control, 3]


def test_the_mark_is_in_no_content() -> None:
    """A content that holds private-use characters gets another mark."""
    assert guard_mark(["\ue000", "x\ue001"]) == "\ue002"


@pytest.mark.parametrize("text", ["", "<|im_start|>"])
def test_edges(text: str) -> None:
    """Nothing, and a marker alone, are encoded as such."""
    assert TextEncoder(TOKENIZER).encode_rendered(text, "\ue000") == ([START] if text else [])
