"""The runner: same words in any company, through any chunks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inference.engine.plan import StepPlan
from inference.model.load import load_model
from inference.model.torch_runner import TorchRunner, default_threads
from seedance.protocol.request import Sampling
from tests.support.solo import GREEDY, SoloSequence, generate, run_together
from tests.support.tiny_models import LLAMA, MISTRAL, QWEN2, QWEN3, write_folder

SAMPLED = Sampling(temperature=1.2, top_p=0.95, frequency_penalty=0.3)
PROMPTS = [
    [(7 * index + 3 * place) % 280 for place in range(1 + 11 * index)] for index in range(16)
]


# A family, its compute type, its quantization and how keys and values are kept.
KINDS = (
    "llama fp32 none auto",
    "llama bf16 none auto",
    "qwen2 fp32 none bf16",
    "qwen2 bf16 none fp16",
    "mistral fp32 int8 fp16",
    "mistral bf16 int4 fp32",
    "qwen3 bf16 int8 auto",
    "qwen3 fp32 int4 bf16",
)
FAMILIES = {"llama": LLAMA, "qwen2": QWEN2, "mistral": MISTRAL, "qwen3": QWEN3}
# Sizes that 4-bit kernels take.
SIZES = {"hidden_size": 64, "num_attention_heads": 8, "head_dim": 16}


@pytest.fixture(scope="module", params=KINDS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    """A tiny model of each architecture, in each type and quantization."""
    family, dtype, quantize, kept = request.param.split()
    folder = write_folder(tmp_path_factory.mktemp(family), FAMILIES[family] | SIZES)
    found, _ = load_model(
        folder,
        name=family,
        dtype=dtype,
        quantize=quantize,
        kv_cache_dtype=kept,
        cpu_backend="torch",
        block_size=16,
        kv_blocks=512,
        threads=1,
    )
    return found


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_sixteen_together_say_what_each_says_alone(runner: TorchRunner, sampling: Sampling) -> None:
    """Batch, chunks and block tables change no token."""
    together = [
        SoloSequence(prompt, 40, sampling, seed=index, chunk=16, stop_at_eos=False)
        for index, prompt in enumerate(PROMPTS)
    ]
    run_together(runner, together)
    for index, prompt in enumerate(PROMPTS):
        alone = generate(runner, prompt, 40, sampling=sampling, seed=index, stop_at_eos=False)
        assert alone == together[index].answer_ids, index


@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_chunks_change_nothing(runner: TorchRunner, chunk: int) -> None:
    """A prompt in chunks of 1, 5 and 16 is followed by what follows it whole."""
    whole = generate(runner, PROMPTS[-1], 12, stop_at_eos=False)
    assert generate(runner, PROMPTS[-1], 12, chunk=chunk, stop_at_eos=False) == whole


def test_a_continuation_goes_on_where_the_first_instance_stopped(runner: TorchRunner) -> None:
    """With the first tokens forced, the rest is what an uninterrupted run says (CASES 66)."""
    options = {"sampling": SAMPLED, "seed": 7, "stop_at_eos": False}
    whole = generate(runner, PROMPTS[5], 40, **options)
    resumed = SoloSequence(PROMPTS[5], 40, SAMPLED, 7, stop_at_eos=False, answer_ids=whole[:20])
    run_together(runner, [resumed])
    assert resumed.answer_ids == whole


def test_an_empty_step_is_nothing(runner: TorchRunner) -> None:
    """No rows, no results."""
    assert runner.run(StepPlan([])) == []


def test_chunks_that_end_before_the_prompt_choose_nothing(runner: TorchRunner) -> None:
    """Only a row that samples has a result."""
    row = SoloSequence(PROMPTS[-1], 1, chunk=8).next_row(3, list(range(20)))
    assert not row.sample
    assert runner.run(StepPlan([row])) == []


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (9, 6)])
def test_default_threads_leave_room(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the cores, rounded up, is left to others, and one thread always runs."""
    # Numbers that no machine has: each is then a core of its own.
    usable = range(100_000, 100_000 + cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(usable))
    assert default_threads() == threads


def test_a_closed_runner_lets_its_memory_go(tmp_path: Path) -> None:
    """Nothing is left to run with."""
    closed, _ = load_model(
        write_folder(tmp_path, LLAMA), name="x", dtype="fp32", kv_blocks=4, threads=1
    )
    closed.release(1)
    closed.close()
    with pytest.raises(AttributeError):
        closed.run(StepPlan([SoloSequence([1, 2], 1).next_row(0, [0])]))
