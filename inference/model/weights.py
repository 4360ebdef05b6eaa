"""Where a model's tensors come from: one interface over safetensors folders and GGUF files.

Tensors are asked for by Hugging Face's names (`model.layers.0.self_attn.q_proj.weight`), which
everybody in the field reads fluently; a GGUF source translates them.
"""

from __future__ import annotations

from typing import Protocol

import torch

from inference.model.config import ModelConfig
from inference.model.errors import ModelLoadError

__all__ = ["WeightSource", "check_shape", "interleave_pairs"]


class WeightSource(Protocol):
    """A model's files, opened. Tensors are read one by one, so that memory never holds two copies."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        ...

    def has(self, name: str) -> bool:
        """Whether the files hold the tensor."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in floating point, `[out, in]` for a matrix.

        Projections and norms of queries and keys come *interleaved* (see `interleave_pairs`).
        Raises `ModelLoadError` when it is missing, damaged or not of the shape that the
        configuration says.
        """
        ...


def check_shape(config: ModelConfig, name: str, shape: tuple[int, ...]) -> None:
    """Refuse, with `ModelLoadError`, a tensor of another shape than `config` says.

    Everything behind this trusts the sizes of `config`.
    """
    hidden, mlp = config.hidden_size, config.mlp_size
    queries, keys = config.head_count * config.head_dim, config.kv_head_count * config.head_dim
    shapes = {
        "embed_tokens": (config.vocab_size, hidden),
        "lm_head": (config.vocab_size, hidden),
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (mlp, hidden),
        "up_proj": (mlp, hidden),
        "down_proj": (hidden, mlp),
        "q_norm": (config.head_dim,),
        "k_norm": (config.head_dim,),
    }
    *_, part, kind = name.split(".")
    expected = shapes.get(part, (hidden,))  # all others are norms of a token's vector
    if kind == "bias":
        expected = expected[:1]
    if shape != expected:
        raise ModelLoadError(
            f"tensor {name} has shape {shape} instead of {expected}; download the model again"
        )


def interleave_pairs(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of each head so that the two halves of a rotated pair are neighbours.

    RoPE rotates pairs of a head's coordinates. Hugging Face pairs coordinate i with i + dim/2,
    the original RoPE paper (Su et al. 2021, eq. 34) and GGUF's llama files pair 2i with 2i + 1.
    Queries and keys reordered alike have the same products, and neighbours are one complex number.
    """
    heads = tensor.shape[0] // head_dim
    halves = tensor.reshape(heads, 2, head_dim // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)
