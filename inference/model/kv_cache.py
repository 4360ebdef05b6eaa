"""Keys and values of all sequences, in blocks that the engine hands out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from inference.engine.plan import BlockCopy
from inference.model.config import ModelConfig

__all__ = ["KvCache", "blocks_that_fit", "kv_dtype"]

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
GIB = 1 << 30


def kv_dtype(name: str, compute: torch.dtype) -> torch.dtype:
    """The type of a cache called `name`; `auto` is the type that the model computes in."""
    return compute if name == "auto" else _DTYPES[name]


def blocks_that_fit(config: ModelConfig, block_size: int, dtype: torch.dtype, gib: float) -> int:
    """How many blocks `gib` GiB hold: at least one, unless it is 0."""
    block_bytes = config.layer_count * block_size * config.kv_token_size * dtype.itemsize
    return max(1, int(gib * GIB) // block_bytes) if gib else 0


class KvCache:
    """One pool of shape [layers, blocks * block_size, 2 * kv_heads * head_dim].

        slot = block * block_size + offset in block
        row  = | keys: kv_heads x head_dim | values: kv_heads x head_dim |

    A token's keys and values are neighbours, so that a step writes a layer with one copy and
    reads a block as one piece. Which block belongs to whom is the engine's business.

    `cold_blocks` more have room in the CPU tier, [cold_blocks, layers, …]: in pinned memory where a
    GPU computes, so that a copy is one transfer that the device orders among its other work.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        cold_blocks: int = 0,
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self._heads = (2, config.kv_head_count, config.head_dim)
        shape = (config.layer_count, blocks * block_size, config.kv_token_size)
        self._slots = _zeros(shape, dtype, device)
        self._blocks = self._slots.view(config.layer_count, blocks, -1)
        cold = (cold_blocks, config.layer_count, self._blocks.shape[-1])
        self._cold = torch.empty(cold, dtype=dtype, pin_memory=device.type == "cuda")

    def copy(self, copies: list[BlockCopy]) -> None:
        """Move blocks to the CPU tier and back, in order; on a GPU in the order of its stream."""
        for copy in copies:
            here, cold = self._blocks[:, copy.block], self._cold[copy.slot]
            source, target = (here, cold) if copy.save else (cold, here)
            target.copy_(source, non_blocking=True)

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """Keep `rows` [tokens, 2 * kv_heads * head_dim] at `slots` [tokens]."""
        self._slots[layer].index_copy_(0, slots, rows.to(self._slots.dtype))

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and all values as they lie, each [blocks, block_size, kv_heads, head_dim]."""
        pairs = self._slots[layer].view(self.blocks, self.block_size, *self._heads)
        return pairs[:, :, 0], pairs[:, :, 1]

    def read(self, layer: int, tables: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values in `dtype` of the blocks in `tables` [rows, blocks].

        Each has the shape [rows, kv_heads, blocks * block_size, head_dim].
        """
        rows, blocks = tables.shape
        gathered = self._blocks[layer].index_select(0, tables.flatten()).to(dtype)
        pairs = gathered.view(rows, blocks * self.block_size, *self._heads).permute(2, 0, 3, 1, 4)
        return pairs[0], pairs[1]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose pages the system gives at first touch: a fresh process stays small.

    Zeros matter: a masked slot has weight 0, and 0 times a stray NaN would be NaN.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    integers = np.int16 if dtype.itemsize == 2 else np.int32  # noqa: PLR2004 -- bytes per number
    return torch.from_numpy(np.zeros(shape, dtype=integers)).view(dtype)
