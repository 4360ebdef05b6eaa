"""The bytes of each token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from inference.model.token_bytes import byte_alphabet, token_byte_table
from tests.support.tiny_models import CONTROL_TOKENS, tiny_tokenizer


@given(st.text())
def test_the_bytes_of_a_texts_tokens_are_the_text(text: str) -> None:
    """Encoding and joining the table's bytes gives the text back, whatever it is."""
    tokenizer = tiny_tokenizer()
    table = token_byte_table(tokenizer, 288)
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text).ids
    assert b"".join(table[token] for token in ids) == text.encode()


def test_control_tokens_and_unused_ids_have_no_bytes() -> None:
    """Nothing of a control token reaches an answer's text; ids past the tokenizer are empty."""
    tokenizer = tiny_tokenizer()
    table = token_byte_table(tokenizer, 400)
    assert [table[tokenizer.token_to_id(token)] for token in CONTROL_TOKENS] == [b""] * 3
    assert len(table) == 400
    assert table[399] == b""


def test_added_words_that_control_nothing_are_text() -> None:
    """A token added as a word has its spelling's bytes, outside the byte alphabet too."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<tool 工>", special=False)])
    token = tokenizer.token_to_id("<tool 工>")
    assert token_byte_table(tokenizer, 400)[token] == "<tool 工>".encode()


def test_sentencepiece_vocabulary() -> None:
    """`▁` is a space, `<0x0A>` a byte."""
    tokenizer = Tokenizer(models.BPE(vocab={"<0x0A>": 0, "▁the": 1, "é": 2}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert token_byte_table(tokenizer, 3) == [b"\n", b" the", "é".encode()]


def test_the_alphabet_names_every_byte_once() -> None:
    """256 characters for 256 bytes, none of them white space."""
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert not any(char.isspace() for char in byte_alphabet())
