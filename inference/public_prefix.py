"""The beginning of prompts that the operator has declared no secret."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from inference.engine.runner import Preparer
from mesh.settings import exit_with
from seedance.protocol.errors import SeedanceError
from seedance.protocol.request import ChatMessage, GenerateRequest

__all__ = ["public_prefix"]


def public_prefix(file: Path | None, preparer: Preparer | None) -> tuple[int, ...]:
    """The ids that every chat begins with whose system prompt is the file's text.

    The line end after the text is no part of it. No file: no ids. Ends the process when the file
    cannot be read, or the model knows no system prompts.
    """
    if file is None or preparer is None:
        return ()
    try:
        system = ChatMessage("system", file.read_text(encoding="utf-8").removesuffix("\n"))
        # Two chats that part with the first letter of the user's: what they share is the prefix.
        one, other = (
            preparer.prepare(GenerateRequest(messages=(system, ChatMessage("user", text))))
            for text in ("a", "b")
        )
    except (OSError, UnicodeError, SeedanceError) as error:
        exit_with(f"cannot use {file} as a public prefix: {error}; change --public-prefix-file")
    pairs = zip(one.prompt_ids, other.prompt_ids, strict=False)
    return tuple(left for left, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
