"""What waits to be written on one call: the mailbox between the engine's thread and the event loop."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from inference.engine.answer import Piece
from inference.engine.messages import CallOutput, Failed, Tokens

__all__ = ["Outbox", "OutboxBatch"]

# A call whose other end lags by this much is held: its sequences pause until it has caught up.
TOKENS_MAX = 16_384
TEXT_BYTES_MAX = 1024 * 1024
# Refused instructions that nobody reads: over it the call's own instructions wait.
REFUSALS_MAX = 4_096
# Most text in one message; the transport's bound is far above, for one entry may be large.
MESSAGE_TEXT_BYTES_MAX = 2 * 1024 * 1024


@dataclass(slots=True)
class OutboxBatch:
    """What the next message holds; `wall_ms` is when its newest tokens were made."""

    output: CallOutput = field(default_factory=CallOutput)
    wall_ms: int = 0

    def __bool__(self) -> bool:
        output = self.output
        return bool(output.accepted or output.tokens or output.ends)


def _merged(runs: list[Tokens]) -> Tokens:
    """Consecutive runs of one stream as one: what lags comes in larger pieces, never dropped."""
    first = runs[0]
    if len(runs) == 1:
        return first
    pieces = [run.piece for run in runs]
    piece = Piece(
        token_index=first.piece.token_index,
        ids=[token_id for p in pieces for token_id in p.ids],
        offset=first.piece.offset,
        text=b"".join([p.text for p in pieces]),
        sampled=[sampled for p in pieces for sampled in p.sampled],
        lengths=[length for p in pieces for length in p.lengths_of_ids()],
    )
    return Tokens(first.stream, piece, first.marks, first.token_bytes)


class Outbox:
    """One call's unwritten output. Thread-safe; bounded, because a full one pauses its streams.

    A reader that keeps up takes each step's output as it was made; for one that lags, a stream's
    runs merge into one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: dict[int, list[Tokens]] = {}
        self._batch = OutboxBatch()
        self._token_count = 0
        self._text_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether its streams had better pause."""
        return self._token_count > TOKENS_MAX or self._text_bytes > TEXT_BYTES_MAX

    @property
    def has_room_for_refusals(self) -> bool:
        """Whether the call's next instruction may be read."""
        return len(self._batch.output.ends) < REFUSALS_MAX

    def put(self, output: CallOutput, wall_ms: int) -> None:
        """Add what one step has for the call."""
        with self._lock:
            batch = self._batch
            batch.wall_ms = wall_ms
            batch.output.accepted += output.accepted
            batch.output.ends += output.ends
            for tokens in output.tokens:
                self._tokens.setdefault(tokens.stream.stream, []).append(tokens)
                self._token_count += len(tokens.piece.ids)
                self._text_bytes += len(tokens.piece.text)

    def refuse(self, failed: Failed) -> None:
        """Add the answer to an instruction that did not reach the engine."""
        with self._lock:
            self._batch.output.ends.append(failed)

    def take(self) -> OutboxBatch:
        """What to write next, as much as one message should hold; falsy when there is nothing."""
        with self._lock:
            batch, self._batch = self._batch, OutboxBatch(wall_ms=self._batch.wall_ms)
            text_bytes = 0
            while self._tokens and text_bytes < MESSAGE_TEXT_BYTES_MAX:
                stream = next(iter(self._tokens))
                tokens = _merged(self._tokens.pop(stream))
                batch.output.tokens.append(tokens)
                self._token_count -= len(tokens.piece.ids)
                self._text_bytes -= len(tokens.piece.text)
                text_bytes += len(tokens.piece.text)
            if self._tokens:
                # An end must not overtake its stream's tokens.
                ends = batch.output.ends
                batch.output.ends = [e for e in ends if e.stream.stream not in self._tokens]
                self._batch.output.ends = [e for e in ends if e.stream.stream in self._tokens]
            return batch
