"""A step's plan as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.plan import PlanRow, StepPlan
from inference.model.attention import AttentionGroup, Grouping
from inference.model.config import ModelConfig
from inference.model.linear import ROWS_MIN

__all__ = ["StepBatch", "build_batch"]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All rows' tokens, concatenated: T tokens, at least `ROWS_MIN`.

    `token_ids`, `positions`, `slots`: [T]; slots say where in the cache keys and values go.
    `groups` [layers]: each layer's attention groups, the same list for layers with equal windows.
    `samplers` are the rows whose next token is chosen, `last_tokens` [S] their last tokens' places,
    S at least `ROWS_MIN`: surplus places repeat the last one. A token alone is computed twice.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    groups: list[list[AttentionGroup]]
    samplers: list[PlanRow]
    last_tokens: Tensor


def build_batch(
    plan: StepPlan, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device
) -> StepBatch:
    """Lay a plan out; `dtype` is the type that attention computes in."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    samplers: list[PlanRow] = []
    last_tokens: list[int] = []
    for row in plan.rows:
        span = range(row.start, row.start + len(row.token_ids))
        token_ids += row.token_ids
        positions += span
        table = row.block_table
        slots += [table[p // block_size] * block_size + p % block_size for p in span]
        if row.sample:
            samplers.append(row)
            last_tokens.append(len(token_ids) - 1)
    for column in (token_ids, positions, slots, last_tokens):
        _pad(column)
    by_window = {
        window: Grouping(window, config.group, block_size, dtype, device)(plan.rows)
        for window in set(config.layer_windows)
    }
    return StepBatch(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        groups=[by_window[window] for window in config.layer_windows],
        samplers=samplers,
        last_tokens=torch.tensor(last_tokens, dtype=torch.long, device=device),
    )


def _pad(column: list[int]) -> None:
    if column:
        column += [column[-1]] * (ROWS_MIN - len(column))
