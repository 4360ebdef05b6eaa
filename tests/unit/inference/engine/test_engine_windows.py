"""Models with a sliding window: memory that a stream needs has a bound, and no text shows it."""

from __future__ import annotations

import pytest

from inference.engine.limits import EngineLimits
from inference.engine.messages import Done
from inference.engine.runner import Prepared
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver, Heard
from tests.support.fake_runner import FakeRunner, fake_info

WINDOW, SIZE = 10, 4


def _driver(blocks: int = 200, *, cached: bool = True) -> EngineDriver:
    info = fake_info(
        total_blocks=blocks, block_size=SIZE, context_length=400, sliding_window=WINDOW
    )
    limits = EngineLimits(
        batch_max=4, step_tokens_max=16, prefill_chunk_busy_max=8, prefix_cache=cached
    )
    return EngineDriver(FakeRunner(info), limits)


def _open(driver: EngineDriver, stream: int, prompt: list[int], answer: int) -> Heard:
    request = GenerateRequest(prompt="x", max_tokens=answer, sampling=Sampling(seed=1))
    return driver.open(stream, Prepared(prompt, lambda token_id: bytes([token_id])), request)


def _cached(heard: Heard) -> int:
    assert isinstance(heard.end, Done)
    return heard.end.usage.cached_tokens


@pytest.mark.parametrize("cached", [True, False])
def test_a_long_stream_holds_no_more_than_its_window(*, cached: bool) -> None:
    """200 tokens in blocks of 4 with a window of 10 hold 3 blocks between two decodes, not 50."""
    driver = _driver(cached=cached)
    heard = _open(driver, 1, list(range(60)), 140)
    pool = driver.engine.scheduler.places.pool
    held = []
    while not heard.ends:
        driver.step()
        held.append(pool.total - pool.free)
    assert max(held) <= pool.blocks_for(WINDOW + 16) + 1
    assert max(held[10:]) == pool.blocks_for(WINDOW)
    driver.check_idle()


def test_streams_that_would_not_fit_with_whole_tables_run_side_by_side() -> None:
    """Four streams of 100 tokens each run in 32 blocks without a preemption, and say what they say alone."""
    alone = []
    for stream in range(4):
        solo = _driver()
        alone.append(_open(solo, stream, [stream] * 40, 60))
        solo.run()
    driver = _driver(blocks=32)
    together = [_open(driver, stream, [stream] * 40, 60) for stream in range(4)]
    driver.run()
    assert [heard.ids for heard in together] == [heard.ids for heard in alone]
    assert driver.engine.scheduler.places.preemptions == 0
    driver.check_idle()


def test_the_next_turn_goes_on_from_the_last_window() -> None:
    """Of a conversation whose beginning is overwritten, the end is found, and the text is the solo one."""
    turn = [i % 200 for i in range(70)]
    solo = _driver(cached=False)
    expected = _open(solo, 1, [*turn, 7, 7], 20)
    solo.run()
    driver = _driver(blocks=40)
    _open(driver, 1, turn, 1)
    driver.run()
    # What dropped out of the windows is overwritten before what was held to the end.
    _open(driver, 2, [9] * 90, 1)
    driver.run()
    again = _open(driver, 3, [*turn, 7, 7], 20)
    driver.run()
    assert _cached(again) == 68
    assert again.ids == expected.ids
    driver.check_idle()
