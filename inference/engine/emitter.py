"""What leaves the engine after a step: for each call its beginnings, tokens and ends."""

from __future__ import annotations

from inference.engine.generation import Directory, Generation
from inference.engine.messages import (
    Accepted,
    Done,
    EndRecord,
    Failed,
    StepOutput,
    StreamKey,
    Tokens,
)
from seedance.protocol.errors import SeedanceError

__all__ = ["Emitter"]


class Emitter:
    """Collects outputs between two steps; sends nothing that credit does not cover."""

    def __init__(self, directory: Directory) -> None:
        self.output = StepOutput()
        self._directory = directory
        self._touched: dict[int, Generation] = {}

    def touch(self, generation: Generation) -> None:
        """It may have something to send."""
        self._touched[generation.sequence.id] = generation

    def forget(self, generation: Generation) -> None:
        """It has nothing to send any more."""
        self._touched.pop(generation.sequence.id, None)

    def accept(self, generation: Generation) -> None:
        """Its listener is told that it was taken."""
        stream = generation.stream
        assert stream is not None  # noqa: S101
        self.output.call(stream.call).accepted.append(
            Accepted(
                stream=stream,
                adopted_batch_size=generation.promise.batch_size,
                token_quota=generation.promise.token_quota,
                prompt_tokens=generation.usage().prompt_tokens,
                from_token=generation.sent,
            )
        )

    def fail(self, stream: StreamKey, error: SeedanceError) -> None:
        """An instruction of this stream was refused, or it lost its generation."""
        self.output.call(stream.call).ends.append(Failed(stream, error))

    def end(self, generation: Generation, stream: StreamKey) -> None:
        """Its listener is told that it is over."""
        generation.end_sent = True
        self.output.call(stream.call).ends.append(self._end(generation, stream))

    def record_end(self, generation: Generation) -> None:
        """It has ended: for traces and metrics."""
        opened = generation.opened
        self.output.ended.append(
            EndRecord(
                generation=opened.generation,
                tenant=opened.tenant,
                traceparent=opened.traceparent,
                usage=generation.usage(),
                marks=generation.marks,
                reason=generation.reason,
                error=generation.error,
            )
        )

    def collect(self) -> StepOutput:
        """Everything that is new since the last time."""
        touched, self._touched = self._touched, {}
        for generation in touched.values():
            if generation.stream is not None and not generation.end_sent:
                self._emit(generation, generation.stream)
            if generation.ended and not generation.opened.lasting:
                # Nobody can come back for it.
                self._directory.forget(generation)
        output, self.output = self.output, StepOutput()
        return output

    def _emit(self, generation: Generation, stream: StreamKey) -> None:
        known, limit = len(generation.answer.ids), generation.limit
        end = known if limit is None else min(known, limit)
        complete = generation.ended and end == known
        if end > generation.sent or complete:
            piece = generation.answer.piece(generation.sent, end)
            generation.sent = end
            if piece.ids or piece.text:
                self.output.call(stream.call).tokens.append(
                    Tokens(stream, piece, generation.marks, generation.spell)
                )
        if complete:
            self.end(generation, stream)

    def _end(self, generation: Generation, stream: StreamKey) -> Done | Failed:
        usage = generation.usage()
        if generation.reason is not None:
            return Done(stream, generation.reason, usage, generation.marks)
        assert generation.error is not None  # noqa: S101
        return Failed(stream, generation.error, usage)
