"""The engine's memory: who gets blocks, who shares them, who gives them back, and that no text shows it."""

from __future__ import annotations

import random

import pytest

from inference.engine.limits import EngineLimits
from inference.engine.runner import Prepared
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver, script_driver
from tests.support.fake_runner import FakeRunner, fake_info


def _fake(limits: EngineLimits | None = None, **info: object) -> EngineDriver:
    return EngineDriver(FakeRunner(fake_info(**info)), limits)  # type: ignore[arg-type]


def _prompt(*ids: int) -> Prepared:
    return Prepared(list(ids), lambda token_id: bytes([token_id]))


def _request(max_tokens: int) -> GenerateRequest:
    return GenerateRequest(prompt="x", max_tokens=max_tokens, sampling=Sampling(seed=1))


def test_preemption_changes_no_text() -> None:
    """CASES 79: two requests in a pool too small for both each equal their solo run."""
    limits = EngineLimits(batch_max=4, step_tokens_max=64, prefill_chunk_busy_max=16)
    solos = []
    for prompt in ((1, 2, 3), (4, 5, 6)):
        solo = _fake(limits)
        heard = solo.open(1, _prompt(*prompt), _request(100))
        solo.run()
        solos.append(heard.ids)
    driver = _fake(limits, total_blocks=10, block_size=16)
    both = [
        driver.open(1, _prompt(1, 2, 3), _request(100)),
        driver.open(2, _prompt(4, 5, 6), _request(100)),
    ]
    driver.run()
    assert driver.engine.scheduler.places.preemptions >= 1
    assert [heard.ids for heard in both] == solos
    driver.check_idle()


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_aborts_at_random_phases(seed: int) -> None:
    """CASES 29: queued, prefill, decode, finishing: one end each, no exception, no block lost.

    Two of the models have a sliding window, two have a CPU tier.
    """
    dice = random.Random(seed)
    limits = EngineLimits(batch_max=8, step_tokens_max=24, prefill_chunk_busy_max=8)
    driver = _fake(
        limits,
        total_blocks=40,
        block_size=4,
        context_length=120,
        sliding_window=10 if seed % 2 else None,
        cold_blocks=8 if seed > 1 else 0,
    )
    streams: dict[int, int] = {}
    for stream in range(1, 251):
        driver.open(
            stream,
            _prompt(*(dice.randrange(200) for _ in range(dice.randrange(1, 60)))),
            _request(dice.randrange(1, 30)),
        )
        streams[stream] = driver.steps + dice.randrange(12)
        for _ in range(dice.randrange(3)):
            driver.step()
        for due, when in list(streams.items()):
            if when <= driver.steps:
                driver.cancel(due)
                del streams[due]
    for due in streams:
        driver.cancel(due)
    driver.run()
    assert all(len(heard.ends) == 1 for heard in driver.streams.values())
    assert len(driver.records) == 250
    driver.check_idle()


def test_a_tenants_prompt_is_found_by_itself_only() -> None:
    """CASES 80: B's same prompt hits nothing of A's, nor does a direct caller's; A's does."""
    driver = _fake()
    prompt = _prompt(*(i % 200 for i in range(2000)))

    def cached(stream: int, **who: object) -> int:
        heard = driver.open(stream, prompt, _request(3), **who)
        driver.run()
        assert len(heard.ids) == 3
        return heard.end.usage.cached_tokens  # type: ignore[union-attr]

    assert cached(1, tenant="a", lasting=True) == 0
    assert cached(2, tenant="b", lasting=True) == 0
    assert cached(3) == 0
    # Whoever is not believed is one tenant, whatever name it gives.
    assert cached(4, tenant="a") > 0
    assert cached(5, tenant="direct", lasting=True) == 0
    assert cached(6, tenant="a", lasting=True) == 1984
    assert cached(7, tenant="b", lasting=True) == 1984


def test_shared_blocks_change_no_text() -> None:
    """The same prompt again, at once and with another ending, says what it says alone."""
    beginning = [i % 200 for i in range(70)]
    alone = []
    for ending in (1, 2):
        solo = _fake(EngineLimits(prefix_cache=False))
        heard = solo.open(1, _prompt(*beginning, ending), _request(40))
        solo.run()
        assert heard.end.usage.cached_tokens == 0  # type: ignore[union-attr]
        alone.append(heard.ids)
    driver = _fake()
    for index in range(4):
        driver.open(10 + index, _prompt(*beginning, 1 + index % 2), _request(40))
        driver.run(steps=3 * index)
    driver.run()
    assert [driver.heard(10 + index).ids for index in range(4)] == alone * 2
    driver.check_idle()


def test_the_next_turn_finds_prompt_and_answer() -> None:
    """A conversation's history is computed once."""
    driver = _fake()
    first = driver.open(1, _prompt(*range(40)), _request(30))
    driver.run()
    second = driver.open(2, _prompt(*range(40), *first.ids, 7), _request(3))
    driver.run()
    assert second.end.usage.cached_tokens == 64  # type: ignore[union-attr]


def test_a_continuation_finds_what_its_instance_still_has() -> None:
    """Reopened with a forced prefix it computes the tail alone; cached never exceeds the prompt."""
    runner = FakeRunner(fake_info())
    driver = EngineDriver(runner)
    whole = driver.open(1, _prompt(*range(40)), _request(30), lasting=True, tenant="a")
    driver.run()
    runner.plans.clear()
    again = driver.open(
        2,
        _prompt(*range(40)),
        _request(30),
        generation="again",
        lasting=True,
        tenant="a",
        forced_ids=tuple(whole.ids[:25]),
    )
    driver.run()
    assert again.ids == whole.ids[25:]
    assert again.end.usage.cached_tokens == 40  # type: ignore[union-attr]
    assert runner.plans[0].rows[0].start == 64


def test_ten_thousand_short_requests_leave_nothing() -> None:
    """CASES 30: with 30 % aborted and 5 % of the calls broken, used less evictable is 0 after all."""
    dice = random.Random(30)
    limits = EngineLimits(batch_max=16, step_tokens_max=64, prefill_chunk_busy_max=64)
    driver = script_driver(limits, kv_blocks=200, block_size=4, context_length=700)
    for number in range(1, 10_001):
        driver.play(
            1, [b"a", b"b"], call=number, generation=f"g{number}", max_tokens=1 + number % 2
        )
        fate = dice.random()
        for _ in range(dice.randrange(3)):
            driver.step()
        if fate < 0.30:
            driver.cancel(1, call=number)
        elif fate < 0.35:
            driver.break_call(number)
        if number % 10 == 0:
            driver.run()
    driver.run()
    driver.check_idle()
    heard = driver.play(1, [b"a"], call=20_000, generation="last")
    driver.run()
    assert heard.text == b"a"
    driver.check_idle()


@pytest.mark.parametrize("length", [96, 500, 2000])
def test_choices_of_one_prompt_share_its_full_blocks(length: int) -> None:
    """Eight asked at once: the prompt is computed once, and a tail of at most a block for each other."""
    runner = FakeRunner(fake_info(block_size=64))
    driver = EngineDriver(runner)
    prompt = [i % 200 for i in range(length)]
    for stream in range(8):
        driver.open(stream, _prompt(*prompt), _request(2))
    driver.run()
    computed = sum(len(row.token_ids) for plan in runner.plans for row in plan.rows)
    tail = length - (length - 1) // 64 * 64
    assert computed == length + 7 * tail + 8
    driver.check_idle()


def test_whoever_waits_for_a_beginning_waits_no_longer_than_it_is_computed() -> None:
    """The twin of a prompt that is preempted, paused or cancelled begins by itself."""
    driver = _fake(EngineLimits(batch_max=4, step_tokens_max=32, prefill_chunk_busy_max=32))
    prompt = [i % 200 for i in range(200)]
    driver.open(1, _prompt(*prompt), _request(2), call=1)
    twin = driver.open(2, _prompt(*prompt), _request(2), call=2)
    for _ in range(2):
        driver.step()
    driver.hold(on=True, call=1)
    driver.run()
    assert len(twin.ids) == 2
    driver.hold(on=False, call=1)
    driver.run()
    assert driver.heard(1).ids == twin.ids
    driver.check_idle()
