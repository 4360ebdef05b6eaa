"""How far a model moves when its weights, or its keys and values, get fewer bits.

The default model's file holds 4-bit groups, which quantizing anew would find again: its columns are
shuffled first, so that what is lost is what a model in full precision would lose.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference.model.batch import build_batch
from inference.model.gguf_weights import GgufWeights
from inference.model.kv_cache import KvCache, kv_dtype
from inference.model.text_files import text_of_gguf
from inference.model.transformer import load_transformer
from tests.support.default_model import default_model_path
from tests.support.native_models import divergence, native_library, native_runner, token_rows
from tests.support.shuffled import Shuffled

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

CPU = torch.device("cpu")
TABLE = tuple(range(8))
TEXT = (
    "The history of the lighthouse is older than the history of the town. Long before the first "
    "houses were built along the bay, sailors had learned to look for the fire that burned on the "
    "northern cliff.\n\ndef merge(left, right):\n    # Both lists are sorted; so is the result.\n"
    "    merged = []\n    i = j = 0\n    while i < len(left) and j < len(right):\n"
)


@cache
def _source() -> GgufWeights:
    return GgufWeights(default_model_path())


@cache
def _text() -> list[int]:
    return text_of_gguf(_source().fields).tokenizer.encode(TEXT).ids


@cache
@torch.inference_mode()
def _logits(quantize: str, kept: str) -> NDArray[np.float32]:
    """What torch says in fp32 after each token of the text."""
    source = Shuffled(_source())
    model = load_transformer(source, torch.float32, CPU, lambda _share: None, quantize)
    dtype = kv_dtype(kept, torch.float32)
    cache = KvCache(source.config, len(TABLE), 16, dtype, CPU)
    batch = build_batch(token_rows(_text(), TABLE), source.config, 16, torch.float32, CPU)
    logits: NDArray[np.float32] = model.forward(batch, cache).numpy()
    return logits


@pytest.mark.parametrize(("quantize", "nats"), [("int8", 0.006), ("int4", 0.3)])
def test_torch_s_kernels_stay_near(quantize: str, nats: float) -> None:
    """KL per token of a model of 135 million weights: int8 at most 0.006, int4 at most 0.3."""
    moved = divergence(_logits("none", "fp32"), _logits(quantize, "fp32"))
    assert 0 < moved <= nats


@pytest.mark.skipif(native_library() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("bits", "nats"), [(8, 0.004), (4, 0.3)])
def test_the_native_step_s_levels_stay_near(bits: int, nats: float) -> None:
    """KL per token: 8 bits at most 0.004, 4 bits at most 0.3."""
    runner = native_runner(Shuffled(_source()), layer_bits=bits)
    logits, _ = runner.forward(token_rows(_text(), TABLE))
    assert 0 < divergence(_logits("none", "fp32"), logits) <= nats
    runner.close()


@pytest.mark.parametrize(("kept", "nats"), [("bf16", 0.0001), ("fp16", 0.000002)])
def test_keys_and_values_in_half_the_bits_stay_near(kept: str, nats: float) -> None:
    """KL per token of an fp32 model: bf16 at most 1e-4, fp16 at most 2e-6."""
    assert 0 < divergence(_logits("none", "fp32"), _logits("none", kept)) <= nats
