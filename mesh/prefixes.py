"""Marks in a prompt's text, by which who routes and who computes speak of the same beginnings.

A gateway has no tokenizer, so it cannot name KV blocks. Both ends cut the text in pieces of
`PIECE_BYTES` and chain a hash over them: equal marks mean equal text up to there, of one tenant. The
salt is the tenant's, so what one has asked tells nothing about what another has.
"""

from __future__ import annotations

from hashlib import blake2b

from seedance.protocol.request import GenerateRequest

__all__ = ["MARKS_MAX", "PIECE_BYTES", "prefix_marks"]

# Shorter beginnings (128 tokens or so) are not worth a way to another instance.
PIECE_BYTES = 512
# Of one prompt: 64 KiB of its text. Beyond that it is the same conversation, or near enough.
MARKS_MAX = 128
_MARK_BYTES = 4


def prefix_marks(tenant: str, request: GenerateRequest) -> tuple[int, ...]:
    """A 32-bit mark at the end of each whole piece of the prompt's text, from its beginning.

    Empty for prompts of less than a piece, and for those that come as token ids.
    """
    text = _text(request)[: MARKS_MAX * PIECE_BYTES]
    chain = blake2b(f"{tenant}\0".encode(errors="surrogatepass"), digest_size=_MARK_BYTES)
    marks = []
    for end in range(PIECE_BYTES, len(text) + 1, PIECE_BYTES):
        chain.update(text[end - PIECE_BYTES : end])
        marks.append(int.from_bytes(chain.copy().digest(), "big"))
    return tuple(marks)


def _text(request: GenerateRequest) -> bytes:
    if request.prompt is not None:
        return request.prompt.encode(errors="surrogatepass")
    turns = (f"{message.role}\0{message.content}\0" for message in request.messages)
    return "".join(turns).encode(errors="surrogatepass")
