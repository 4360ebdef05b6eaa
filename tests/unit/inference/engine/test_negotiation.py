"""What is promised, out of what was measured."""

from __future__ import annotations

import pytest

from inference.engine.answer import AnswerRules, FinishReason
from inference.engine.block_pool import BlockPool
from inference.engine.gate import Gate
from inference.engine.limits import EngineLimits
from inference.engine.negotiation import Negotiator, Promise
from inference.engine.runner import Prepared
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver
from tests.support.fake_runner import FakeRunner, fake_info

LIMITS = EngineLimits(batch_max=64, step_tokens_max=256)
RULES = AnswerRules(max_tokens=1000)


def _measure(scheduler: Scheduler) -> None:
    """2 ms a step and 1 ms a stream; 0.5 ms a prompt token."""
    for count in (1, 8, 64) * 30:
        scheduler.cost.observe(count, 0, (2 + count) / 1e3)
        scheduler.cost.observe(0, 4 * count, 2 * count / 1e3)


class _Desk:
    """A negotiator and what it looks at."""

    def __init__(self, *, measured: bool = True) -> None:
        self.scheduler = Scheduler(BlockPool(1000, 16), LIMITS)
        self.gate = Gate(LIMITS)
        self.negotiator = Negotiator(LIMITS, self.scheduler, self.gate)
        if measured:
            _measure(self.scheduler)

    def crowd(self, count: int) -> None:
        for number in range(count):
            sequence = Sequence(number, [1], [], 0.0)
            self.scheduler.places.add(sequence, eligible=True)
        self.scheduler.plan(0.0)

    def promise(self, latency: int, expected: int = 0, prompt: int = 40) -> Promise:
        request = GenerateRequest(prompt="x", expected_tokens=expected, max_latency_ms=latency)
        return self.negotiator.promise(request, RULES, prompt, 10.0)


def test_without_a_latency_it_is_max_tokens_and_the_engines_batch() -> None:
    """Also before anything was measured: nothing is promised that is not known."""
    assert _Desk().promise(0, expected=10) == Promise(64, 1000)
    assert _Desk(measured=False).promise(500, expected=10) == Promise(64, 1000)


def test_the_batch_is_the_largest_in_which_the_expected_tokens_fit() -> None:
    """(2,020 ms - 20 ms for the prompt) / 50 tokens = 40 ms: 38 streams, and 50 tokens."""
    promise = _Desk().promise(2020, expected=50)
    assert promise.batch_size == pytest.approx(38, abs=2)
    assert promise.token_quota == pytest.approx(50, abs=2)
    assert promise.narrows


def test_a_hurry_narrows_the_batch_to_a_quarter_at_most() -> None:
    """And to nobody's cost who runs already; the quota says what is possible then."""
    desk = _Desk()
    assert desk.promise(1000, expected=1000).batch_size == 16
    assert desk.promise(1000, expected=1000).token_quota == pytest.approx(54, abs=3)
    desk.crowd(40)
    assert desk.promise(1000, expected=1000).batch_size == 41


def test_a_time_that_is_over_before_it_begins_is_worth_one_token() -> None:
    """An honest 1, not a refusal."""
    assert _Desk().promise(5, expected=10).token_quota == 1


def test_plenty_of_time_is_bounded_by_max_tokens() -> None:
    """The quota never exceeds what was asked."""
    promise = _Desk().promise(3_600_000, expected=10)
    assert promise == Promise(64, 1000, narrows=True)


def test_waiting_others_take_of_the_time() -> None:
    """Their turns come first, by the measured rate of beginnings."""
    desk = _Desk()
    alone = desk.promise(5000, expected=10).token_quota
    desk.crowd(70)
    for number in range(11):
        desk.gate.begun(number)
    crowded = desk.promise(5000, expected=10).token_quota
    assert desk.scheduler.places.waiting == 6
    assert crowded < alone


def _prepared(*ids: int) -> Prepared:
    return Prepared(list(ids), lambda token_id: bytes([token_id]))


def _request(**fields: object) -> GenerateRequest:
    return GenerateRequest(prompt="x", sampling=Sampling(seed=1), **fields)  # type: ignore[arg-type]


def test_a_stream_that_reaches_its_quota_ends_with_length() -> None:
    """The quota is told with `accepted` and kept to the token."""
    driver = EngineDriver(FakeRunner(fake_info()), LIMITS)
    _measure(driver.engine.scheduler)
    heard = driver.open(1, _prepared(1, 2), _request(max_tokens=500, max_latency_ms=100))
    driver.run()
    quota = heard.accepted[0].token_quota
    assert 1 < quota < 500
    assert len(heard.ids) == quota
    assert heard.reason is FinishReason.LENGTH


def test_a_promised_batch_is_kept_while_its_stream_runs() -> None:
    """Others wait as long, and no longer."""
    driver = EngineDriver(FakeRunner(fake_info()), LIMITS)
    _measure(driver.engine.scheduler)
    # (400 ms - 1 ms for the prompt) / 20 tokens: a batch of 18 at most.
    hurried = driver.open(1, _prepared(1, 2), _request(expected_tokens=20, max_latency_ms=400))
    for stream in range(2, 60):
        driver.open(stream, _prepared(1, 2), _request(max_tokens=100))
    places = driver.engine.scheduler.places
    while not hurried.ends:
        driver.step()
        bound = hurried.accepted[0].adopted_batch_size
        assert places.running <= bound
    assert 16 <= bound <= 20
    driver.run(steps=3)
    assert places.running == 58


def test_a_continuation_is_not_promised_anew() -> None:
    """Its `max_tokens` is what was promised before, whatever this instance could do."""
    driver = EngineDriver(FakeRunner(fake_info()), LIMITS)
    _measure(driver.engine.scheduler)
    request = _request(max_tokens=30, expected_tokens=20, max_latency_ms=10)
    heard = driver.open(1, _prepared(1, 2), request, forced_ids=(5,), lasting=True)
    driver.run()
    assert heard.accepted[0].token_quota == 30
    assert len(heard.ids) == 29
