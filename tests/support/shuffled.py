"""The same model with its columns in another order."""

from __future__ import annotations

import torch

from inference.model.config import ModelConfig
from inference.model.weights import WeightSource

__all__ = ["Shuffled"]


class Shuffled:
    """A model's weights with the coordinates of its vectors, MLPs and values shuffled.

    It computes what the model computes, but a group of 32 columns is no longer one that the file
    was quantized by: what is quantized anew loses what an unquantized model would lose.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        config, generator = source.config, torch.Generator().manual_seed(3)
        self._hidden = torch.randperm(config.hidden_size, generator=generator)
        self._mlp = torch.randperm(config.mlp_size, generator=generator)
        self._head = torch.randperm(config.head_dim, generator=generator)

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self._source.config

    def has(self, name: str) -> bool:
        """As the model has it."""
        return self._source.has(name)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, shuffled along each dimension that carries shuffled coordinates."""
        tensor = self._source.tensor(name)
        part = name.split(".")[-2]
        if tensor.dim() == 1:
            return tensor[self._hidden]
        rows, columns = {
            "v_proj": (self._heads(self.config.kv_head_count), self._hidden),
            "o_proj": (self._hidden, self._heads(self.config.head_count)),
            "gate_proj": (self._mlp, self._hidden),
            "up_proj": (self._mlp, self._hidden),
            "down_proj": (self._hidden, self._mlp),
        }.get(part, (torch.arange(len(tensor)), self._hidden))
        return tensor[rows][:, columns].contiguous()

    def _heads(self, count: int) -> torch.Tensor:
        size = self.config.head_dim
        return (torch.arange(count)[:, None] * size + self._head).flatten()
