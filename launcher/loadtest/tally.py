"""What a run has seen, and one answer on its way into it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from time import perf_counter

from launcher.loadtest.prompts import Prompt, Prompts
from launcher.loadtest.sketch import Sketch

__all__ = ["UNFINISHED", "Answer", "Judge", "Tally"]

# Codes of what never came to be an answer, beside the servers' own.
UNFINISHED = "unfinished"


class Tally:
    """The counts of one target; those of several rounds can be merged.

    `exact` and `inexact` are answers that were compared; `answered` counts all that ended well. Slow
    readers' times are their own doing and stay out of `ttft`, `gap` and `total`.
    """

    def __init__(self) -> None:
        self.handshake, self.ttft, self.gap, self.total = Sketch(), Sketch(), Sketch(), Sketch()
        self.back = Sketch()
        self.errors: Counter[str] = Counter()
        # Tokens by second of the run.
        self.seconds: Counter[int] = Counter()
        self.asked = self.answered = self.exact = self.inexact = 0
        self.tokens = 0
        # Those within the run itself, without what came while it drained.
        self.in_time = 0
        self.elapsed_s = 0.0
        self.cpu_s = 0.0

    def merge(self, other: Tally) -> None:
        """Add another round's."""
        for name in ("handshake", "ttft", "gap", "total", "back"):
            getattr(self, name).merge(getattr(other, name))
        self.errors.update(other.errors)
        self.seconds.update(other.seconds)
        for name in (
            "asked",
            "answered",
            "exact",
            "inexact",
            "tokens",
            "in_time",
            "elapsed_s",
            "cpu_s",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Judge:
    """Says whether an answer's text is right: as announced, or as the prompt's first answer."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._first: dict[int, str] = {}

    def verdict(self, prompt: Prompt, text: list[bytes]) -> bool | None:
        """None: nothing is known about this prompt's answer."""
        if not (self._prompts.known or self._prompts.comparable):
            return None
        digest = hashlib.sha256(b"".join(text)).hexdigest()
        if prompt.expected:
            return digest == prompt.expected
        if id(prompt) not in self._first:
            self._first[id(prompt)] = digest
            return None
        return digest == self._first[id(prompt)]


class Answer:
    """One request: `due` is when it was to be sent, from which all waiting counts.

    Were it counted from the moment of sending, a server that stalls would also stall its own
    measurement (coordinated omission).
    """

    __slots__ = (
        "_judge",
        "_last",
        "_on_end",
        "_started",
        "_tally",
        "_text",
        "due",
        "ended",
        "prompt",
        "size",
        "slow",
        "tokens",
    )

    def __init__(
        self,
        prompt: Prompt,
        due: float,
        tally: Tally,
        judge: Judge,
        on_end: Callable[[], None],
        started: float,
    ) -> None:
        self.prompt = prompt
        self.due = due
        self.slow = False
        self.ended = False
        self.tokens = 0
        # Bytes of text that came.
        self.size = 0
        self._last = 0.0
        self._text: list[bytes] = []
        self._tally, self._judge, self._on_end, self._started = tally, judge, on_end, started
        tally.asked += 1

    def heard(self, text: bytes, tokens: int, now: float) -> None:
        """A piece of text came."""
        if not self.slow:
            if self._last:
                self._tally.gap.add(now - self._last)
            else:
                self._tally.ttft.add(now - self.due)
        self._last = now
        self._text.append(text)
        self.size += len(text)
        self.tokens += tokens
        self._tally.tokens += tokens
        self._tally.seconds[int(now - self._started)] += tokens

    def recount(self, tokens: int) -> None:
        """The server's own count, which replaces one of the pieces that came."""
        off, self.tokens = tokens - self.tokens, tokens
        self._tally.tokens += off
        self._tally.seconds[int(perf_counter() - self._started)] += off

    def end(self, code: str = "") -> None:
        """It is over; `code` says why it is not whole."""
        if self.ended:
            return
        self.ended = True
        if code:
            self._tally.errors[code] += 1
        else:
            self._well()
        self._text.clear()
        self._on_end()

    def _well(self) -> None:
        self._tally.answered += 1
        if not self.slow:
            self._tally.total.add(perf_counter() - self.due)
        verdict = self._judge.verdict(self.prompt, self._text)
        if verdict is not None:
            self._tally.exact += verdict
            self._tally.inexact += not verdict
