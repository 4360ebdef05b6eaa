"""A generation: the identity that outlives calls, and the directory of those that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inference.engine.answer import Answer, FinishReason
from inference.engine.messages import Open, StreamKey
from inference.engine.negotiation import Promise
from inference.engine.sequence import Sequence, SequenceState
from inference.engine.timing import Marks
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import Usage

__all__ = ["Directory", "Generation"]


@dataclass(slots=True, eq=False)
class Generation:
    """One generation: who listens, how far it has sent, how far it may go.

        tokens   0 ........... sent ........... len(answer.ids) ........ limit
                 with the       known, not       may be computed
                 listener       yet sent         and sent

    `limit` is the credit as a token index (None: unlimited). `stream` None: no call is attached,
    since `detached_at`. `reason` or `error` is set when it has ended, at `marks.end`. `spell` is how
    to write ids in log-probabilities, None when none were asked.
    """

    opened: Open
    epoch: int
    sequence: Sequence
    answer: Answer
    promise: Promise
    stream: StreamKey | None
    sent: int
    limit: int | None
    spell: Callable[[int], bytes] | None = None
    detached_at: float = 0.0
    reason: FinishReason | None = None
    error: SeedanceError | None = None
    end_sent: bool = False

    @property
    def marks(self) -> Marks:
        """Where its time went."""
        return self.opened.marks

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.sequence.state is SequenceState.ENDED

    @property
    def has_credit(self) -> bool:
        """Whether another token may be made."""
        return self.limit is None or len(self.answer.ids) < self.limit

    def usage(self) -> Usage:
        """What was computed here: a forced prefix was counted where it was chosen."""
        computed = len(self.answer.ids) - len(self.opened.forced_ids)
        counted = self.opened.prepared.counted
        here = (len(self.sequence.prompt_ids), self.sequence.cached_tokens or 0)
        prompt, cached = counted() if counted else here
        return Usage(prompt, cached, max(computed, 0))

    def grant(self, base: int, credit: int | None) -> None:
        """The credit of a new listener who has `base` tokens."""
        self.limit = None if credit is None else base + credit

    def forgotten_at(self, ttl_s: float) -> float | None:
        """When its transcript may be dropped; None while it is heard and not over."""
        if self.stream is not None and not self.ended:
            return None
        since = self.detached_at if self.stream is None else 0.0
        return max(since, self.marks.end or 0.0) + ttl_s


class Directory:
    """The generations that exist here: by name, by listener, by sequence."""

    def __init__(self) -> None:
        self._by_name: dict[str, Generation] = {}
        self._by_sequence: dict[int, Generation] = {}
        self._by_call: dict[int, dict[int, Generation]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Generation]:
        return iter(list(self._by_name.values()))

    def add(self, generation: Generation) -> None:
        """A new one, heard by its opener."""
        self._by_name[generation.opened.generation] = generation
        self._by_sequence[generation.sequence.id] = generation
        stream = generation.stream
        assert stream is not None  # noqa: S101
        self._by_call.setdefault(stream.call, {})[stream.stream] = generation

    def named(self, name: str) -> Generation | None:
        """By its name across calls."""
        return self._by_name.get(name)

    def of_sequence(self, sequence_id: int) -> Generation:
        """By its sequence; it must exist."""
        return self._by_sequence[sequence_id]

    def at(self, stream: StreamKey) -> Generation | None:
        """The one that this stream of a call hears, or heard to its end."""
        return self._by_call.get(stream.call, {}).get(stream.stream)

    def of_call(self, call: int) -> list[Generation]:
        """Those that a call hears."""
        return list(self._by_call.get(call, {}).values())

    def listen(self, generation: Generation, stream: StreamKey | None) -> None:
        """Hand a generation to another stream, or to nobody."""
        old = generation.stream
        if old is not None:
            streams = self._by_call[old.call]
            del streams[old.stream]
            if not streams:
                del self._by_call[old.call]
        generation.stream = stream
        if stream is not None:
            self._by_call.setdefault(stream.call, {})[stream.stream] = generation

    def forget(self, generation: Generation) -> None:
        """It is no more."""
        self.listen(generation, None)
        del self._by_name[generation.opened.generation]
        del self._by_sequence[generation.sequence.id]
