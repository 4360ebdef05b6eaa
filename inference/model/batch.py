"""A step's plan as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.plan import PlanRow, StepPlan
from inference.model.attention import AttentionBackend, Layout, TiledAttention
from inference.model.config import ModelConfig
from inference.model.linear import ROWS_MIN
from inference.model.staging import send

__all__ = ["StepBatch", "build_batch"]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All rows' tokens, concatenated: T tokens, at least `ROWS_MIN`.

    `token_ids`, `positions`, `slots`: [T]; slots say where in the cache keys and values go.
    `layouts` [layers]: how each layer reads the cache, the same one for layers with equal windows.
    `samplers` are the rows whose next token is chosen, `last_tokens` [S] their last tokens' places,
    S at least `ROWS_MIN`: surplus places repeat the last one. A token alone is computed twice.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    layouts: list[Layout]
    samplers: list[PlanRow]
    last_tokens: Tensor


def build_batch(
    plan: StepPlan,
    config: ModelConfig,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    attention: AttentionBackend | None = None,
) -> StepBatch:
    """Lay a plan out; `dtype` is the type that attention computes in.

    On a GPU the copies are only begun: whoever reads them on another stream has to wait for this one.
    """
    backend = attention or TiledAttention(config.group, block_size, dtype, device)
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
    by_window = {w: backend.lay_out(plan.rows, w) for w in set(config.layer_windows)}
    return StepBatch(
        token_ids=send(token_ids, device),
        positions=send(positions, device),
        slots=send(slots, device),
        layouts=[by_window[window] for window in config.layer_windows],
        samplers=samplers,
        last_tokens=send(last_tokens, device),
    )


def _pad(column: list[int]) -> None:
    if column:
        column += [column[-1]] * (ROWS_MIN - len(column))
