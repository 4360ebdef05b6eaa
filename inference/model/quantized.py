"""Weights of 8 or 4 bits for torch's own CPU kernels, quantized when a model is loaded.

| | levels | kernel |
| --- | --- | --- |
| `int8` | -127 to 127, a scale per row | `_weight_int8pack_mm` |
| `int4` | 0 to 15, a scale and a middle per row and `GROUP` columns | `_weight_int4pack_mm_for_cpu` |

Products sum in fp32, inputs stay as they are. A row of a product is the same bits in any batch, one
row alone included (torch 2.13; `tests/unit/inference/model/test_quantized.py` holds it).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 -- the name everybody in the field knows it by
from torch import Tensor

from inference.model.errors import ModelLoadError
from inference.native.weights import GROUP, quantize

__all__ = ["QuantizedLinear", "int4_linear", "int8_linear"]

OUT_MULTIPLE = 16  # rows that the 4-bit kernel packs together
LEVEL_PEAK = 127
LEVEL_MIDDLE = 8


class QuantizedLinear:
    """What `Linear` is, around a kernel that computes `product`: [rows, in] to [rows, out]."""

    def __init__(self, product: Callable[[Tensor], Tensor], bias: Tensor | None) -> None:
        self._product = product
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """The product."""
        product = self._product(x)
        return product if self._bias is None else product + self._bias

    def silu(self, x: Tensor) -> Tensor:
        """The product, then SiLU."""
        return F.silu(self(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, times `other` element by element."""
        return self(x) * other

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, plus `other`."""
        return self(x) + other


def int8_linear(weight: Tensor, bias: Tensor | None = None) -> QuantizedLinear:
    """`x @ weight.T + bias` with `weight` [out, in] in 8 bits."""
    wide = weight.float()
    scales = (wide.abs().amax(1) / LEVEL_PEAK).clamp_min(torch.finfo(torch.float32).tiny)
    levels = torch.round(wide / scales[:, None]).to(torch.int8)
    kept = scales.to(weight.dtype)
    kernel = torch.ops.aten._weight_int8pack_mm  # noqa: SLF001
    return QuantizedLinear(lambda x: kernel(x, levels, kept), bias)


def int4_linear(weight: Tensor, bias: Tensor | None = None) -> QuantizedLinear:
    """`x @ weight.T + bias` with `weight` [out, in] in 4 bits.

    Raises `ModelLoadError` for sizes that the kernel does not take.
    """
    rows, columns = weight.shape
    if rows % OUT_MULTIPLE or columns % GROUP:
        raise ModelLoadError(
            f"int4 wants matrices in multiples of {OUT_MULTIPLE} x {GROUP}, and one of this model "
            f"is {rows} x {columns}; use --quantize int8"
        )
    found = quantize(weight.float().numpy(), bits=4)
    pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu  # noqa: SLF001
    packed = pack(torch.from_numpy(found.levels).to(torch.int32), 1)
    # The kernel counts levels from the middle one, and wants [groups, out, scale and middle].
    scales, minima = torch.from_numpy(found.scales).float(), torch.from_numpy(found.minima)
    grid = torch.stack([scales, minima + LEVEL_MIDDLE * scales], -1).transpose(0, 1)
    grid = grid.contiguous().to(weight.dtype)
    kernel = torch.ops.aten._weight_int4pack_mm_for_cpu  # noqa: SLF001
    return QuantizedLinear(lambda x: kernel(x, packed, GROUP, grid), bias)
