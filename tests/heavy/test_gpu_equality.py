"""On a GPU, the default model says what transformers says; each way to read the cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from inference.model.backend import GpuOptions
from inference.model.cuda_runner import CudaRunner
from inference.model.load import load_model
from inference.model.preparer import HfPreparer
from seedance.protocol.request import Sampling
from tests.support.default_model import QUESTIONS, ask, default_model_path
from tests.support.reference import greedy_ids, load_gguf, logits
from tests.support.solo import SoloSequence, run_together

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(280),
    pytest.mark.filterwarnings("ignore"),  # of compilers and drivers
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
TOKENS = 24
ASKED = QUESTIONS[:8]


@cache
def _reference() -> Any:
    return load_gguf(default_model_path())


def _load(dtype: str, block_size: int) -> tuple[CudaRunner, HfPreparer]:
    runner, preparer = load_model(
        default_model_path(),
        name="default",
        dtype=dtype,
        block_size=block_size,
        kv_blocks=128,
        gpu=GpuOptions(rows_max=8),
    )
    assert isinstance(runner, CudaRunner)
    return runner, preparer


@pytest.mark.parametrize("chunk", [1 << 30, 40])
def test_fp32_says_the_same(chunk: int) -> None:
    """24 greedy tokens of 8 prompts together, whole and in chunks, are transformers' on a CPU."""
    runner, preparer = _load("fp32", 64)
    prompts = [ask(preparer, question) for question in ASKED]
    together = [SoloSequence(prompt, TOKENS, chunk=chunk) for prompt in prompts]
    run_together(runner, together)
    eos = runner.info.eos_token_ids
    for sequence, prompt in zip(together, prompts, strict=True):
        assert sequence.answer_ids == greedy_ids(_reference(), prompt, TOKENS, eos)


@pytest.mark.parametrize("block_size", [256, 64, 16])
def test_bf16_is_near(block_size: int) -> None:
    """What it says, transformers in fp32 finds nearly as likely: each token's logarithm within 0.3, on average 0.05."""
    runner, preparer = _load("bf16", block_size)
    prompts = [ask(preparer, question) for question in ASKED]
    wish = Sampling(temperature=0, logprobs=0)
    together = [SoloSequence(prompt, TOKENS, wish) for prompt in prompts]
    run_together(runner, together)
    gaps = []
    for sequence, prompt in zip(together, prompts, strict=True):
        known = logits(_reference(), prompt + sequence.answer_ids).log_softmax(-1)
        for place, one in enumerate(sequence.sampled):
            expected = float(known[len(prompt) - 1 + place, one.token_id])
            assert one.logprob is not None
            gaps.append(abs(one.logprob - expected))
    assert max(gaps) < 0.3
    assert sum(gaps) / len(gaps) < 0.05
