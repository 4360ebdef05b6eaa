"""0 different in 100,000 tokens: the whole of what `tests/contract/test_same_tokens.py` samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.runner import Runner
from inference.model.load import load_model
from tests.support.default_model import default_model_path
from tests.support.native_models import LLAMA_SIZES, MISTRAL_SIZES, native_library
from tests.support.same_tokens import count_equal_tokens
from tests.support.tiny_models import LLAMA, MISTRAL, write_folder

MODELS = {
    "llama": LLAMA | LLAMA_SIZES,
    "mistral": MISTRAL | MISTRAL_SIZES | {"sliding_window": 40},
}
REQUESTS, TOKENS = 64, 320
TOKENS_MIN = 100_000


def _load(path: Path, backend: str) -> Runner:
    if backend == "native" and native_library() is None:
        pytest.skip("no C++ compiler")
    runner, _ = load_model(
        path,
        name="model",
        block_size=16,
        kv_blocks=4096,
        kv_offload_gib=0.25,
        cpu_backend=backend,
    )
    return runner


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_no_token_differs_with_a_tiny_model(backend: str, model: str, tmp_path: Path) -> None:
    """Alone, in a batch of 64, chunked, cached, preempted and restored; greedy and seeded."""
    runner = _load(write_folder(tmp_path, MODELS[model]), backend)
    assert count_equal_tokens(runner, REQUESTS, TOKENS) >= TOKENS_MIN


@pytest.mark.model
@pytest.mark.timeout(3600)
def test_no_token_differs_with_the_default_model() -> None:
    """The same on the native step with the model that is served by default."""
    runner = _load(default_model_path(), "native")
    assert count_equal_tokens(runner, REQUESTS, TOKENS) >= TOKENS_MIN
