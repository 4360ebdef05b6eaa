"""The engine when commands arrive while a step is computed."""

from __future__ import annotations

from inference.engine.answer import FinishReason
from inference.engine.limits import EngineLimits
from inference.engine.messages import PressureLevel
from inference.engine.runner import Prepared
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver
from tests.support.fake_runner import FakeRunner, fake_info


def _fake(limits: EngineLimits | None = None) -> EngineDriver:
    return EngineDriver(FakeRunner(fake_info()), limits)


def _prompt(*ids: int) -> Prepared:
    return Prepared(list(ids), lambda token_id: bytes([token_id]))


def _request(max_tokens: int) -> GenerateRequest:
    return GenerateRequest(prompt="x", max_tokens=max_tokens, sampling=Sampling(seed=1))


def test_a_cancellation_during_a_step_is_answered_during_it() -> None:
    """CASES 26: blocks free and the end told before the step ends; what it chose is nobody's."""
    runner = FakeRunner(fake_info())
    driver = EngineDriver(runner)
    gone, stays = (driver.open(i, _prompt(i, 2), _request(5)) for i in (1, 2))
    driver.step()
    plan = driver.engine.fetch()
    driver.cancel(1)
    driver.hear()
    assert gone.reason is FinishReason.CANCELLED
    assert len(gone.ids) == 1
    pool = driver.engine.scheduler.places.pool
    assert pool.total - pool.free == 1
    assert runner.released == []
    driver.engine.absorb(driver.engine.compute(plan))
    driver.run()
    assert len(gone.ids) == 1
    assert len(stays.ids) == 5
    assert sorted(runner.released) == [1, 2]
    driver.check_idle()


def test_a_request_during_a_step_is_accepted_during_it() -> None:
    """It waits for the next plan, not its opener for the answer; and the queue's pressure is told."""
    driver = _fake(EngineLimits(batch_max=1, queue_max=2))
    driver.open(1, _prompt(1), _request(5))
    driver.step()
    plan = driver.engine.fetch()
    others = [driver.open(i, _prompt(1), _request(5)) for i in (2, 3)]
    driver.hear()
    assert all(heard.accepted for heard in others)
    assert [p.level for p in driver.pressures] == [PressureLevel.PAUSE]
    driver.engine.absorb(driver.engine.compute(plan))
    driver.run()
    assert all(len(heard.ids) == 5 for heard in others)


def test_a_stream_that_is_paused_during_a_step_keeps_its_token() -> None:
    """What was computed is told when the call has caught up: nothing is lost, nothing is made twice."""
    driver = _fake()
    alone = _fake()
    heard, same = driver.open(1, _prompt(3), _request(5)), alone.open(1, _prompt(3), _request(5))
    alone.run()
    plan = driver.engine.fetch()
    driver.hold(on=True)
    driver.engine.absorb(driver.engine.compute(plan))
    driver.run()
    assert len(heard.ids) == 1
    assert heard.ends == []
    driver.hold(on=False)
    driver.run()
    assert heard.ids == same.ids


def test_a_failing_model_ends_nobody_who_has_ended_already() -> None:
    """Cancelled during the step that fails: one end, and it says cancelled."""
    runner = FakeRunner(fake_info())
    driver = EngineDriver(runner)
    gone, hit = (driver.open(i, _prompt(i), _request(5)) for i in (1, 2))
    runner.fail_next = True
    plan = driver.engine.fetch()
    driver.cancel(1)
    driver.engine.absorb(driver.engine.compute(plan))
    driver.hear()
    assert gone.reason is FinishReason.CANCELLED
    assert hit.code == "internal"
    driver.check_idle()
