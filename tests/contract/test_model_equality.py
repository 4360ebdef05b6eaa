"""Our models compute what Hugging Face transformers computes for the same files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from inference.model.gguf_weights import GgufWeights
from inference.model.kv_cache import KvCache
from inference.model.load import load_model
from inference.model.safetensors_weights import SafetensorsWeights
from inference.model.transformer import Transformer, load_transformer
from tests.support.default_model import QUESTIONS, ask, default_model_path, load_default_model
from tests.support.reference import greedy_ids, load_folder, load_gguf, logits
from tests.support.solo import SoloSequence, generate, logits_of, run_together
from tests.support.tiny_models import (
    LLAMA,
    LLAMA3_ROPE,
    MISTRAL,
    QWEN2,
    QWEN3,
    kept_weights,
    write_folder,
    write_gguf,
)

LOGITS_MAX_DIFFERENCE = 1e-3  # of the largest logit
# Longer than the tiny models' windows, and than a tile.
PROMPT = [(31 * i * i + 7 * i) % 280 + 3 for i in range(70)]
COMPANY = [PROMPT[:1], PROMPT[3:36], PROMPT[::-1]]
TINY = {
    "llama": LLAMA,
    "llama-linear-rope": LLAMA
    | {"rope_scaling": {"type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "llama-llama3-rope": LLAMA | {"rope_scaling": LLAMA3_ROPE},
    "llama-one-query-a-head": LLAMA | {"num_key_value_heads": 6},
    "smollm2": LLAMA | {"tie_word_embeddings": True, "num_key_value_heads": 3},
    "mistral": MISTRAL,
    "mistral-no-window": MISTRAL | {"sliding_window": None},
    "qwen2": QWEN2,
    "qwen2-window-above": QWEN2
    | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    "qwen3": QWEN3,
    "qwen3-windows-listed": QWEN3
    | {
        "use_sliding_window": True,
        "sliding_window": 33,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
GGUF_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
GGUF_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "head_dim": 32,
}


def _transformer(source: SafetensorsWeights | GgufWeights) -> tuple[Transformer, KvCache]:
    device = torch.device("cpu")
    model = load_transformer(source, torch.float32, device, lambda _share: None)
    return model, KvCache(source.config, 64, 16, torch.float32, device)


def _open(path: Path) -> SafetensorsWeights | GgufWeights:
    return SafetensorsWeights(path) if path.is_dir() else GgufWeights(path)


def _check_equal(path: Path, reference: Any) -> None:
    """Logits within 1e-3 of the largest; 64 greedy tokens the same, alone and in company."""
    model, cache = _transformer(_open(path))
    with torch.inference_mode():
        ours = logits_of(model, cache, PROMPT)
    expected = logits(reference, PROMPT)
    assert (ours - expected).abs().max() < LOGITS_MAX_DIFFERENCE * expected.abs().max()
    runner, _ = load_model(path, name="tiny", dtype="fp32", block_size=16, kv_blocks=64, threads=1)
    ids = greedy_ids(reference, PROMPT, 64, frozenset())
    assert generate(runner, PROMPT, 64, stop_at_eos=False) == ids
    together = [
        SoloSequence(prompt, 64, chunk=13 + index, stop_at_eos=False)
        for index, prompt in enumerate([*COMPANY, PROMPT])
    ]
    run_together(runner, together)
    assert together[-1].answer_ids == ids


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_equals_transformers(name: str, tmp_path: Path) -> None:
    """Each family in Hugging Face's layout, its prompt longer than its windows."""
    folder = write_folder(tmp_path, TINY[name])
    _check_equal(folder, load_folder(folder))


def test_a_model_in_shards_equals_transformers(tmp_path: Path) -> None:
    """Weights over three files, with an index."""
    folder = write_folder(tmp_path, QWEN2, shards=3)
    _check_equal(folder, load_folder(folder))


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_a_gguf_type_equals_transformers(kind: str, tmp_path: Path) -> None:
    """Each quantization is read as the values that it stands for."""
    config = LLAMA | GGUF_SIZES
    quantization = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "tiny.gguf", config, quantization=quantization)
    kept = kept_weights(config, quantization)
    _check_equal(path, load_folder(write_folder(tmp_path / "kept", config, weights=kept)))


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-linear-rope", "llama-llama3-rope", "smollm2", "mistral", "qwen2", "qwen3"],
)
def test_a_gguf_file_equals_the_folder_it_was_made_of(name: str, tmp_path: Path) -> None:
    """The converter's order of queries and keys, its names and its scalings are undone exactly."""
    config = TINY[name]
    folder, folder_cache = _transformer(SafetensorsWeights(write_folder(tmp_path, config)))
    file, file_cache = _transformer(GgufWeights(write_gguf(tmp_path / "tiny.gguf", config)))
    with torch.inference_mode():
        expected = logits_of(folder, folder_cache, PROMPT)
        torch.testing.assert_close(
            logits_of(file, file_cache, PROMPT), expected, rtol=1e-5, atol=1e-5
        )


@pytest.fixture(scope="module")
def default_reference() -> Iterator[Any]:
    """The default model as transformers reads it."""
    return load_gguf(default_model_path())


@pytest.mark.model
@pytest.mark.timeout(240)
def test_the_default_model_equals_transformers(default_reference: Any) -> None:
    """In fp32, 64 greedy tokens of three prompts are the same ids."""
    runner, preparer = load_default_model("fp32")
    for question in (QUESTIONS[0], QUESTIONS[2], QUESTIONS[7]):
        prompt = ask(preparer, question)
        expected = greedy_ids(default_reference, prompt, 64, runner.info.eos_token_ids)
        assert generate(runner, prompt, 64) == expected, question


@pytest.mark.model
@pytest.mark.timeout(240)
def test_the_default_models_logits_equal_transformers(default_reference: Any) -> None:
    """In fp32, the logits of twelve positions agree within 1e-3 of the largest."""
    _, preparer = load_default_model("fp32")
    model, cache = _transformer(GgufWeights(default_model_path()))
    prompt = ask(preparer, QUESTIONS[0])[-12:]
    with torch.inference_mode():
        ours = logits_of(model, cache, prompt)
    expected = logits(default_reference, prompt)
    assert (ours - expected).abs().max() < LOGITS_MAX_DIFFERENCE * expected.abs().max()


@pytest.mark.model
@pytest.mark.timeout(240)
@pytest.mark.parametrize("dtype", ["fp32", "auto"])
def test_sixteen_together_say_what_each_says_alone(dtype: str) -> None:
    """A batch of 16 changes no answer, in fp32 and in the type that the machine gets by default."""
    runner, preparer = load_default_model(dtype)
    prompts = [ask(preparer, question) for question in QUESTIONS[:16]]
    together = [SoloSequence(prompt, 16, chunk=32) for prompt in prompts]
    run_together(runner, together)
    for index in (0, 7, 14):
        assert generate(runner, prompts[index], 16) == together[index].answer_ids
