"""Every quantization becomes levels without loss, or with a bounded one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from inference.model.gguf_weights import GgufWeights
from inference.native.weights import GROUP, Levels, quantize, read_levels, stack
from tests.support.native_models import QWEN2_SIZES, WIDE_SIZES
from tests.support.tiny_models import LLAMA, QWEN2, write_gguf

QUANTIZATIONS = ("Q4_0", "Q4_1", "Q8_0")
SIZES = QWEN2_SIZES


def _matrix(rows: int = 16, columns: int = 96) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize("config", [LLAMA, QWEN2], ids=["llama", "qwen2"])
@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_a_file_s_own_quantization_is_kept(tmp_path: Path, name: str, config: dict) -> None:
    """Levels of Q4_0, Q4_1 and Q8_0 are the values that GGUF's own code reads, rows in one order."""
    kind = gguf.GGMLQuantizationType[name]
    source = GgufWeights(write_gguf(tmp_path / "m.gguf", config | SIZES, quantization=kind))
    for tensor in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"):
        levels = read_levels(source, tensor)
        assert levels.bits == (8 if name == "Q8_0" else 4)
        np.testing.assert_allclose(levels.values(), source.tensor(tensor).numpy(), atol=1e-6)


def test_q4_k_keeps_its_levels(tmp_path: Path) -> None:
    """Q4_K stays at 4 bits, and its values are GGUF's own up to fp16's rounding of their scales."""
    kind = gguf.GGMLQuantizationType.Q4_K
    sizes = WIDE_SIZES | {"hidden_size": 256, "intermediate_size": 512}
    source = GgufWeights(write_gguf(tmp_path / "m.gguf", LLAMA | sizes, quantization=kind))
    for tensor in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        levels = read_levels(source, tensor)
        assert levels.bits == 4
        scales = np.repeat(levels.scales.astype(np.float32), GROUP, axis=1)
        moved = np.abs(levels.values() - source.tensor(tensor).numpy())
        assert (moved <= (levels.levels + 16.0) * scales / 2048).all()


def test_other_types_are_quantized_to_8_bits(tmp_path: Path) -> None:
    """A tensor kept in fp32 becomes 8-bit levels near it."""
    source = GgufWeights(write_gguf(tmp_path / "m.gguf", LLAMA | SIZES))
    name = "model.layers.0.mlp.gate_proj.weight"
    levels = read_levels(source, name)
    assert levels.bits == 8
    np.testing.assert_allclose(levels.values(), source.tensor(name).numpy(), atol=5e-3)


@pytest.mark.parametrize(("name", "narrowed"), [("F16", 4), ("Q8_0", 4), ("Q4_1", 4), ("F16", 8)])
def test_narrower_levels_on_request(tmp_path: Path, name: str, narrowed: int) -> None:
    """What has more bits is quantized to those asked for; what has few already is left as it is."""
    kind = gguf.GGMLQuantizationType[name]
    source = GgufWeights(write_gguf(tmp_path / "m.gguf", LLAMA | SIZES, quantization=kind))
    tensor = "model.layers.0.mlp.up_proj.weight"
    levels = read_levels(source, tensor, narrowed)
    assert levels.bits == narrowed
    if name == "Q4_1":
        assert (levels.values() == read_levels(source, tensor).values()).all()
    else:
        expected = quantize(source.tensor(tensor).numpy(), narrowed).values()
        assert (levels.values() == expected).all()


@pytest.mark.parametrize(("bits", "scales"), [(8, 0.5), (4, 1.0)])
def test_quantizing_errs_by_half_a_scale(bits: int, scales: float) -> None:
    """No weight moves further than half its group's scale (one of 4 bits), beside fp16's rounding."""
    matrix = _matrix()
    levels = quantize(matrix, bits)
    assert levels.bits == bits
    assert levels.levels.max() < 1 << bits
    allowed = 1.14 * scales * np.repeat(levels.scales.astype(np.float32), GROUP, axis=1)
    assert (np.abs(levels.values() - matrix) <= allowed).all()


def test_four_bits_err_less_than_the_extremes_grid() -> None:
    """Even of weights without outliers the fit takes a twentieth of the squared error that 15 even steps leave."""
    groups = _matrix().reshape(-1, GROUP)
    low, step = groups.min(1, keepdims=True), np.ptp(groups, axis=1, keepdims=True) / 15
    even = low + np.rint((groups - low) / step) * step
    fitted = quantize(groups, 4).values()
    assert np.square(fitted - groups).sum() < 0.95 * np.square(even - groups).sum()


@pytest.mark.parametrize("bits", [8, 4])
def test_a_group_of_zeros_stays_zero(bits: int) -> None:
    """Nothing divides by a scale of zero."""
    matrix = _matrix()
    matrix[3, :GROUP] = 0
    assert (quantize(matrix, bits).values()[3, :GROUP] == 0).all()


def test_stacking_keeps_values() -> None:
    """A matrix of 4 bits below one of 8 bits reads as both did."""
    wide = quantize(_matrix())
    narrow = Levels(4, wide.levels & 0x0F, wide.scales, wide.minima)
    both = stack([wide, narrow])
    assert both.bits == 8
    assert (both.values() == np.concatenate([wide.values(), narrow.values()])).all()


def test_bf16_files_are_read() -> None:
    """A source of bf16 tensors is quantized like one of fp32."""

    class Source:
        config = None

        def has(self, name: str) -> bool:
            return True

        def tensor(self, name: str) -> torch.Tensor:
            return torch.from_numpy(_matrix()).bfloat16()

    expected = torch.from_numpy(_matrix()).bfloat16().float().numpy()
    assert (read_levels(Source(), "any").values() == quantize(expected).values()).all()
