"""The running batch: who is prefilled, who decodes, and whose next token is not due yet."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain

from inference.engine.sequence import Sequence, SequenceState

__all__ = ["Batch"]

# Stale entries of the heap, of sequences that left before they were due, that are never too many.
STALE_MAX = 64


class Batch:
    """Sequences in PREFILL and DECODE. A step looks only at those that it can run.

    `prefilling` is in order of admission. A paced sequence between two tokens lies in a heap by
    when it is due, so that a thousand slow scripts cost a step nothing.
    """

    def __init__(self) -> None:
        self.prefilling: dict[int, Sequence] = {}
        self._decoding: dict[int, Sequence] = {}
        self._sleeping: dict[int, Sequence] = {}
        self._due: list[tuple[float, int]] = []
        self._bounds: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.prefilling) + len(self._decoding) + len(self._sleeping)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self.prefilling.values(), self._decoding.values(), self._sleeping.values())

    def bound(self, most: int) -> int:
        """How many may run: `most`, or what somebody who runs was promised."""
        return min(most, *self._bounds.values()) if self._bounds else most

    def add(self, sequence: Sequence) -> None:
        """It runs, as its state says."""
        if sequence.batch_bound is not None:
            self._bounds[sequence.id] = sequence.batch_bound
        if sequence.state is SequenceState.PREFILL:
            self.prefilling[sequence.id] = sequence
        else:
            self._decoding[sequence.id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """It runs no more; its state still says where it was."""
        self._bounds.pop(sequence.id, None)
        if sequence.state is SequenceState.PREFILL:
            del self.prefilling[sequence.id]
        elif self._decoding.pop(sequence.id, None) is None:
            del self._sleeping[sequence.id]

    def prefilled(self, sequence: Sequence) -> None:
        """All but its last token is computed: it decodes."""
        del self.prefilling[sequence.id]
        sequence.move(SequenceState.DECODE)
        self._decoding[sequence.id] = sequence

    def decodable(self, now: float) -> list[Sequence]:
        """Those whose next token is due, in no order that matters."""
        self._wake(now)
        ready: list[Sequence] = []
        early: list[Sequence] = []
        for sequence in self._decoding.values():
            (ready if sequence.pace.due <= now else early).append(sequence)
        for sequence in early:
            self._sleep(sequence)
        return ready

    def next_due(self, now: float) -> float | None:
        """When a sequence that is not due yet will be; None: there is none."""
        self.decodable(now)
        return self._due[0][0] if self._due else None

    def check(self) -> None:
        """Assert that each is where its state says."""
        assert all(s.state is SequenceState.PREFILL for s in self.prefilling.values())  # noqa: S101
        decoding = chain(self._decoding.values(), self._sleeping.values())
        assert all(s.state is SequenceState.DECODE for s in decoding)  # noqa: S101
        assert not self._decoding.keys() & self._sleeping.keys()  # noqa: S101
        entries = {(s.pace.due, s.id) for s in self._sleeping.values()}
        assert entries <= set(self._due)  # noqa: S101

    def _sleep(self, sequence: Sequence) -> None:
        del self._decoding[sequence.id]
        self._sleeping[sequence.id] = sequence
        heapq.heappush(self._due, (sequence.pace.due, sequence.id))

    def _wake(self, now: float) -> None:
        if len(self._due) > 2 * len(self._sleeping) + STALE_MAX:
            self._due = [(s.pace.due, s.id) for s in self._sleeping.values()]
            heapq.heapify(self._due)
        due = self._due
        while due and (due[0][0] <= now or due[0][1] not in self._sleeping):
            _, sequence_id = heapq.heappop(due)
            sequence = self._sleeping.get(sequence_id)
            # It may have left, come back and be due later than this entry says.
            if sequence is not None and sequence.pace.due <= now:
                del self._sleeping[sequence_id]
                self._decoding[sequence_id] = sequence
