"""What was sent and what was wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Verdict"]

FAULTS_SHOWN_MAX = 20
SHOWN_CHARACTERS = 1_000


@dataclass
class Verdict:
    """Counts of what was sent, by kind, and of what came back; the first few faults."""

    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    faulty: int = 0

    def fault(self, what: str) -> None:
        """Something that must not be."""
        self.faulty += 1
        if len(self.faults) < FAULTS_SHOWN_MAX:
            self.faults.append(what[: 2 * SHOWN_CHARACTERS])

    @contextmanager
    def judging(self, what: object) -> Iterator[None]:
        """What fails within is a fault of this input; the next one is tried all the same."""
        try:
            yield
        except (AssertionError, BaseExceptionGroup, OSError) as error:
            self.fault(f"{type(error).__name__}: {str(error)[:SHOWN_CHARACTERS]}\n{what!r}")
