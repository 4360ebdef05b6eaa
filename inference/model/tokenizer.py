"""Text into token ids, with control tokens where the template put them and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import Metaspace

__all__ = ["TextEncoder", "guard_mark"]

# Private-use characters: no text means anything by them, and there are thousands to choose from.
MARKS = range(0xE000, 0xF900)


def guard_mark(texts: Iterable[str]) -> str:
    """A private-use character that none of `texts` contains."""
    used = set().union(*texts)
    return next(chr(code) for code in MARKS if chr(code) not in used)


class TextEncoder:
    """Encodes text; safe to use from several threads.

    A prompt is the template's markers around what people wrote. Text that spells a marker
    (`<|im_end|>`) must not become one, or a user could end a turn and speak as the system. So
    contents are *guarded* before rendering: every character of such a spelling is followed by a
    mark, by which `encode_rendered` knows it from the template's own, and takes it out again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._first = _without_control(tokenizer)
        self._later = _without_control(tokenizer)
        pre_tokenizer = self._later.pre_tokenizer
        # This kind puts a space before a text's first word, and only there.
        if isinstance(pre_tokenizer, Metaspace) and pre_tokenizer.prepend_scheme == "first":
            self._later.pre_tokenizer = Metaspace(prepend_scheme="never")
        self._control = {
            token.content: index
            for index, token in tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content
        }
        spellings = sorted(self._control, key=len, reverse=True)
        self._spelling = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")
        self._begin: list[int] = tokenizer.encode("", add_special_tokens=True).ids

    def encode_text(self, text: str) -> list[int]:
        """A plain prompt: begin-of-text where the model wants it, no other control token."""
        return self._begin + _encode(self._first, text)

    def guard(self, content: str, mark: str) -> str:
        """`content` with `mark` after each character of everything that spells a control token."""
        return self._spelling.sub(lambda found: mark.join([*found[0], ""]), content)

    def encode_rendered(self, text: str, mark: str) -> list[int]:
        """A rendered conversation whose contents were guarded with `mark`."""
        ids: list[int] = []
        end = 0
        for found in self._spelling.finditer(text):
            # Only a spelling of one character can be found although it is guarded.
            if text.startswith(mark, found.end()):
                continue
            ids += self._encode_between(text, end, found.start(), mark)
            ids.append(self._control[found[0]])
            end = found.end()
        return ids + self._encode_between(text, end, len(text), mark)

    def _encode_between(self, text: str, start: int, end: int, mark: str) -> list[int]:
        tokenizer = self._later if start else self._first
        return _encode(tokenizer, text[start:end].replace(mark, ""))


def _without_control(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that encodes the spelling of a control token as ordinary text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = True
    return copy


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids if text else []
    return ids
