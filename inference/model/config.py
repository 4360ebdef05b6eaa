"""A model's shape, read from a Hugging Face `config.json` or from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.model.errors import ModelLoadError

__all__ = ["ModelConfig", "config_from_gguf", "config_from_hf"]

# SmolLM2 and TinyLlama call themselves Llama; in GGUF, Mistral does so too.
MISTRAL, QWEN3 = "MistralForCausalLM", "Qwen3ForCausalLM"
HF_ARCHITECTURES = ("LlamaForCausalLM", MISTRAL, "Qwen2ForCausalLM", QWEN3)
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_BASE_DEFAULT = 10_000.0
MISTRAL_WINDOW_DEFAULT = 4096  # of a file that does not say, as transformers reads it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder-only transformer with RMSNorm, RoPE, grouped queries and a gated MLP.

    `rope_divisors` holds one number per rotated pair of a head: long-context variants slow a
    pair's rotation down by it. `eos_token_ids` end an answer. `tied_head`: the output matrix is
    the embedding. `layer_windows` [layer_count]: how many tokens each layer's attention reaches
    back, the token itself counted, so that position p sees p - window + 1 ... p; None: all of
    them. Windows may differ between layers (Qwen's upper layers have one, its lower ones none).
    `qk_norm`: queries and keys pass an RMSNorm over each head before they rotate, with one weight
    [head_dim] a layer for queries and one for keys.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    mlp_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    norm_eps: float
    rope_base: float
    rope_divisors: tuple[float, ...]
    context_length: int
    tied_head: bool
    eos_token_ids: frozenset[int]
    layer_windows: tuple[int | None, ...]
    qk_norm: bool

    @property
    def sliding_window(self) -> int | None:
        """The widest window, when every layer has one: what has left it is read by no layer."""
        windows = [window for window in self.layer_windows if window is not None]
        return max(windows) if len(windows) == self.layer_count else None

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.head_count // self.kv_head_count

    @property
    def kv_token_size(self) -> int:
        """Numbers kept per token and layer: its keys and its values."""
        return 2 * self.kv_head_count * self.head_dim


def _known(architecture: str, known: tuple[str, ...]) -> str:
    if architecture not in known:
        raise ModelLoadError(
            f"unknown architecture {architecture!r}; supported are {', '.join(known)}: "
            "use another model"
        )
    return architecture


def _llama3_divisors(scaling: Mapping[str, Any], base: float, head_dim: int) -> tuple[float, ...]:
    """Llama 3.1's rule: pairs slower than the trained context rotate `factor` times slower.

    Between `high_freq_factor` and `low_freq_factor` turns per original context the two rates are
    blended. Source: the reference code published with Llama 3.1 (`apply_scaling`).
    """
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * base ** (2 * pair / head_dim)
        blend = min(1.0, max(0.0, (original / wavelength - low) / (high - low)))
        divisors.append(1 / (blend + (1 - blend) / factor))
    return tuple(divisors)


def _hf_rope(raw: Mapping[str, Any], head_dim: int) -> tuple[float, tuple[float, ...]]:
    """Base and divisors; newer files keep both under `rope_parameters`."""
    field = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    scaling = raw.get(field) or {}
    base = float(scaling.get("rope_theta") or raw.get("rope_theta") or ROPE_BASE_DEFAULT)
    # Files of before 2024 call the type `type`.
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return base, (1.0,) * (head_dim // 2)
    if kind == "linear":
        return base, (float(scaling["factor"]),) * (head_dim // 2)
    if kind == "llama3":
        return base, _llama3_divisors(scaling, base, head_dim)
    raise ModelLoadError(
        f"{field} of type {kind!r} is not supported (default, linear and llama3 are); without it, "
        "in config.json, many models serve a shorter context: use that, or another model"
    )


def _hf_windows(raw: Mapping[str, Any], architecture: str) -> tuple[int | None, ...]:
    """Each layer's window: Mistral gives it to all layers, Qwen to the upper or the listed ones."""
    layers = int(raw["num_hidden_layers"])
    window = None
    if architecture == MISTRAL:
        window = raw.get("sliding_window", MISTRAL_WINDOW_DEFAULT)
        return (window,) * layers
    if raw.get("use_sliding_window", False):
        window = raw.get("sliding_window")
    kinds = raw.get("layer_types")
    if kinds is None:
        first = int(raw.get("max_window_layers", layers))
        return tuple(window if layer >= first else None for layer in range(layers))
    if len(kinds) != layers:
        raise ValueError(f"layer_types (its length is not the {layers} of num_hidden_layers)")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _id_set(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value if isinstance(value, list) else [value])


def _refuse_variants(raw: Mapping[str, Any]) -> None:
    """What a known architecture may carry and would be computed wrongly."""
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(
            f"hidden_act {raw['hidden_act']!r} is not supported; use a model with `silu`"
        )
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "an unknown method")
        raise ModelLoadError(
            f"quantization_config {method!r} is not supported; use the unquantized model, with "
            "--quantize if it should be small, or a GGUF file"
        )
    if (raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelLoadError("partial_rotary_factor is not supported; use another model")


def config_from_hf(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Read `config.json` (`raw`) and `generation_config.json` (`generation`, may be empty).

    Raises `ModelLoadError` for an architecture or a variant that is not supported.
    """
    architecture = _known((raw.get("architectures") or ["none"])[0], HF_ARCHITECTURES)
    _refuse_variants(raw)
    heads = int(raw["num_attention_heads"])
    head_dim = int(raw.get("head_dim") or raw["hidden_size"] // heads)
    base, divisors = _hf_rope(raw, head_dim)
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        mlp_size=int(raw["intermediate_size"]),
        layer_count=int(raw["num_hidden_layers"]),
        head_count=heads,
        kv_head_count=int(raw.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_base=base,
        rope_divisors=divisors,
        context_length=int(raw.get("max_position_embeddings", 2048)),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_id_set(generation.get("eos_token_id")) or _id_set(raw.get("eos_token_id")),
        layer_windows=_hf_windows(raw, architecture),
        qk_norm=architecture == QWEN3,
    )


def config_from_gguf(
    fields: Mapping[str, Any], *, tied_head: bool, rope_divisors: tuple[float, ...] | None
) -> ModelConfig:
    """Read GGUF metadata; `rope_divisors` come from the file's own tensor, where it has one.

    Raises `ModelLoadError` for an architecture or a variant that is not supported.
    """
    name = _known(str(fields.get("general.architecture", "none")), GGUF_ARCHITECTURES)
    heads = int(fields[f"{name}.attention.head_count"])
    hidden = int(fields[f"{name}.embedding_length"])
    head_dim = int(fields.get(f"{name}.attention.key_length", hidden // heads))
    if int(fields.get(f"{name}.rope.dimension_count", head_dim)) != head_dim:
        raise ModelLoadError("partly rotated heads are not supported; use another model")
    scaling = str(fields.get(f"{name}.rope.scaling.type", "none"))
    if scaling not in ("none", "linear"):
        raise ModelLoadError(
            f"{name}.rope.scaling.type {scaling!r} is not supported (none and linear are); use a "
            "file without it"
        )
    factor = float(fields.get(f"{name}.rope.scaling.factor", 1.0)) if scaling == "linear" else 1.0
    window = int(fields.get(f"{name}.attention.sliding_window", 0)) or None
    ends = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return ModelConfig(
        architecture=name,
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=hidden,
        mlp_size=int(fields[f"{name}.feed_forward_length"]),
        layer_count=int(fields[f"{name}.block_count"]),
        head_count=heads,
        kv_head_count=int(fields.get(f"{name}.attention.head_count_kv", heads)),
        head_dim=head_dim,
        norm_eps=float(fields[f"{name}.attention.layer_norm_rms_epsilon"]),
        rope_base=float(fields.get(f"{name}.rope.freq_base", ROPE_BASE_DEFAULT)),
        rope_divisors=rope_divisors or (factor,) * (head_dim // 2),
        context_length=int(fields[f"{name}.context_length"]),
        tied_head=tied_head,
        eos_token_ids=frozenset(int(fields[end]) for end in ends if end in fields),
        layer_windows=(window,) * int(fields[f"{name}.block_count"]),
        qk_norm=name == "qwen3",
    )
