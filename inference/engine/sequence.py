"""A sequence: what the scheduler knows of one generation, and the five states it can be in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from inference.engine.plan import PlanRow
from mesh.fair_share import Account
from seedance.protocol.request import Sampling

__all__ = ["TRANSITIONS", "Pace", "Sequence", "SequenceState"]


class SequenceState(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # wants to run, holds no blocks
    PREFILL = "prefill"  # holds blocks, more than one token is not computed yet
    DECODE = "decode"  # holds blocks, only its last token is not computed yet
    PAUSED = "paused"  # may not run: no credit, or nobody to send to; may hold blocks
    ENDED = "ended"  # holds nothing


# Preemption is the way from PREFILL or DECODE back to WAITING; a paused sequence that loses its
# blocks stays PAUSED and goes to WAITING when it may run again.
TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset(
        {SequenceState.PREFILL, SequenceState.PAUSED, SequenceState.ENDED}
    ),
    SequenceState.PREFILL: frozenset(
        {SequenceState.DECODE, SequenceState.WAITING, SequenceState.PAUSED, SequenceState.ENDED}
    ),
    SequenceState.DECODE: frozenset(
        {SequenceState.WAITING, SequenceState.PAUSED, SequenceState.ENDED}
    ),
    SequenceState.PAUSED: frozenset(
        {
            SequenceState.WAITING,
            SequenceState.PREFILL,
            SequenceState.DECODE,
            SequenceState.ENDED,
        }
    ),
    SequenceState.ENDED: frozenset(),
}


@dataclass(slots=True)
class Pace:
    """When a played script's next token is due; a real model's is always due.

    `period_s` 0: as fast as possible.
    """

    due: float = 0.0
    period_s: float = 0.0

    def played(self, now: float) -> None:
        """A token was made: the next is due a period after this one was, but never in the past.

        Counting from the due time keeps the cadence; the bound keeps a sequence that was paused
        from making up for it in a burst.
        """
        if self.period_s:
            self.due = max(self.due + self.period_s, now)


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation as the scheduler sees it.

        tokens      prompt_ids + answer_ids
                    0 ........... computed ............ total
                    in KV blocks | to be computed      |

    `answer_ids` is the answer's own list: it grows as tokens are taken. `arrival` is in seconds of
    the engine's clock; `weight` is the tenant's, 0 when the opener said none; `vocab_size` is set when the request brings its own vocabulary (scripts).
    `deadline` is soft, in the same seconds; `account` is its tenant's, given by the scheduler;
    `preemptions` counts how often it lost its blocks while it ran. `batch_bound`: the batch grows no
    larger while it runs. `salt` says with whom cached blocks may be shared; `cached_tokens` is how
    much of the prompt was found in them when it first ran, `digests` are the names of its full
    blocks, `marks` those of its prompt's text (`mesh.prefixes`). The first `dropped` entries of its table have left the model's window: nobody holds them
    for it, and they are 0.
    """

    id: int
    prompt_ids: list[int]
    answer_ids: list[int]
    arrival: float
    tenant: str = ""
    weight: float = 0.0
    priority: int = 5
    deadline: float = math.inf
    salt: str = ""
    marks: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    min_tokens: int = 0
    ending_ids: tuple[int, ...] = ()
    vocab_size: int | None = None
    batch_bound: int | None = None
    pace: Pace = field(default_factory=Pace)
    computed: int = 0
    block_table: list[int] = field(default_factory=list)
    dropped: int = 0
    account: Account = field(default_factory=Account)
    last_step: int = 0
    preemptions: int = 0
    cached_tokens: int | None = None
    digests: list[bytes] = field(default_factory=list)
    _state: SequenceState = SequenceState.WAITING

    @property
    def state(self) -> SequenceState:
        """Where it stands."""
        return self._state

    def move(self, state: SequenceState) -> None:
        """The one way to change state; a move that the table lacks is a fault of ours."""
        assert state in TRANSITIONS[self._state], f"{self._state} -> {state}"  # noqa: S101
        self._state = state

    @property
    def total(self) -> int:
        """Tokens known: prompt and answer."""
        return len(self.prompt_ids) + len(self.answer_ids)

    @property
    def remaining(self) -> int:
        """Tokens known but not computed."""
        return self.total - self.computed

    @property
    def held(self) -> list[int]:
        """The blocks of its table that it holds."""
        return self.block_table[self.dropped :]

    def tokens(self, start: int, end: int) -> list[int]:
        """The ids at positions `start` to `end`, all of them known."""
        prompt = len(self.prompt_ids)
        if start >= prompt:
            return self.answer_ids[start - prompt : end - prompt]
        if end <= prompt:
            return self.prompt_ids[start:end]
        return self.prompt_ids[start:] + self.answer_ids[: end - prompt]

    def row(self, count: int) -> PlanRow:
        """The plan row that computes the next `count` tokens; the last one known also samples."""
        start, end = self.computed, self.computed + count
        position = len(self.answer_ids)
        return PlanRow(
            sequence_id=self.id,
            token_ids=self.tokens(start, end),
            start=start,
            block_table=self.block_table,
            sample=end == self.total,
            sampling=self.sampling,
            seed=self.seed,
            answer_position=position,
            answer_ids=self.answer_ids,
            prompt_ids=self.prompt_ids,
            banned_ids=self.ending_ids if position < self.min_tokens else (),
            vocab_size=self.vocab_size,
        )
