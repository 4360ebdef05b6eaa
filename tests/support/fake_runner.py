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
    sliding_window: int | None = None,
    cold_blocks: int = 0,
) -> ModelInfo:
    """What the fake serves."""
    return ModelInfo(
        "fake",
        (),
        context_length,
        VOCAB,
        eos,
        block_size,
        total_blocks,
        sliding_window=sliding_window,
        cold_blocks=cold_blocks,
    )


class FakeRunner:
    """Keeps what it makes of every token in its physical slot, as a model keeps keys and values.

    A token is a hash of the context that the block table leads to: one wrong table, one block given
    to two sequences or one token not computed again after a preemption changes the text. With a
    window what is kept depends on the window's contents, so that a beginning that was taken up in
    the wrong place is seen long after it has left the window.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self.blocks: dict[int, dict[int, int]] = {}
        self.cold: dict[int, dict[int, int]] = {}
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
        for copy in plan.copies:
            assert copy.slot < self._info.cold_blocks
            if copy.save:
                self.cold[copy.slot] = dict(self.blocks[copy.block])
            else:
                self.blocks[copy.block] = dict(self.cold[copy.slot])
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the model stumbles")
        for row in plan.rows:
            for offset, token in enumerate(row.token_ids):
                self._keep(row, row.start + offset, token)
        return [Sampled(row.sequence_id, self._next(row), -1.0) for row in plan.rows if row.sample]

    def release(self, sequence_id: int) -> None:
        """It has ended."""
        self.released.append(sequence_id)

    def close(self) -> None:
        """Nothing is held."""

    def _keep(self, row: PlanRow, position: int, token: int) -> None:
        if self._info.sliding_window is not None:
            token = hash((token, *self._context(row, position)))
        block, inside = divmod(position, self._info.block_size)
        self.blocks.setdefault(row.block_table[block], {})[inside] = token

    def _context(self, row: PlanRow, end: int) -> list[int]:
        """What is kept of the tokens that one at `end` reads, itself excluded."""
        window, size = self._info.sliding_window, self._info.block_size
        places = range(0 if window is None else max(end + 1 - window, 0), end)
        return [self.blocks[row.block_table[p // size]][p % size] for p in places]

    def _next(self, row: PlanRow) -> int:
        # The last token is computed by now, and read by the choice of the next.
        end = row.start + len(row.token_ids)
        context = self._context(row, end)
        text = f"{context}/{row.seed}/{row.answer_position}".encode()
        token = hashlib.sha256(text).digest()[0]
        return next(t % VOCAB for t in range(token, token + VOCAB) if t not in row.banned_ids)
