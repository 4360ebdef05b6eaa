"""One set of requests, run in every way an engine can run them: the tokens have to be the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inference.engine.limits import EngineLimits
from inference.engine.messages import Done
from inference.engine.plan import Sampled, StepPlan
from inference.engine.runner import ModelInfo, Prepared, Runner
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver, Heard

__all__ = ["WAYS", "NarrowRunner", "ask_all", "count_equal_tokens", "prompts_of"]

SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(seed=5, temperature=1.0),
    Sampling(seed=6, temperature=0.8, top_p=0.9, top_k=40, repetition_penalty=1.1),
    Sampling(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.2),
)
BATCH = 64


class NarrowRunner:
    """A runner that says it has fewer blocks than it has, so that an engine runs out of them."""

    def __init__(self, runner: Runner, *, blocks: int, cold_blocks: int = 0) -> None:
        self._runner = runner
        self.loaded = 0
        self._info = replace(runner.info, total_blocks=blocks, cold_blocks=cold_blocks)

    @property
    def info(self) -> ModelInfo:
        """The runner's, narrowed."""
        return self._info

    def run(self, plan: StepPlan) -> list[Sampled]:
        """The runner's; counts the blocks that come back from the CPU tier."""
        self.loaded += sum(not copy.save for copy in plan.copies)
        return self._runner.run(plan)

    def release(self, sequence_id: int) -> None:
        """The runner's."""
        self._runner.release(sequence_id)

    def close(self) -> None:
        """The runner is not this one's to close."""


def prompts_of(count: int, vocab_size: int) -> list[list[int]]:
    """Prompts of 5 to 104 tokens; every fourth begins like the one before it."""
    prompts: list[list[int]] = []
    for number in range(count):
        length = 5 + 37 * number % 100
        prompt = [
            3 + (number * 7919 + place * 104729) % (vocab_size - 3) for place in range(length)
        ]
        if number % 4 == 3:
            prompt[: length // 2] = prompts[-1][: length // 2]
        prompts.append(prompt)
    return prompts


def _open(driver: EngineDriver, stream: int, prompt: list[int], tokens: int) -> Heard:
    request = GenerateRequest(
        prompt="x",
        max_tokens=tokens,
        ignore_eos=True,
        priority=stream % 10,
        sampling=SAMPLINGS[stream % len(SAMPLINGS)],
    )
    return driver.open(stream, Prepared(prompt, lambda _id: b"x"), request)


def ask_all(
    driver: EngineDriver, prompts: list[list[int]], tokens: int, *, steps_apart: int = 0
) -> list[list[int]]:
    """All prompts' answers; each comes so many steps after the one before, 0: at once."""
    heard = []
    for number, prompt in enumerate(prompts):
        heard.append(_open(driver, number, prompt, tokens))
        for _ in range(steps_apart):
            driver.step()
    driver.run()
    driver.check_idle()
    return [one.ids for one in heard]


def alone(runner: Runner, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Each by itself, from the first token on."""
    driver = EngineDriver(runner, EngineLimits(prefix_cache=False))
    answers = []
    for number, prompt in enumerate(prompts):
        heard = _open(driver, number, prompt, tokens)
        driver.run()
        answers.append(heard.ids)
    return answers


def in_a_batch(runner: Runner, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """All at once, 64 in a step."""
    limits = EngineLimits(batch_max=BATCH, step_tokens_max=4096, prefix_cache=False)
    return ask_all(EngineDriver(runner, limits), prompts, tokens)


def chunked(runner: Runner, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """One after the other, prompts cut into pieces of at most 7 beside those that decode."""
    limits = EngineLimits(
        batch_max=BATCH, step_tokens_max=BATCH + 9, prefill_chunk_busy_max=7, prefix_cache=False
    )
    return ask_all(EngineDriver(runner, limits), prompts, tokens, steps_apart=2)


def cached(runner: Runner, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Each asked before, so that it begins with blocks that somebody else computed."""
    driver = EngineDriver(runner, EngineLimits(batch_max=BATCH))
    for number, prompt in enumerate(prompts):
        _open(driver, 10_000 + number, prompt, 1)
    driver.run()
    answers = ask_all(driver, prompts, tokens)
    ends = [driver.heard(number).end for number in range(len(prompts))]
    assert (
        sum(isinstance(end, Done) and end.usage.cached_tokens > 0 for end in ends) > len(ends) / 2
    )
    return answers


def _too_few(info: ModelInfo, prompts: list[list[int]], tokens: int) -> int:
    """Blocks for a few of the longest sequences."""
    return 3 * -(-(max(map(len, prompts)) + tokens) // info.block_size)


def preempted(runner: Runner, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """In memory for a few of them: blocks are lost, and computed anew."""
    blocks = _too_few(runner.info, prompts, tokens)
    limits = EngineLimits(batch_max=BATCH, prefix_cache=False)
    driver = EngineDriver(NarrowRunner(runner, blocks=blocks), limits)
    answers = ask_all(driver, prompts, tokens)
    # Behind a window nothing grows: who is let in keeps what it has, however long it runs.
    assert runner.info.sliding_window or driver.engine.scheduler.places.preemptions > 0
    return answers


def restored(runner: Runner, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """As before, but what is lost lies in the CPU tier, and comes back from there."""
    blocks = _too_few(runner.info, prompts, tokens)
    narrow = NarrowRunner(runner, blocks=blocks, cold_blocks=runner.info.cold_blocks)
    answers = ask_all(EngineDriver(narrow, EngineLimits(batch_max=BATCH)), prompts, tokens)
    assert narrow.loaded > 0
    return answers


WAYS: tuple[Callable[[Runner, list[list[int]], int], list[list[int]]], ...] = (
    in_a_batch,
    chunked,
    cached,
    preempted,
    restored,
)


def count_equal_tokens(runner: Runner, requests: int, tokens: int) -> int:
    """Tokens that were compared with the solo runs'; asserts that none differs."""
    prompts = prompts_of(requests, runner.info.vocab_size)
    expected = alone(runner, prompts, tokens)
    assert all(len(ids) == tokens for ids in expected)
    for way in WAYS:
        for number, (ids, solo) in enumerate(
            zip(way(runner, prompts, tokens), expected, strict=True)
        ):
            assert ids == solo, f"{way.__name__}: request {number}"
    return len(WAYS) * requests * tokens
