"""A runner whose next token depends on all tokens before it, read through the block tables."""

from __future__ import annotations

import hashlib

from inference.engine.plan import PlanRow, Sampled, StepPlan
from inference.engine.runner import ModelInfo

__all__ = ["VOCAB", "FakeRunner", "fake_info"]

VOCAB = 256


def fake_info(
    *,
    total_blocks: int = 1024,
    block_size: int = 16,
    context_length: int = 4096,
    eos: frozenset[int] = frozenset(),
) -> ModelInfo:
    """What the fake serves."""
    return ModelInfo("fake", (), context_length, VOCAB, eos, block_size, total_blocks)


class FakeRunner:
    """Keeps every computed token in its physical slot, as a model keeps keys and values.

    A token is a hash of the context that the block table leads to: one wrong table, one block given
    to two sequences or one token not computed again after a preemption changes the text.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self.slots: dict[tuple[int, int], int] = {}
        self.plans: list[StepPlan] = []
        self.released: list[int] = []
        self.fail_next = False

    @property
    def info(self) -> ModelInfo:
        """What is served."""
        return self._info

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute the rows."""
        self.plans.append(plan)
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the model stumbles")
        for row in plan.rows:
            for offset, token in enumerate(row.token_ids):
                self.slots[self._slot(row, row.start + offset)] = token
        return [Sampled(row.sequence_id, self._next(row), -1.0) for row in plan.rows if row.sample]

    def release(self, sequence_id: int) -> None:
        """It has ended."""
        self.released.append(sequence_id)

    def close(self) -> None:
        """Nothing is held."""

    def _slot(self, row: PlanRow, position: int) -> tuple[int, int]:
        block, inside = divmod(position, self._info.block_size)
        return row.block_table[block], inside

    def _next(self, row: PlanRow) -> int:
        end = row.start + len(row.token_ids)
        context = [self.slots[self._slot(row, position)] for position in range(end)]
        text = f"{context}/{row.seed}/{row.answer_position}".encode()
        token = hashlib.sha256(text).digest()[0]
        return next(t % VOCAB for t in range(token, token + VOCAB) if t not in row.banned_ids)
