"""What a receipt says and which bytes are signed (§3): shared by who signs and who checks.

A stream's text is hashed in blocks, each together with the hash of all before it:

    hash ─SHA-256(hash + 256 bytes)─► hash ─SHA-256(hash + 256 bytes)─► … ─SHA-256(hash + rest)─► text_hash

A plain SHA-256 of the text would be simpler to check, but its inner state cannot be handed to another
process. This one's state is a hash and less than a block of text, so a gateway that takes a stream
over goes on hashing where the dead one had come to, without the text that nobody has any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from seedance.protocol.frames import Usage

__all__ = [
    "BLOCK_BYTES",
    "FORMAT",
    "ReceiptError",
    "SignReceipt",
    "TextDigest",
    "receipt_body",
    "signed_bytes",
]

BLOCK_BYTES = 256
FORMAT = 1
_HASH_BYTES = hashlib.sha256().digest_size


class ReceiptError(ValueError):
    """It is no receipt of this mesh for this text; the message says what does not hold."""


class TextDigest:
    """Takes UTF-8 in any pieces. `state` (from `state()`) goes on from there."""

    def __init__(self, state: bytes = bytes(_HASH_BYTES)) -> None:
        self._hash = state[:_HASH_BYTES]
        self._rest = bytearray(state[_HASH_BYTES:])

    def update(self, text: bytes | bytearray) -> None:
        """The text goes on."""
        self._rest += text
        whole = len(self._rest) - len(self._rest) % BLOCK_BYTES
        for at in range(0, whole, BLOCK_BYTES):
            self._hash = _chained(self._hash, self._rest[at : at + BLOCK_BYTES])
        del self._rest[:whole]

    def state(self) -> bytes:
        """All that is needed to go on elsewhere: 32 bytes and less than a block."""
        return self._hash + self._rest

    def hexdigest(self) -> str:
        """The hash of the text until here."""
        return (_chained(self._hash, self._rest) if self._rest else self._hash).hex()


def _chained(before: bytes, block: bytes | bytearray) -> bytes:
    return hashlib.sha256(before + block).digest()


# Of a stream's id, text and usage: the receipt, signed. The session is the signer's.
SignReceipt = Callable[[str, TextDigest, Usage], dict[str, Any]]


def receipt_body(
    session: str, stream: str, text: TextDigest, usage: Usage, key: str
) -> dict[str, Any]:
    """A receipt without its signature; `key` is the id of the key that is to sign it."""
    return {
        "format": FORMAT,
        "key": key,
        "session": session,
        "id": stream,
        "text_hash": text.hexdigest(),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
    }


def signed_bytes(receipt: Mapping[str, Any]) -> bytes:
    """Everything but the signature, as JSON in RFC 8785's form: sorted names, no spaces, UTF-8."""
    body = {name: value for name, value in receipt.items() if name != "signature"}
    text = json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    # What is not ours to sign may hold anything, lone surrogates too: it is no receipt, but no fault.
    return text.encode(errors="surrogatepass")
