"""What the decoder makes of its weights, beside equality with transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.model.kv_cache import KvCache
from inference.model.safetensors_weights import SafetensorsWeights
from inference.model.transformer import load_transformer
from tests.support.solo import logits_of
from tests.support.tiny_models import MISTRAL, QWEN3, tiny_weights, write_folder

CPU = torch.device("cpu")
# Sizes that 4-bit kernels take.
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
}
PROMPT = [(11 * i * i + 5) % 280 for i in range(50)]


@torch.inference_mode()
def _logits(source: SafetensorsWeights, quantize: str) -> torch.Tensor:
    model = load_transformer(source, torch.float32, CPU, lambda _share: None, quantize)
    return logits_of(model, KvCache(source.config, 8, 16, torch.float32, CPU), PROMPT)


@pytest.mark.parametrize(("quantize", "likeness"), [("int8", 0.999), ("int4", 0.85)])
@pytest.mark.parametrize("config", [MISTRAL, QWEN3], ids=["mistral", "qwen3"])
def test_quantized_weights_say_nearly_the_same(
    config: dict, quantize: str, likeness: float, tmp_path: Path
) -> None:
    """Logits point where those of the full weights point, and are not the same ones."""
    source = SafetensorsWeights(write_folder(tmp_path, config | SIZES))
    exact, found = _logits(source, "none"), _logits(source, quantize)
    assert torch.cosine_similarity(exact, found).mean() > likeness
    assert not torch.equal(exact, found)


def test_four_bits_leave_the_head_eight(tmp_path: Path) -> None:
    """Of a model whose layers add nothing, int4 says what int8 says."""
    config = QWEN3 | SIZES
    weights = tiny_weights(config)
    for name, tensor in weights.items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
    source = SafetensorsWeights(write_folder(tmp_path, config, weights=weights))
    assert torch.equal(_logits(source, "int4"), _logits(source, "int8"))
