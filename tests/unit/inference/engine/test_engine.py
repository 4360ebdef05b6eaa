"""The engine step by step: what each stream hears."""

from __future__ import annotations

import pytest

from inference.engine.answer import FinishReason
from inference.engine.limits import EngineLimits
from inference.engine.messages import Done, PressureLevel
from inference.engine.runner import Prepared
from seedance.protocol.errors import SeedanceError
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver, script_driver
from tests.support.fake_runner import FakeRunner, fake_info


def _fake(limits: EngineLimits | None = None, **info: object) -> EngineDriver:
    return EngineDriver(FakeRunner(fake_info(**info)), limits)  # type: ignore[arg-type]


def _prompt(*ids: int) -> Prepared:
    return Prepared(list(ids), lambda token_id: bytes([token_id]))


def _request(max_tokens: int, **fields: object) -> GenerateRequest:
    return GenerateRequest(
        prompt="x",
        max_tokens=max_tokens,
        sampling=Sampling(seed=1),
        **fields,  # type: ignore[arg-type]
    )


def test_a_code_point_over_two_tokens() -> None:
    """CASES 01: text U+1F601, every piece UTF-8 by itself, two tokens."""
    driver = script_driver()
    heard = driver.play(1, [b"\xf0\x9f", b"\x98\x81"])
    driver.run()
    assert heard.text.decode() == "😁"
    assert heard.pieces == [b"", "😁".encode()]
    assert heard.reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("tokens", "text"), [([b"a", b"\xf0\x9f"], "a\ufffd"), ([b"\xff", b"b"], "\ufffdb")]
)
def test_broken_tails_end_in_their_own_step(tokens: list[bytes], text: str) -> None:
    """CASES 02: no stall; U+FFFD, and both tokens count."""
    driver = script_driver()
    heard = driver.play(1, tokens, max_tokens=2)
    driver.run(steps=3)
    assert heard.text.decode() == text
    assert isinstance(heard.end, Done)
    assert heard.end.usage.completion_tokens == 2


def test_a_prompt_that_ends_inside_a_code_point_stays_out_of_the_answer() -> None:
    """CASES 04: the prompt's bytes are never text of the answer, finished or not."""
    driver = script_driver()
    prompt = [*b"Hello world ", 0xF0, 0x9F]
    heard = driver.open(1, Prepared(prompt, [b"x"].__getitem__, length=1, vocab_size=1))
    driver.run()
    assert heard.text == b"x"


def test_a_stop_string_over_tokens() -> None:
    """CASES 06: exactly the text before it, finish `stop`, the tokens spent are counted."""
    driver = script_driver()
    heard = driver.play(1, [b"The quick br", b"own", b" fox", b" jumps"], stop=("own fox",))
    driver.run()
    assert heard.text == b"The quick br"
    assert heard.reason is FinishReason.STOP
    assert heard.ids == [0, 1, 2]


def test_a_long_stop_string_delays_no_token() -> None:
    """CASES 10: each of 100 tokens leaves in its own step."""
    driver = script_driver()
    heard = driver.play(1, [b"word "], repeat=100, stop=("#" * 40,))
    driver.run()
    assert heard.pieces == [b"word "] * 100


@pytest.mark.parametrize(
    ("tokens", "stop", "text"), [([b"abc.d"], ".", b"abc"), ([b"a\n", b"b"], "\n", b"a")]
)
def test_a_stop_string_is_literal(tokens: list[bytes], stop: str, text: bytes) -> None:
    """CASES 12: no pattern, no escapes."""
    driver = script_driver()
    heard = driver.play(1, tokens, stop=(stop,))
    driver.run()
    assert heard.text == text


def test_a_bias_outside_the_vocabulary_ends_its_own_request_only() -> None:
    """CASES 15: `bad_request` at admission; the neighbour and the next request are served."""
    driver = _fake()
    good = driver.open(1, _prompt(1, 2), _request(5))
    driver.step()
    bad = driver.open(
        2, _prompt(1), GenerateRequest(prompt="x", sampling=Sampling(logit_bias={191222: -100.0}))
    )
    next_one = driver.open(3, _prompt(1, 2), _request(5))
    driver.run()
    assert bad.code == "bad_request"
    assert bad.accepted == []
    assert good.ids == next_one.ids
    assert len(good.ids) == 5


def test_an_over_long_prompt_is_told_both_numbers_at_once() -> None:
    """CASES 18: an error in the next step, nothing computed."""
    driver = _fake(context_length=64)
    heard = driver.open(1, _prompt(*range(65)))
    driver.step()
    assert heard.code == "context_length_exceeded"
    assert "65" in heard.end.error.message  # type: ignore[union-attr]
    assert "64" in heard.end.error.message  # type: ignore[union-attr]
    driver.check_idle()


def test_without_max_tokens_the_context_is_filled() -> None:
    """CASES 17: the default is what the context leaves, told as the quota."""
    driver = _fake(context_length=64)
    heard = driver.open(1, _prompt(*range(60)))
    driver.run()
    assert len(heard.ids) == 4
    assert heard.reason is FinishReason.LENGTH
    assert heard.accepted[0].token_quota == 4
    assert heard.accepted[0].prompt_tokens == 60
    driver.check_idle()


def test_end_of_text_is_neither_sent_nor_counted() -> None:
    """The model's ending token stops the answer and is no part of it; unless it is ignored."""
    solo = _fake()
    full = solo.open(1, _prompt(5, 6), _request(8))
    solo.run()
    eos = full.ids[3]
    driver = _fake(eos=frozenset({eos}))
    stopped = driver.open(1, _prompt(5, 6), _request(8))
    ignoring = driver.open(2, _prompt(5, 6), _request(8, ignore_eos=True))
    at_least = driver.open(3, _prompt(5, 6), _request(8, min_tokens=6))
    driver.run()
    assert stopped.ids == full.ids[: full.ids.index(eos)]
    assert stopped.reason is FinishReason.STOP
    assert stopped.end.usage.completion_tokens == len(stopped.ids)  # type: ignore[union-attr]
    assert ignoring.ids == full.ids
    assert len(at_least.ids) >= 6
    assert eos not in at_least.ids[:6]


def test_credit_is_counted_in_tokens() -> None:
    """At zero the sequence leaves the batch with its blocks; each token of credit brings one more."""
    driver = script_driver()
    heard = driver.play(1, [b"a"], repeat=10, credit=3)
    driver.run()
    assert heard.text == b"aaa"
    pool = driver.engine.scheduler.places.pool
    assert pool.free < pool.total
    steps = driver.steps
    driver.credit(1, 2)
    driver.run()
    assert heard.text == b"aaaaa"
    assert driver.steps - steps <= 4
    driver.credit(1, 100)
    driver.run()
    assert heard.text == b"a" * 10
    assert heard.reason is FinishReason.STOP
    driver.check_idle()


def test_no_credit_at_all_computes_nothing() -> None:
    """An `open` with credit 0 is taken, and waits."""
    driver = script_driver()
    heard = driver.play(1, [b"a"], credit=0)
    driver.run()
    assert len(heard.accepted) == 1
    assert driver.engine.scheduler.places.running == 0
    driver.credit(1, 1)
    driver.run()
    assert heard.text == b"a"


def test_cancel_frees_blocks_before_the_next_step() -> None:
    """CASES 26: cancelled is told once, no token follows, the blocks are free at once."""
    driver = script_driver()
    heard = driver.play(1, [b"a"], repeat=1000)
    driver.run(steps=10)
    driver.cancel(1)
    driver.check_idle()
    driver.cancel(1)
    count = len(heard.ids)
    driver.run()
    assert heard.reason is FinishReason.CANCELLED
    assert len(heard.ids) == count
    assert heard.end.usage.completion_tokens == count  # type: ignore[union-attr]


def test_a_broken_direct_call_cancels_its_streams() -> None:
    """CASES 26: nobody can come back for them, so nothing is kept."""
    driver = script_driver()
    driver.play(1, [b"a"], repeat=1000)
    driver.play(2, [b"a"], repeat=1000, call=2)
    driver.run(steps=3)
    driver.break_call(1)
    assert driver.engine.scheduler.places.running == 1
    driver.run(steps=1)
    assert len(driver.engine.desk.directory) == 1


def test_a_lagging_call_is_left_out_alone() -> None:
    """A held call's streams pause, another call's go on; they catch up exactly."""
    driver = script_driver()
    slow = driver.play(1, [b"a"], repeat=50)
    quick = driver.play(2, [b"b"], repeat=50, call=2)
    driver.run(steps=5)
    driver.hold(on=True)
    count = len(slow.ids)
    driver.run()
    assert len(slow.ids) == count
    assert quick.reason is FinishReason.STOP
    driver.hold(on=False)
    driver.run()
    assert slow.text == b"a" * 50


def test_a_failing_model_ends_that_steps_streams_only() -> None:
    """The engine serves the next request, and nothing internal reaches a peer."""
    runner = FakeRunner(fake_info())
    driver = EngineDriver(runner)
    bad = driver.open(1, _prompt(1, 2), _request(5))
    runner.fail_next = True
    driver.step()
    assert bad.code == "internal"
    assert "stumbles" not in bad.end.error.message  # type: ignore[union-attr]
    good = driver.open(2, _prompt(1, 2), _request(5))
    driver.run()
    assert len(good.ids) == 5
    assert len(runner.released) == 2
    driver.check_idle()


def test_a_token_that_cannot_be_spelled_ends_its_own_stream_only() -> None:
    """A fault in one sequence's tokens is `internal` for it, and nothing for its neighbour."""

    def spell(token_id: int) -> bytes:
        raise ValueError(token_id)

    driver = _fake()
    bad = driver.open(1, Prepared([1], spell), _request(5))
    good = driver.open(2, _prompt(1), _request(5))
    driver.run()
    assert bad.code == "internal"
    assert len(good.ids) == 5
    driver.check_idle()


def test_a_fault_in_a_command_ends_that_request_only() -> None:
    """A forced prefix that cannot be spelled is refused; the engine lives."""

    def spell(token_id: int) -> bytes:
        raise SeedanceErrorLookalikeError(token_id)

    driver = _fake()
    bad = driver.open(1, Prepared([1], spell), _request(5), forced_ids=(1,))
    driver.run()
    assert bad.code == "internal"
    driver.check_idle()


class SeedanceErrorLookalikeError(Exception):
    """Any error that is not of the table."""


def test_a_full_queue_is_overloaded_with_a_time() -> None:
    """Beyond the bound requests are refused, retryable; those before are served."""
    driver = _fake(EngineLimits(batch_max=1, queue_max=2))
    taken = [driver.open(i, _prompt(1), _request(3)) for i in range(1, 3)]
    refused = driver.open(3, _prompt(1), _request(3))
    driver.run()
    assert refused.code == "overloaded"
    error: SeedanceError = refused.end.error  # type: ignore[union-attr]
    assert error.retryable
    assert error.retry_after_ms
    assert all(len(heard.ids) == 3 for heard in taken)


def test_waiting_in_vain_ends() -> None:
    """A request that never had its turn is `overloaded` with a time; one that runs goes on."""
    driver = _fake(EngineLimits(batch_max=1, queue_ttl_s=5))
    running = driver.open(1, _prompt(1), _request(1000), credit=3)
    driver.step()
    waiting = driver.open(2, _prompt(1), _request(1000))
    driver.clock.now += 4
    driver.step()
    assert waiting.ends == []
    driver.clock.now += 2
    driver.step()
    assert waiting.code == "overloaded"
    assert waiting.end.error.retry_after_ms  # type: ignore[union-attr]
    assert running.ends == []


def test_no_more_live_at_once_than_may() -> None:
    """Also those that are paused count; when one has ended there is room again."""
    driver = _fake(EngineLimits(concurrent_max=2))
    driver.open(1, _prompt(1), _request(3), credit=0)
    driver.open(2, _prompt(1), _request(3))
    assert driver.engine.scheduler.places.alive == 2
    refused = driver.open(3, _prompt(1), _request(3))
    driver.run()
    assert refused.code == "overloaded"
    taken = driver.open(4, _prompt(1), _request(3))
    driver.run()
    assert len(taken.ids) == 3


def test_tenants_share_the_batch_by_weight() -> None:
    """With both in the queue all the time, tokens are as the weights."""
    limits = EngineLimits(
        batch_max=4, step_tokens_max=16, tenant_weights={"a": 3.0}, prefix_cache=False
    )
    driver = _fake(limits)
    for stream in range(1, 161):
        tenant = "ab"[stream % 2]
        driver.open(stream, _prompt(1, 2), _request(6), tenant=tenant, generation=f"g{stream}")
    for _ in range(120):
        driver.step()
    made = [sum(len(driver.heard(s).ids) for s in range(1, 161) if s % 2 == i) for i in range(2)]
    assert made[0] / made[1] == pytest.approx(3.0, rel=0.15)


def test_pressure_is_told_when_the_queue_fills_and_when_it_empties() -> None:
    """Edge-triggered: pause, then none; not once per step."""
    driver = _fake(EngineLimits(batch_max=1, queue_max=4))
    for index in range(1, 5):
        driver.open(index, _prompt(1), _request(2))
    driver.run()
    levels = [p.level for p in driver.pressures]
    assert levels[0] in {PressureLevel.PAUSE, PressureLevel.THROTTLE}
    assert levels[-1] is PressureLevel.NONE
    assert len(levels) == len(set(levels))


def test_a_paced_script_keeps_its_time() -> None:
    """`first_ms` before the first token, `dt_ms` between tokens, by the engine's clock."""
    driver = script_driver()
    heard = driver.play(1, [b"a"], repeat=5, first_ms=200, dt_ms=50)
    start, times = driver.clock.now, []
    while not heard.ends:
        before = len(heard.ids)
        driver.step()
        if len(heard.ids) > before:
            times.append(driver.clock.now - start)
        driver.clock.now += 0.001
    assert times == pytest.approx([0.2, 0.25, 0.3, 0.35, 0.4], abs=0.002)


def test_timing_parts_add_up() -> None:
    """The six parts are measured and make the time to the first token."""
    driver = script_driver()
    heard = driver.play(1, [b"a"], repeat=2, first_ms=100, dt_ms=10)
    driver.run(tick_s=0.001)
    marks = heard.end.marks  # type: ignore[union-attr]
    marks.first_sent = marks.first_token + 0.003
    timing = marks.timing(driver.clock.now)
    parts = (
        timing.queue_ms
        + timing.preprocess_ms
        + timing.prefill_ms
        + timing.first_decode_ms
        + timing.cache_sync_ms
        + timing.egress_ms
    )
    assert parts == pytest.approx(timing.ttft_ms)
    assert timing.first_decode_ms == pytest.approx(100, abs=3)
    assert timing.egress_ms == pytest.approx(3)
    assert timing.total_ms >= timing.ttft_ms


def test_credit_after_the_end_says_nothing_again() -> None:
    """Credit and the end cross on the wire: the tail is not sent twice, nor the end."""
    driver = script_driver()
    heard = driver.play(1, [b"a", b"\xf0"], lasting=True, credit=2)
    driver.run()
    driver.credit(1, 5)
    driver.run()
    assert heard.text.decode() == "a\ufffd"
    assert len(heard.ends) == 1
