"""A sequence says the same whatever its company: a sample of `tests/heavy/test_same_tokens_full.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.model.load import load_model
from tests.support.native_models import LLAMA_SIZES, MISTRAL_SIZES, native_library
from tests.support.same_tokens import count_equal_tokens
from tests.support.tiny_models import LLAMA, MISTRAL, write_folder

# With a window of 40 tokens blocks leave a sequence while it runs.
MODELS = {
    "llama": LLAMA | LLAMA_SIZES,
    "mistral": MISTRAL | MISTRAL_SIZES | {"sliding_window": 40},
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_alone_batched_chunked_cached_preempted_restored(
    backend: str, model: str, tmp_path: Path
) -> None:
    """Greedy and seeded, with penalties and without: 16 requests, not a token differs (CASES 79)."""
    if backend == "native" and native_library() is None:
        pytest.skip("no C++ compiler")
    runner, _ = load_model(
        write_folder(tmp_path, MODELS[model]),
        name="tiny",
        block_size=16,
        kv_blocks=256,
        kv_offload_gib=0.005,
        threads=1,
        cpu_backend=backend,
    )
    # Long enough for windows to be full, and memory with them.
    tokens = 90 if model == "mistral" else 24
    assert count_equal_tokens(runner, requests=16, tokens=tokens) == 5 * 16 * tokens
