"""Matrices as levels: the one form that every quantization is brought into for the native step.

    weight = scale * level + minimum       level: 0 .. 15 (4 bits) or 0 .. 255 (8 bits)

with one scale and one minimum per row and group of 32 columns. What a GGUF file holds in Q4_0,
Q4_1 or Q8_0 is taken over as it is, to the bit, and Q4_K with its scales and minima in fp16;
everything else is quantized here, to 8 bits or, where that is asked for, to 4.
Formats: the GGUF specification of the ggml project.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inference.model.gguf_weights import GgufWeights
from inference.model.weights import WeightSource

__all__ = ["GROUP", "WIDE", "Levels", "quantize", "read_levels", "stack"]

GROUP = 32
WIDE = 8  # bits of a level of the wider kind
ZERO_4, ZERO_8 = 8, 128  # the levels that stand for zero in Q4_0 and in 8 bits
LEVEL_PEAK = 127

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Levels:
    """A quantized matrix: levels [rows, columns], scales and minima [rows, columns / GROUP]."""

    bits: int
    levels: Bytes
    scales: Halves
    minima: Halves

    def values(self) -> NDArray[np.float32]:
        """The matrix [rows, columns]."""
        rows, groups = self.scales.shape
        levels = self.levels.reshape(rows, groups, GROUP).astype(np.float32)
        scaled = levels * self.scales[..., None].astype(np.float32)
        return (scaled + self.minima[..., None].astype(np.float32)).reshape(rows, -1)


def _halves(blocks: Bytes, start: int) -> Halves:
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0]


def _nibbles(packed: Bytes) -> Bytes:
    """Low halves are the first 16 columns of a group, high halves the last."""
    levels = np.concatenate([packed & 0x0F, packed >> 4], axis=-1)
    return levels.reshape(packed.shape[0], -1)


def _from_q4_0(blocks: Bytes) -> Levels:
    """A block: | scale | 16 bytes of levels |, value = scale * (level - 8)."""
    scales = _halves(blocks, 0)
    return Levels(4, _nibbles(blocks[..., 2:]), scales, scales * np.float16(-ZERO_4))


def _from_q4_1(blocks: Bytes) -> Levels:
    """A block: | scale | minimum | 16 bytes of levels |."""
    return Levels(4, _nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _from_q8_0(blocks: Bytes) -> Levels:
    """A block: | scale | 32 signed levels |; with the sign bit turned they count from -128."""
    scales = _halves(blocks, 0)
    levels = (blocks[..., 2:] ^ np.uint8(ZERO_8)).reshape(blocks.shape[0], -1)
    return Levels(8, levels, scales, scales * np.float16(-ZERO_8))


def _from_q4_k(blocks: Bytes) -> Levels:
    """8 groups: | d | d_min | 12 bytes of scales and minima | 128 bytes of levels |.

    value = d * scale * level - d_min * minimum. Products are rounded to fp16, which moves a weight
    by 1/2048 at most. Of the scales' and minima's 6 bits, groups 4 to 7 have the upper 2 in what
    groups 0 to 3 leave free.
    """
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 63, third & 0x0F | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    d, d_min = (_halves(blocks, at)[..., None].astype(np.float32) for at in (0, 2))
    rows = blocks.shape[0]
    return Levels(
        4,
        _nibbles(blocks[..., 16:].reshape(rows, -1, GROUP)),
        (d * scales).astype(np.float16).reshape(rows, -1),
        (-d_min * minima).astype(np.float16).reshape(rows, -1),
    )


# By GGUF's name: bytes of a block, and how it is read.
_READERS: dict[str, tuple[int, Callable[[Bytes], Levels]]] = {
    "Q4_0": (18, _from_q4_0),
    "Q4_1": (20, _from_q4_1),
    "Q8_0": (34, _from_q8_0),
    "Q4_K": (144, _from_q4_k),
}


def quantize(matrix: NDArray[np.float32], bits: int = WIDE) -> Levels:
    """Levels of 8 bits around zero, or fewer between about a group's smallest and largest weight.

    With 8 bits a weight errs by half its group's scale at most, with fewer by about one scale.
    """
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, columns // GROUP, GROUP)
    if bits == WIDE:
        scales = (np.abs(groups).max(axis=-1) / LEVEL_PEAK).astype(np.float16)
        minima, lowest = scales * np.float16(-ZERO_8), 1
    else:
        (scales, minima), lowest = _fitted(groups, bits), 0
    # The rounded scale may be a little too small for the largest weight, or zero.
    divisors = np.where(scales == 0, 1, scales).astype(np.float32)[..., None]
    distances = groups - minima[..., None].astype(np.float32)
    levels = np.clip(np.rint(distances / divisors), lowest, (1 << bits) - 1)
    return Levels(bits, levels.astype(np.uint8).reshape(rows, columns), scales, minima)


def _fitted(groups: NDArray[np.float32], bits: int) -> tuple[Halves, Halves]:
    """Scales and minima of `groups` [rows, groups, GROUP].

    First from the extremes, then by least squares over the levels that those give: it costs the
    largest weights a little and takes a third of the model's distance (KL) away.
    """
    low = groups.min(axis=-1, keepdims=True)
    step = (groups.max(axis=-1, keepdims=True) - low) / ((1 << bits) - 1)
    levels = np.rint((groups - low) / np.where(step == 0, 1, step))
    centred = levels - levels.mean(axis=-1, keepdims=True)
    spread = np.square(centred).sum(axis=-1)
    scales = (centred * groups).sum(axis=-1) / np.where(spread == 0, 1, spread)
    minima = groups.mean(axis=-1) - scales * levels.mean(axis=-1)
    return scales.astype(np.float16), minima.astype(np.float16)


def stack(parts: Sequence[Levels]) -> Levels:
    """Matrices with equal columns below each other; 4-bit levels among 8-bit ones keep their values."""
    return Levels(
        max(part.bits for part in parts),
        np.concatenate([part.levels for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate([part.minima for part in parts]),
    )


def read_levels(source: WeightSource, name: str, bits: int = WIDE) -> Levels:
    """A matrix of the model, by Hugging Face's name, in levels of at most `bits` bits.

    Raises `ModelLoadError` as the source does.
    """
    if isinstance(source, GgufWeights):
        kind, stored = source.stored(name)
        if kind in _READERS:
            block_bytes, read = _READERS[kind]
            data = stored.numpy()
            levels = read(data.reshape(data.shape[0], -1, block_bytes))
            if levels.bits <= bits:
                return levels
    return quantize(source.tensor(name).to(torch.float32).numpy(), bits)
