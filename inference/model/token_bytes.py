"""The bytes that each token id stands for in an answer."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from tokenizers import Tokenizer

__all__ = ["byte_alphabet", "token_byte_table"]

_HEX_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: a printable character for every byte, so that BPE can work on text.

    Printable Latin-1 bytes stand for themselves, the others for characters from U+0100 on
    (Radford et al. 2019, `bytes_to_unicode` of the published encoder).
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain}
    alphabet |= {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return alphabet


def _bytes_of_alphabet(token: str) -> bytes:
    alphabet = byte_alphabet()
    if any(char not in alphabet for char in token):
        return token.encode()
    return bytes(alphabet[char] for char in token)


def _bytes_of_pieces(token: str) -> bytes:
    """SentencePiece's way: `▁` is a space and `<0x0A>` a byte."""
    byte = _HEX_BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE_MARK, " ").encode()


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if not decoder:
        return False
    parts = decoder.get("decoders", [decoder])
    return any(part.get("type") == "ByteLevel" for part in parts)


def token_byte_table(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Bytes by id; empty for control tokens and for ids that the tokenizer does not use.

    Decoding token by token through this table is exact where a tokenizer's own `decode` is not:
    it never hides half a character behind U+FFFD.
    """
    byte_level = _is_byte_level(json.loads(tokenizer.to_str()).get("decoder"))
    plain = _bytes_of_alphabet if byte_level else _bytes_of_pieces
    added = tokenizer.get_added_tokens_decoder()
    table = [b""] * vocab_size
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id >= vocab_size:
            continue
        if token_id in added:
            table[token_id] = b"" if added[token_id].special else token.encode()
        else:
            table[token_id] = plain(token)
    return table
