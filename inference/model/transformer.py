"""The decoder: Llama's, Mistral's and Qwen's architecture over a ragged batch and a paged cache.

Sources: "LLaMA" (Touvron et al. 2023), RMSNorm (Zhang & Sennrich 2019), RoPE (Su et al. 2021),
gated MLP (Shazeer 2020), grouped queries (Ainslie et al. 2023), sliding windows (Jiang et al. 2023, "Mistral
7B"), norms of queries and keys (Qwen3 technical report, 2025).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 -- the name everybody in the field knows it by
from torch import Tensor

from inference.model.attention import Layout
from inference.model.batch import StepBatch
from inference.model.config import ModelConfig
from inference.model.kv_cache import KvCache
from inference.model.linear import ROWS_MIN, Linear
from inference.model.quantized import QuantizedLinear, int4_linear, int8_linear
from inference.model.weights import WeightSource

__all__ = ["Transformer", "load_transformer"]


AnyLinear = Linear | QuantizedLinear
MakeLinear = Callable[[Tensor, Tensor | None], AnyLinear]

# How matrices are kept: those of the layers, and the output matrix, which 4 bits would harm most.
_LINEAR: dict[str, tuple[MakeLinear, MakeLinear]] = {
    "none": (Linear, Linear),
    "int8": (int8_linear, int8_linear),
    "int4": (int4_linear, int8_linear),
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights; `qkv` is the three input projections of attention in one.

    `qk_norm` [heads + kv_heads, head_dim], in fp32: None for a model without norms of its queries
    and keys.
    """

    attention_norm: Tensor
    qkv: AnyLinear
    qk_norm: Tensor | None
    output: AnyLinear
    mlp_norm: Tensor
    gate: AnyLinear
    up: AnyLinear
    down: AnyLinear


@dataclass(frozen=True, slots=True)
class _Step:
    """What the layers of one step need: rotations [T, 1, head_dim / 2], slots, each one's layout."""

    rotations: Tensor
    slots: Tensor
    layouts: list[Layout]


class Transformer:
    """A model's weights and the forward pass."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: list[_Layer],
        final_norm: Tensor,
        head: AnyLinear,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self._head = head
        self._frequencies = _frequencies(config).to(embedding.device)
        self._run_mlp = self._mlp

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self._embedding.dtype

    def forward(self, batch: StepBatch, cache: KvCache) -> Tensor:
        """Compute all tokens, fill their slots in the cache, and return the last tokens' logits.

        Shape [last_tokens, vocab]; empty when no row samples.
        """
        step = _Step(self._rotations(batch.positions), batch.slots, batch.layouts)
        x = F.embedding(batch.token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            x = self._attention(x, index, layer, step, cache)
            x = self._run_mlp(x, layer)
        if not batch.last_tokens.numel():
            return x.new_empty(0, self.config.vocab_size)
        last = self._norm(x.index_select(0, batch.last_tokens), self._final_norm)
        return self._head(last)

    @torch.inference_mode()
    def fuse(self) -> None:
        """Let `torch.compile` fuse the arithmetic between the MLPs' products, and try it.

        It may raise whatever the compiler meets; the model then computes as before.
        """
        fused = torch.compile(self._mlp, dynamic=True)
        size = self.config.hidden_size
        for rows in (1, ROWS_MIN):  # one row is a shape of its own, all others are one
            fused(torch.zeros(rows, size, dtype=self.dtype, device=self.device), self._layers[0])
        self._run_mlp = fused

    def _attention(
        self, x: Tensor, index: int, layer: _Layer, step: _Step, cache: KvCache
    ) -> Tensor:
        config = self.config
        tokens = x.shape[0]
        query_size = config.head_count * config.head_dim
        rotated_heads = config.head_count + config.kv_head_count
        # qkv: | queries | keys | values |, of which queries and keys rotate together, in place.
        qkv = layer.qkv(self._norm(x, layer.attention_norm)).float()
        heads = qkv[:, : rotated_heads * config.head_dim].view(tokens, rotated_heads, -1)
        if layer.qk_norm is not None:
            normed = F.rms_norm(heads, (config.head_dim,), None, config.norm_eps)
            torch.mul(normed, layer.qk_norm, out=heads)
        torch.view_as_complex(heads.unflatten(2, (-1, 2))).mul_(step.rotations)
        qkv = qkv.to(x.dtype)
        cache.write(index, step.slots, qkv[:, query_size:])
        queries = qkv[:, :query_size].view(
            tokens, config.kv_head_count, config.group, config.head_dim
        )
        read = step.layouts[index].read(queries, index, cache)
        return layer.output.plus(read, x)

    def _mlp(self, x: Tensor, layer: _Layer) -> Tensor:
        normed = self._norm(x, layer.mlp_norm)
        return layer.down.plus(layer.up.times(normed, layer.gate.silu(normed)), x)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)

    def _rotations(self, positions: Tensor) -> Tensor:
        angles = positions[:, None].float() * self._frequencies
        return torch.complex(torch.cos(angles), torch.sin(angles))[:, None]


def _frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each rotated pair."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    return 1.0 / (config.rope_base**pairs * torch.tensor(config.rope_divisors))


def load_transformer(
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
    quantize: str = "none",
) -> Transformer:
    """Read all weights; `progress` hears the share done, 0 to 1.

    `quantize` is `none`, `int8` or `int4`: see `inference.model.quantized`. Raises
    `ModelLoadError` for a missing or damaged tensor, and for one that cannot be quantized.
    """
    config = source.config
    keep, keep_head = _LINEAR[quantize]

    def tensor(name: str) -> Tensor:
        return source.tensor(name).to(device=device, dtype=dtype)

    def linear(*names: str) -> AnyLinear:
        weight = torch.cat([tensor(f"{name}.weight") for name in names])
        biased = source.has(f"{names[0]}.bias")
        bias = torch.cat([tensor(f"{name}.bias") for name in names]) if biased else None
        return keep(weight, bias)

    def qk_norm(root: str) -> Tensor:
        query, key = (tensor(f"{root}.{part}_norm.weight").float() for part in "qk")
        heads = (query.expand(config.head_count, -1), key.expand(config.kv_head_count, -1))
        return torch.cat(heads)

    def layer(index: int) -> _Layer:
        root = f"model.layers.{index}"
        return _Layer(
            attention_norm=tensor(f"{root}.input_layernorm.weight"),
            qkv=linear(*(f"{root}.self_attn.{part}_proj" for part in "qkv")),
            qk_norm=qk_norm(f"{root}.self_attn") if config.qk_norm else None,
            output=linear(f"{root}.self_attn.o_proj"),
            mlp_norm=tensor(f"{root}.post_attention_layernorm.weight"),
            gate=linear(f"{root}.mlp.gate_proj"),
            up=linear(f"{root}.mlp.up_proj"),
            down=linear(f"{root}.mlp.down_proj"),
        )

    embedding = tensor("model.embed_tokens.weight")
    head = keep_head(embedding if config.tied_head else tensor("lm_head.weight"), None)
    layers = []
    for index in range(config.layer_count):
        layers.append(layer(index))
        progress((index + 1) / config.layer_count)
    return Transformer(config, embedding, layers, tensor("model.norm.weight"), head)
