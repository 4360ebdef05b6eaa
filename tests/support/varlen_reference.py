"""`torch.nn.attention.varlen.varlen_attn` written out from its documentation, for machines without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["varlen_reference"]

# What FlashAttention 2 asks of paged keys.
PAGE_MULTIPLE = 256


def varlen_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int,
) -> Tensor:
    """Row by row: queries stand at the end of the row's keys; a window of -1 is unbounded.

    It refuses what the kernel refuses, or would read wrongly.
    """
    rows, page = len(block_table), key.shape[1]
    if page % PAGE_MULTIPLE:
        raise RuntimeError(f"Paged KV cache block size must be divisible by {PAGE_MULTIPLE}")
    for numbers, count in ((cu_seq_q, rows + 1), (cu_seq_k, rows + 1), (seqused_k, rows)):
        assert numbers.dtype == torch.int32
        assert numbers.shape == (count,)
        assert numbers.is_contiguous()
    assert block_table.dtype == torch.int32
    assert block_table.stride(-1) == key.stride(-1) == value.stride(-1) == query.stride(-1) == 1
    assert enable_gqa
    assert num_splits == 1
    assert int(cu_seq_q[-1]) == len(query)
    assert int(seqused_k.max()) <= max_k
    out = torch.empty_like(query)
    for row in range(rows):
        first, end = cu_seq_q[row : row + 2].tolist()
        assert end - first <= max_q
        length = int(seqused_k[row])
        pages = block_table[row, : -(-length // page)].long()
        keys, values = (part[pages].flatten(0, 1)[:length] for part in (key, value))
        group = query.shape[1] // keys.shape[1]
        scores = torch.einsum(
            "qhd,khd->hqk", query[first:end].float(), keys.float().repeat_interleave(group, 1)
        )
        at = torch.arange(length - (end - first), length)[:, None]
        slots, (left, right) = torch.arange(length), window_size
        hidden = torch.zeros(end - first, length, dtype=torch.bool)
        if left >= 0:
            hidden |= slots < at - left
        if right >= 0:
            hidden |= slots > at + right
        weights = (scores / query.shape[2] ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1)
        found = torch.einsum("hqk,khd->qhd", weights, values.float().repeat_interleave(group, 1))
        out[first:end] = found.to(query.dtype)
    return out
