"""Matrix products with fixed weights, in the fastest form the device has.

On a CPU with oneDNN the weights are reordered once into its blocked layout, which halves the time
of a small batch, and what follows the product (activation, product, sum) is fused into it.
A row of the packed product is bit for bit the same in a batch of 2 and of 600 rows; only one row
alone takes another kernel, so callers never pass fewer than `ROWS_MIN` (measured, torch 2.13,
fp32 and bf16; `tests/unit/inference/model/test_linear.py` holds it).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 -- the name everybody in the field knows it by
from torch import Tensor

__all__ = ["ROWS_MIN", "Linear"]

ROWS_MIN = 2


class Linear:
    """`x @ weight.T + bias` for `x` of shape [rows, in] and `weight` [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._packed = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        if self._packed:
            # Only oneDNN's own kernels can read its layout.
            weight = torch.ops.mkldnn._reorder_linear_weight(weight)  # noqa: SLF001
            self._fused: Any = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """The product."""
        if self._packed:
            return self._fused(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)

    def silu(self, x: Tensor) -> Tensor:
        """The product, then SiLU."""
        if self._packed:
            return self._fused(x, self._weight, self._bias, "swish", [], "")
        return F.silu(F.linear(x, self._weight, self._bias))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, times `other` element by element."""
        if self._packed:
            return self._fused.binary(x, other, self._weight, self._bias, "mul")
        return F.linear(x, self._weight, self._bias) * other

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, plus `other`."""
        if self._packed:
            return self._fused.binary(x, other, self._weight, self._bias, "add")
        return F.linear(x, self._weight, self._bias) + other
