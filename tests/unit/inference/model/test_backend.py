"""Which code computes the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.model.backend import Asked, choose_library
from inference.model.config import ModelConfig
from inference.model.errors import ModelLoadError
from inference.model.safetensors_weights import SafetensorsWeights
from inference.native.build import BuildError, find_compiler
from tests.support.native_models import native_library
from tests.support.tiny_models import LLAMA, MISTRAL, QWEN2, QWEN3, write_folder

CPU = torch.device("cpu")
# A shape that the native step has tiles for.
TILED = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    """A tiny Llama's shape."""
    return SafetensorsWeights(write_folder(tmp_path, LLAMA | TILED)).config


def _ask(wanted: str, config: ModelConfig, **options: Any) -> object:
    return choose_library(wanted, config, Asked(**{"device": CPU} | options))


def test_torch_is_torch(config: ModelConfig) -> None:
    """Who asks for torch gets torch."""
    assert _ask("torch", config) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "fp32"}, "dtype fp32"),
        ({"kv_cache_dtype": "fp16"}, "in fp16"),
        ({"quantize": "none"}, "without quantization"),
        ({"device": torch.device("cuda")}, "a GPU"),
    ],
)
def test_what_speaks_against_native(
    config: ModelConfig, options: dict[str, Any], reason: str
) -> None:
    """`auto` falls back to torch; `native` says in one line why not, and what to do."""
    assert _ask("auto", config, **options) is None
    with pytest.raises(ModelLoadError, match=reason) as refused:
        _ask("native", config, **options)
    assert "use auto" in str(refused.value)


@pytest.mark.parametrize("family", [MISTRAL, QWEN2, QWEN3], ids=["mistral", "qwen2", "qwen3"])
def test_no_family_speaks_against_native(family: dict[str, Any], tmp_path: Path) -> None:
    """Windows, biases and norms are computed natively where a library is there, or can be built."""
    if native_library() is None:
        pytest.skip("no C++ compiler")
    config = SafetensorsWeights(write_folder(tmp_path, family | TILED)).config
    assert _ask("native", config) is not None


def test_an_unknown_backend_is_refused(config: ModelConfig) -> None:
    """A name that is none of the three is an error that lists them."""
    with pytest.raises(ModelLoadError, match="auto, native, torch"):
        _ask("magic", config)


def test_without_a_compiler_torch_computes(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiler: `auto` serves with torch, `native` says that it cannot."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError):
        find_compiler()
    assert _ask("auto", config) is None
    with pytest.raises(ModelLoadError, match="cannot be built"):
        _ask("native", config)
