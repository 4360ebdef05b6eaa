"""GGUF's K-quantizations written by hand: what the `gguf` package reads but does not write.

Formats: `block_q4_K` and `block_q6_K` of the ggml project. Each function returns the bytes of a
matrix and the values that they stand for, computed from what was packed and not read back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "pack_q4_k", "pack_q6_k"]

BLOCK = 256

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def pack_q4_k(matrix: Floats) -> tuple[Bytes, Floats]:
    """8 groups of 32 levels from 0 to 15: value = d * scale * level - d_min * minimum.

    A block: | d | d_min | 12 bytes of 6-bit scales and minima | 128 bytes of levels |.
    """
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, columns // BLOCK, 8, 32)
    low = np.minimum(groups.min(-1), 0)
    step = (groups.max(-1) - low) / 15
    d = (step.max(-1, keepdims=True) / 63).astype(np.float16)
    d_min = (-low.min(-1, keepdims=True) / 63).astype(np.float16)
    scales = np.clip(np.rint(step / d.astype(np.float32)), 1, 63).astype(np.uint8)
    minima = np.clip(np.rint(-low / d_min.astype(np.float32)), 0, 63).astype(np.uint8)
    scale = (d.astype(np.float32) * scales)[..., None]
    minimum = (d_min.astype(np.float32) * minima)[..., None]
    levels = np.clip(np.rint((groups + minimum) / scale), 0, 15).astype(np.uint8)
    # The upper four groups' 6 bits lie in two places: 4 bits of their own, 2 above the lower four.
    first = scales[..., :4] | (scales[..., 4:] >> 4 << 6)
    second = minima[..., :4] | (minima[..., 4:] >> 4 << 6)
    third = (scales[..., 4:] & 15) | (minima[..., 4:] & 15) << 4
    nibbles = levels[..., 0::2, :] | levels[..., 1::2, :] << 4
    parts = (
        d.view(np.uint8),
        d_min.view(np.uint8),
        first,
        second,
        third,
        nibbles.reshape(rows, -1, 128),
    )
    packed = np.concatenate(parts, axis=-1).reshape(rows, -1)
    return packed, (scale * levels - minimum).reshape(rows, columns).astype(np.float32)


def pack_q6_k(matrix: Floats) -> tuple[Bytes, Floats]:
    """16 groups of 16 levels from -32 to 31: value = d * scale * level.

    A block: | 128 bytes of low halves | 64 bytes of upper two bits | 16 scales | d |.
    """
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, columns // BLOCK, 16, 16)
    step = np.abs(groups).max(-1) / 31
    d = (step.max(-1, keepdims=True) / 127).astype(np.float16)
    scales = np.clip(np.rint(step / d.astype(np.float32)), 1, 127).astype(np.int8)
    scale = (d.astype(np.float32) * scales)[..., None]
    levels = np.clip(np.rint(groups / scale), -32, 31)
    # Two halves of 128 columns, each of four strips of 32 that share bytes.
    strips = (levels + 32).astype(np.uint8).reshape(rows, -1, 2, 4, 32)
    low = np.concatenate(
        [(strips[..., i, :] & 15) | (strips[..., i + 2, :] & 15) << 4 for i in (0, 1)], axis=-1
    )
    high = sum(strips[..., i, :] >> 4 << (2 * i) for i in range(4)).astype(np.uint8)
    parts = (
        low.reshape(rows, -1, 128),
        high.reshape(rows, -1, 64),
        scales.view(np.uint8),
        d.view(np.uint8),
    )
    packed = np.concatenate(parts, axis=-1).reshape(rows, -1)
    return packed, (scale * levels).reshape(rows, columns).astype(np.float32)
