"""What the engine hands to a runner for one step, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field

from seedance.protocol.request import Sampling

__all__ = ["BlockCopy", "PlanRow", "Sampled", "SampledLogprob", "StepPlan"]


# Rows and choices are made once per token; a frozen dataclass would cost three times as much.
@dataclass(slots=True)
class PlanRow:
    """One sequence's part of a step: `token_ids` are computed at positions `start`, `start+1`, ….

        positions   0 ......... start ............. start+len(token_ids)
                    in KV blocks | computed now     |
        block_table covers ceil((start + len(token_ids)) / block_size) blocks from position 0;
                    those that left a sliding window are 0 there, and not to be read

    `sample`: the logits of the last position choose the next token (false for a prefill chunk that
    does not reach the prompt's end). `answer_position` is the index in the answer of the token
    chosen now: with seed and choice it fixes the random number, so a continuation elsewhere
    chooses the same. `answer_ids` are the answer's ids so far (forced prefix included) and
    `prompt_ids` the prompt's, for penalties; both are the sequence's own lists, not copies: a
    runner reads them during the step only. `banned_ids` may not be chosen (end-of-text before
    `min_tokens`). `vocab_size` is set when the request brought a vocabulary of its own (a script);
    a model's runner has its own and ignores it.
    """

    sequence_id: int
    token_ids: list[int]
    start: int
    block_table: list[int]
    sample: bool
    sampling: Sampling
    seed: int
    answer_position: int
    answer_ids: list[int]
    prompt_ids: list[int]
    banned_ids: tuple[int, ...] = ()
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block's keys and values on their way into a slot of the CPU tier (`save`), or back."""

    block: int
    slot: int
    save: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The rows of one step: decodes first, then prefill chunks.

    `copies` come before all rows, in their order: a block is saved before somebody overwrites it
    and loaded before somebody reads it. They are to be made whatever becomes of the rows.
    """

    rows: list[PlanRow]
    copies: list[BlockCopy] = field(default_factory=list)

    @property
    def token_count(self) -> int:
        """Tokens computed in the step."""
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class SampledLogprob:
    """A token id with its natural log-probability."""

    token_id: int
    logprob: float


@dataclass(slots=True)
class Sampled:
    """The token chosen for a row that asked, with log-probabilities when its sampling asked."""

    sequence_id: int
    token_id: int
    logprob: float | None = None
    top: tuple[SampledLogprob, ...] = ()
