"""How a step's numbers get from Python's lists to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["send"]


def send(
    values: Sequence[int] | Sequence[list[int]],
    device: torch.device,
    dtype: torch.dtype = torch.long,
) -> Tensor:
    """The values on `device`; to a GPU the copy is only begun, in the order of the current stream.

    It leaves from pinned memory, which torch's host allocator gives to nobody else before it is through.
    """
    if device.type == "cpu" or not values:
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
