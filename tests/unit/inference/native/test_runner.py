"""The native step says what the torch model says, and no row's neighbours matter to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from inference.engine.plan import PlanRow, StepPlan
from inference.model.config import config_from_hf
from inference.model.errors import ModelLoadError
from inference.model.gguf_weights import GgufWeights
from inference.model.safetensors_weights import SafetensorsWeights
from inference.model.sampler import sample
from inference.model.weights import WeightSource
from inference.native.runner import NativeRunner, why_unsupported
from seedance.protocol.request import Sampling
from tests.support.native_models import (
    BLOCK_SIZE,
    BLOCKS_OF_256_SIZES,
    LLAMA_SIZES,
    MISTRAL_SIZES,
    MULTIQUERY_SIZES,
    QWEN2_SIZES,
    QWEN3_SIZES,
    WIDE_SIZES,
    divergence,
    native_library,
    native_runner,
    plan_row,
    torch_logits,
)
from tests.support.tiny_models import LLAMA, MISTRAL, QWEN2, QWEN3, write_folder, write_gguf

_LIBRARY = native_library()
PATHS = _LIBRARY.paths() if _LIBRARY else ()
pytestmark = pytest.mark.skipif(_LIBRARY is None, reason="no C++ compiler")

CONFIGS = {
    "llama": LLAMA | LLAMA_SIZES,
    "mistral": MISTRAL | MISTRAL_SIZES,  # with a window of 24, which leaves the first page behind
    "qwen2": QWEN2 | QWEN2_SIZES,
    "qwen3": QWEN3 | QWEN3_SIZES,
    "wide": LLAMA | WIDE_SIZES,
    "multiquery": LLAMA | MULTIQUERY_SIZES,  # more heads than read a page together
    "blocks": LLAMA | BLOCKS_OF_256_SIZES,
}
TOKENS = [int(token) for token in np.random.default_rng(5).integers(3, 280, 41)]
TABLE = (7, 2, 9)  # pages in no order
# Random weights amplify what 8-bit inputs round off far more than a trained model's do; a wrong
# rotation, page or scale leaves nothing of the likeness.
DIVERGENCE_MAX = 0.08
NEARNESS_MIN = 0.99


def _nearness(one: np.ndarray, other: np.ndarray) -> float:
    """Mean cosine of two sets of logits [tokens, vocab]."""
    pairs = torch.cosine_similarity(torch.from_numpy(one), torch.from_numpy(other))
    return float(pairs.mean())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], WeightSource]:
    """A model by its name in `CONFIGS`; its GGUF file where a quantization is named behind."""

    @cache
    def open_source(name: str) -> WeightSource:
        folder = tmp_path_factory.mktemp("models")
        family, _, quantized = name.partition("-")
        if quantized:
            kind = gguf.GGMLQuantizationType[quantized]
            return GgufWeights(write_gguf(folder / "m.gguf", CONFIGS[family], quantization=kind))
        return SafetensorsWeights(write_folder(folder / "m", CONFIGS[family]))

    return open_source


def _one_by_one(runner: NativeRunner, tokens: list[int] = TOKENS) -> np.ndarray:
    """Logits after each token [tokens, vocab], a step each."""
    rows = [
        runner.forward(StepPlan([plan_row([token], start=position, table=TABLE)]))[0][0].copy()
        for position, token in enumerate(tokens)
    ]
    return np.stack(rows)


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "qwen2", "qwen3", "wide", "multiquery", "llama-Q4_1", "qwen3-Q4_1"]
)
@pytest.mark.parametrize("path", PATHS)
def test_logits_are_near_fp32(source: Callable[[str], WeightSource], name: str, path: str) -> None:
    """Each family, head size and instruction set is near the torch model in fp32."""
    reference = torch_logits(source(name), TOKENS)
    runner = native_runner(source(name), path)
    logits = _one_by_one(runner)
    runner.close()
    assert divergence(reference, logits) < DIVERGENCE_MAX
    assert _nearness(reference, logits) > NEARNESS_MIN


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K"])
def test_every_file_s_quantization_is_near_fp32(
    source: Callable[[str], WeightSource], kind: str
) -> None:
    """Each GGUF quantization is as near to its own values in fp32 as unquantized weights are."""
    reference = torch_logits(source(f"blocks-{kind}"), TOKENS)
    runner = native_runner(source(f"blocks-{kind}"))
    assert divergence(reference, _one_by_one(runner)) < DIVERGENCE_MAX
    runner.close()


@pytest.mark.parametrize("name", ["llama-Q4_1", "qwen2"])
def test_instruction_sets_agree(source: Callable[[str], WeightSource], name: str) -> None:
    """What is fast says what plain C++ says, up to the order of sums."""
    logits = {}
    for path in PATHS:
        runner = native_runner(source(name), path)
        logits[path] = _one_by_one(runner)
        runner.close()
    for path in PATHS:
        assert _nearness(logits["portable"], logits[path]) > 0.999, path


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["llama-Q4_1", "mistral", "multiquery", "qwen2"])
def test_a_row_does_not_depend_on_the_batch(
    source: Callable[[str], WeightSource], name: str, path: str
) -> None:
    """Logits are the same, bit for bit, alone, among decodes and prompts, and in any chunks."""
    runner = native_runner(source(name), path)
    alone = _one_by_one(runner)[-1]
    for cut in (1, 16, 23, 40):
        runner.forward(StepPlan([plan_row(TOKENS[:cut], table=TABLE, sample=False)]))
        rest = plan_row(TOKENS[cut:], start=cut, table=TABLE)
        decodes = [plan_row([9 + i], table=(20 + i,), sequence_id=i) for i in range(cut % 11)]
        prompt = plan_row(TOKENS[::-1], table=(40, 41, 42), sequence_id=99)
        logits, _ = runner.forward(StepPlan([*decodes, rest, prompt]))
        assert (logits[len(decodes)] == alone).all(), f"cut at {cut}"
    runner.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_block_that_left_the_window_is_not_read(
    source: Callable[[str], WeightSource], path: str
) -> None:
    """Behind the window a table may name any block: nothing there changes a bit."""
    runner = native_runner(source("mistral"), path)
    whole = _one_by_one(runner)[-1]
    poison = 30
    runner.forward(StepPlan([plan_row([13] * BLOCK_SIZE, table=(poison,))]))
    last = len(TOKENS) - 1
    for start in (last, last - 1):
        row = plan_row(TOKENS[start:], start=start, table=(poison, *TABLE[1:]))
        logits, _ = runner.forward(StepPlan([row]))
        assert (logits[0] == whole).all()
    runner.close()


@pytest.mark.parametrize("path", PATHS)
def test_threads_change_nothing(source: Callable[[str], WeightSource], path: str) -> None:
    """One thread and three compute the same bits."""
    one, three = (native_runner(source("llama"), path, threads=threads) for threads in (1, 3))
    assert (_one_by_one(one) == _one_by_one(three)).all()
    one.close()
    three.close()


@pytest.mark.parametrize("path", PATHS)
def test_block_sizes_change_nothing(source: Callable[[str], WeightSource], path: str) -> None:
    """Pages of 16 and of 64 hold the same keys and values."""
    small, large = (native_runner(source("wide"), path, block_size=size) for size in (16, 64))
    assert (_one_by_one(small) == _one_by_one(large)).all()
    small.close()
    large.close()


@pytest.mark.parametrize("path", PATHS)
def test_what_an_ended_sequence_left_weighs_nothing(
    source: Callable[[str], WeightSource], path: str
) -> None:
    """In blocks that another sequence filled before, a sequence computes the same bits."""
    runner = native_runner(source("llama"), path)
    fresh = _one_by_one(runner)
    runner.forward(StepPlan([plan_row([11] * 48, table=TABLE)]))
    assert (_one_by_one(runner) == fresh).all()
    runner.close()


def _three(sampling: Sampling) -> list[PlanRow]:
    return [
        plan_row([5, 6], table=(0,), sequence_id=1),
        plan_row([7], table=(1,), sequence_id=2, sampling=sampling),
        plan_row([8], table=(2,), sequence_id=3, sample=False),
        plan_row([9, 10], table=(3,), sequence_id=4),
    ]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=0.9),
        Sampling(temperature=0.0, logprobs=2),
        Sampling(temperature=0.0, logit_bias={17: 100.0}),
    ],
    ids=["greedy", "seeded", "logprobs", "biased"],
)
def test_every_row_that_samples_is_answered_in_order(
    source: Callable[[str], WeightSource], sampling: Sampling
) -> None:
    """Whatever a row asks for, its answer is the sampler's own over its logits."""
    runner = native_runner(source("llama"))
    plan = StepPlan(_three(sampling))
    logits, _ = runner.forward(plan)
    expected = sample(torch.from_numpy(logits.copy()), [row for row in plan.rows if row.sample])
    assert runner.run(plan) == expected
    runner.close()


def test_a_step_without_samplers_answers_nothing(source: Callable[[str], WeightSource]) -> None:
    """A prompt's first chunk, and an empty plan, have no token to choose."""
    runner = native_runner(source("llama"))
    assert runner.run(StepPlan([plan_row([5, 6], sample=False)])) == []
    assert runner.run(StepPlan([])) == []
    runner.release(0)
    runner.close()


def test_a_misshapen_tensor_is_refused(tmp_path: Path) -> None:
    """A file that differs from its own configuration is an error, and nothing is read past its end."""
    config = CONFIGS["llama"]
    folder = write_folder(tmp_path / "m", config)
    damaged = config | {"intermediate_size": 128}
    (folder / "config.json").write_text(json.dumps(damaged))
    with pytest.raises(ModelLoadError, match=r"gate_proj.* has shape"):
        native_runner(SafetensorsWeights(folder))


def test_what_is_unsupported_is_said() -> None:
    """Sizes the kernels cannot take are named, and those they can are not."""
    assert why_unsupported(config_from_hf(CONFIGS["llama"], {}), 64) is None
    assert "hidden size 48" in (why_unsupported(config_from_hf(LLAMA, {}), 64) or "")
    assert "block size 8" in (why_unsupported(config_from_hf(CONFIGS["llama"], {}), 8) or "")
