"""Our models compute what Hugging Face transformers computes for the same files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from tests.support.tiny_models import LLAMA, QWEN2, write_folder, write_gguf

LOGITS_MAX_DIFFERENCE = 1e-3
PROMPT = [5, 80, 81, 7, 200, 200, 13, 44, 45, 46, 47, 48, 120, 99, 3, 250, 17, 18, 19, 20]
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TINY = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "llama-linear-rope": LLAMA
    | {"rope_scaling": {"type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "llama-llama3-rope": LLAMA | {"rope_scaling": LLAMA3_ROPE},
    "llama-one-query-a-head": LLAMA | {"num_key_value_heads": 6},
    "mistral": LLAMA
    | {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
    },
}


def _transformer(source: SafetensorsWeights | GgufWeights) -> tuple[Transformer, KvCache]:
    device = torch.device("cpu")
    model = load_transformer(source, torch.float32, device, lambda _share: None)
    return model, KvCache(source.config, 64, 16, torch.float32, device)


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_equals_transformers(name: str, tmp_path: Path) -> None:
    """Logits of every position agree within 1e-3, and so do 64 greedy tokens."""
    folder = write_folder(tmp_path, TINY[name])
    reference = load_folder(folder)
    model, cache = _transformer(SafetensorsWeights(folder))
    with torch.inference_mode():
        ours = logits_of(model, cache, PROMPT)
    assert (ours - logits(reference, PROMPT)).abs().max() < LOGITS_MAX_DIFFERENCE
    runner, _ = load_model(
        folder, name="tiny", dtype="fp32", block_size=16, kv_blocks=64, threads=1
    )
    expected = greedy_ids(reference, PROMPT, 64, frozenset())
    assert generate(runner, PROMPT, 64, stop_at_eos=False) == expected


@pytest.mark.parametrize("config", [LLAMA, QWEN2], ids=["llama", "qwen2"])
def test_a_gguf_file_equals_the_folder_it_was_made_of(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """The converter's order of queries and keys, and its names, are undone exactly."""
    folder, folder_cache = _transformer(SafetensorsWeights(write_folder(tmp_path, config)))
    file, file_cache = _transformer(GgufWeights(write_gguf(tmp_path / "tiny.gguf", config)))
    with torch.inference_mode():
        expected = logits_of(folder, folder_cache, PROMPT)
        assert torch.equal(logits_of(file, file_cache, PROMPT), expected)


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
    """In fp32, the logits of twelve positions agree within 1e-3."""
    _, preparer = load_default_model("fp32")
    model, cache = _transformer(GgufWeights(default_model_path()))
    prompt = ask(preparer, QUESTIONS[0])[-12:]
    with torch.inference_mode():
        ours = logits_of(model, cache, prompt)
    assert (ours - logits(default_reference, prompt)).abs().max() < LOGITS_MAX_DIFFERENCE


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
