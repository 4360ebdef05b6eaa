"""A model's shape out of its files' words."""

from __future__ import annotations

from typing import Any

import pytest

from inference.model.config import config_from_gguf, config_from_hf
from inference.model.errors import ModelLoadError
from tests.support.tiny_models import LLAMA, MISTRAL, QWEN2, QWEN3

WINDOWED = {"use_sliding_window": True, "sliding_window": 20}
GGUF = {
    "general.architecture": "qwen3",
    "tokenizer.ggml.tokens": ["a"] * 9,
    "qwen3.embedding_length": 48,
    "qwen3.feed_forward_length": 96,
    "qwen3.block_count": 2,
    "qwen3.attention.head_count": 6,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3.context_length": 512,
}


def _read(raw: dict[str, Any], **changes: Any) -> Any:
    return config_from_hf(raw | changes, {})


@pytest.mark.parametrize(
    ("raw", "changes", "windows"),
    [
        (LLAMA, {}, (None, None)),
        (LLAMA, WINDOWED, (None, None)),
        (MISTRAL, {}, (24, 24)),
        (MISTRAL, {"sliding_window": None}, (None, None)),
        (QWEN2, {"sliding_window": 20}, (None, None)),
        (QWEN2, WINDOWED | {"max_window_layers": 0}, (20, 20)),
        (QWEN2, WINDOWED | {"max_window_layers": 1}, (None, 20)),
        (QWEN3, WINDOWED | {"max_window_layers": 28}, (None, None)),
        (
            QWEN3,
            WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]},
            (20, None),
        ),
        (QWEN3, {"sliding_window": 20, "layer_types": ["sliding_attention"] * 2}, (None, None)),
    ],
)
def test_each_layer_has_its_window(
    raw: dict[str, Any], changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    """Mistral's holds for all layers, Qwen's for the upper or the listed ones and where switched on."""
    config = _read(raw, **changes)
    assert config.layer_windows == windows
    assert config.sliding_window == (None if None in windows else windows[0])


def test_mistral_that_does_not_say_has_its_window() -> None:
    """Its files of before the field had a window of 4,096, as transformers knows."""
    raw = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    assert _read(raw).sliding_window == 4096


def test_a_list_of_layers_that_is_too_short() -> None:
    """One kind for each layer, or the file is refused."""
    with pytest.raises(ValueError, match="layer_types"):
        _read(QWEN3, **WINDOWED, layer_types=["full_attention"])


def test_only_qwen3_norms_queries_and_keys() -> None:
    """The norms belong to the architecture; no field turns them on."""
    assert [_read(raw).qk_norm for raw in (LLAMA, MISTRAL, QWEN2, QWEN3)] == [False] * 3 + [True]


def test_heads_apart_from_the_hidden_size() -> None:
    """`head_dim` wins; without it heads share the hidden size."""
    assert (_read(MISTRAL).head_dim, _read(MISTRAL, head_dim=None).head_dim) == (12, 8)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}},
    ],
)
def test_rope_scaling_in_old_and_new_words(scaling: dict[str, Any]) -> None:
    """`type` and `rope_type` mean the same; the newest files keep the base beside them."""
    config = _read(LLAMA, **scaling)
    assert config.rope_divisors == (4.0,) * 4
    assert config.rope_base == (1e6 if "rope_parameters" in scaling else 1e4)


def test_llama3_scaling_slows_long_waves_alone() -> None:
    """Fast pairs rotate as before, slow ones `factor` times slower, in between no faster than before."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    divisors = _read(LLAMA, rope_scaling=scaling).rope_divisors
    assert divisors[0] == 1.0
    assert divisors[-1] == 8.0
    assert list(divisors) == sorted(divisors)


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su"])
def test_unknown_scalings_name_their_field(kind: str) -> None:
    """What would be computed wrongly is refused, with the field that says it."""
    for field in ("rope_scaling", "rope_parameters"):
        with pytest.raises(ModelLoadError, match=f"{field} of type '{kind}'"):
            _read(LLAMA, **{field: {"rope_type": kind, "factor": 4.0}})


def test_gguf_metadata() -> None:
    """Qwen3's norms, heads apart and a window are read from a GGUF file, too."""
    extra = {"qwen3.attention.key_length": 16, "qwen3.attention.sliding_window": 30}
    config = config_from_gguf(GGUF | extra, tied_head=True, rope_divisors=None)
    assert (config.head_dim, config.qk_norm, config.layer_windows) == (16, True, (30, 30))
    assert config_from_gguf(GGUF, tied_head=True, rope_divisors=None).layer_windows == (None,) * 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"qwen3.rope.scaling.type": "yarn"}, "qwen3.rope.scaling.type 'yarn'"),
        ({"qwen3.rope.dimension_count": 4}, "partly rotated"),
        ({"general.architecture": "qwen3moe"}, "qwen3moe"),
    ],
)
def test_gguf_variants_that_are_refused(changes: dict[str, Any], named: str) -> None:
    """The metadata's own key is named."""
    with pytest.raises(ModelLoadError, match=named):
        config_from_gguf(GGUF | changes, tied_head=True, rope_divisors=None)
