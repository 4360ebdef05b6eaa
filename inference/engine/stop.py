"""Literal stop strings over text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


def _failure_table(pattern: str) -> list[int]:
    """For each prefix of the pattern, the length of its longest proper prefix that is a suffix too.

    Knuth, Morris, Pratt: "Fast Pattern Matching in Strings", 1977.
    """
    table = [0] * len(pattern)
    matched = 0
    for index in range(1, len(pattern)):
        while matched and pattern[index] != pattern[matched]:
            matched = table[matched - 1]
        if pattern[index] == pattern[matched]:
            matched += 1
        table[index] = matched
    return table


class _Pattern:
    """One stop string and how much of it the text's end matches."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._table = _failure_table(text)

    def advance(self, character: str) -> bool:
        """Take one character; true when the stop string is complete."""
        matched = self.matched
        while matched and character != self.text[matched]:
            matched = self._table[matched - 1]
        if character == self.text[matched]:
            matched += 1
        self.matched = matched
        return matched == len(self.text)


class StopMatcher:
    """Holds back only what may still become a stop string: a suffix that is a proper prefix of one.

    The stop string that is complete first ends the text; of several complete at the same character
    the longest counts. Neither it nor what follows is part of the text. The result does not depend
    on how the text was cut. Linear in the text, times the number of stop strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [_Pattern(stop) for stop in stops]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may leave, and whether a stop string was met (then nothing may follow)."""
        if not self._held and self._first_characters.isdisjoint(text):
            return text, False
        text = self._held + text
        for index in range(len(self._held), len(text)):
            complete = [p for p in self._patterns if p.advance(text[index])]
            if complete:
                self._held = ""
                longest = max(len(p.text) for p in complete)
                return text[: index + 1 - longest], True
        keep = max((p.matched for p in self._patterns), default=0)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """The end without a stop string: what was held is text after all."""
        held, self._held = self._held, ""
        return held
