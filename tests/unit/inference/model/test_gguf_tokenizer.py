"""Tokenizers out of GGUF metadata."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import pre_tokenizers

from inference.model.errors import ModelLoadError
from inference.model.gguf_tokenizer import gguf_tokenizer
from inference.model.token_bytes import byte_alphabet, token_byte_table
from tests.support.tiny_models import CONTROL_TOKENS, MERGES, tiny_tokenizer, tiny_vocabulary

TEXTS = (
    "hello the hells, 12 and 1212 \n\n  x",
    "don't  stop\t½ Ⅷ ٣٤",
    "你好 🙂 e\u0301",
    "<|im_end|>",
)


def _byte_level(pre: str) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tiny_vocabulary(),
        "tokenizer.ggml.token_type": [3] * len(CONTROL_TOKENS) + [1] * (256 + len(MERGES)),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in MERGES],
        "tokenizer.ggml.bos_token_id": 1,
    }


@pytest.mark.parametrize("text", TEXTS)
def test_the_plain_kind_is_gpt2s(text: str) -> None:
    """`pre` gpt-2 cuts words as the byte-level tokenizer of the `tokenizers` library does."""
    assert (
        gguf_tokenizer(_byte_level("gpt-2")).encode(text).ids == tiny_tokenizer().encode(text).ids
    )


@pytest.mark.parametrize("text", TEXTS)
def test_smollm_takes_every_digit_alone(text: str) -> None:
    """`pre` smollm equals digits one by one before GPT-2's words."""
    reference = tiny_tokenizer()
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    assert gguf_tokenizer(_byte_level("smollm")).encode(text).ids == reference.encode(text).ids


def test_digits_by_kind() -> None:
    """GPT-2 merges `12`, smollm and qwen2 never do, Llama 3 takes up to three."""
    merged = tiny_vocabulary().index("12")
    for pre, expected in (("gpt-2", 1), ("smollm", 0), ("qwen2", 0), ("llama-bpe", 1)):
        ids = gguf_tokenizer(_byte_level(pre)).encode("12").ids
        assert ids.count(merged) == expected, pre


def test_control_and_own_words() -> None:
    """Control tokens are special, user-defined ones found but plain text."""
    fields = _byte_level("gpt-2")
    fields["tokenizer.ggml.tokens"].append("<tool>")
    fields["tokenizer.ggml.token_type"].append(4)
    tokenizer = gguf_tokenizer(fields)
    added = tokenizer.get_added_tokens_decoder()
    assert {token.content for token in added.values() if token.special} == set(CONTROL_TOKENS)
    own = tokenizer.token_to_id("<tool>")
    assert tokenizer.encode("a<tool>").ids[-1] == own
    assert token_byte_table(tokenizer, 300)[own] == b"<tool>"


def test_a_beginning_where_the_file_asks_for_it() -> None:
    """`add_bos_token` puts the begin-of-text token before a plain prompt."""
    fields = _byte_level("gpt-2") | {"tokenizer.ggml.add_bos_token": True}
    assert gguf_tokenizer(fields).encode("").ids == [1]
    assert gguf_tokenizer(_byte_level("gpt-2")).encode("").ids == []


def test_sentencepiece_merges_by_score() -> None:
    """The best-scored pair goes first; what no token spells falls to bytes."""
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    scores = [0.0] * len(tokens)
    for token, score in (("▁", -9), ("a", -9), ("b", -9), ("ab", -1), ("▁a", -2), ("▁ab", -3)):
        tokens.append(token)
        scores.append(float(score))
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, *[6] * 256, *[1] * 6],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
    }
    tokenizer = gguf_tokenizer(fields)
    assert tokenizer.encode("ab a").tokens == ["<s>", "▁ab", "▁a"]
    table = token_byte_table(tokenizer, len(tokens))
    ids = tokenizer.encode("é\n", add_special_tokens=False).ids
    assert b"".join(table[token] for token in ids) == " é\n".encode()


@pytest.mark.parametrize(
    "changes", [{"tokenizer.ggml.model": "t5"}, {"tokenizer.ggml.pre": "unheard-of"}]
)
def test_an_unknown_kind_is_refused_by_name(changes: dict[str, str]) -> None:
    """One line that names the kind and what would do."""
    fields = _byte_level("gpt-2") | changes
    with pytest.raises(ModelLoadError, match=next(iter(changes.values()))):
        gguf_tokenizer(fields)


def test_the_alphabet_is_complete() -> None:
    """Every byte has a token, so that no text is unknown."""
    assert set(byte_alphabet()) <= set(tiny_vocabulary())
