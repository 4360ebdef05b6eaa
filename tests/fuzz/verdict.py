"""What was sent and what was wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["Verdict"]

FAULTS_SHOWN_MAX = 20
SHOWN_CHARACTERS = 1_000

T = TypeVar("T")


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

    def add(self, other: Verdict) -> None:
        """What another one has counted and found."""
        self.sent.update(other.sent)
        self.answers.update(other.answers)
        self.faulty += other.faulty
        self.faults += other.faults[: FAULTS_SHOWN_MAX - len(self.faults)]

    @contextmanager
    def judging(self, what: T, shown: Callable[[T], str] = repr) -> Iterator[None]:
        """What fails within is a fault of this input; the next one is tried all the same."""
        try:
            yield
        except (AssertionError, BaseExceptionGroup, OSError) as error:
            self.fault(f"{type(error).__name__}: {str(error)[:SHOWN_CHARACTERS]}\n{shown(what)}")
