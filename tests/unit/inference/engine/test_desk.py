"""Epochs, attaching, transcripts (contract §7)."""

from __future__ import annotations

import pytest

from inference.engine.answer import FinishReason
from inference.engine.limits import EngineLimits
from inference.engine.messages import Attach, Cancel, Release, StreamKey
from tests.support.engine_driver import Heard, ScriptDriver, script_driver

TOKENS = [b"a", b"\xf0\x9f", b"\x98\x81", b"d", b"."]
REPEAT = 8
TEXT = b"".join(TOKENS) * REPEAT
COUNT = len(TOKENS) * REPEAT
LIMITS = EngineLimits(
    batch_max=64,
    step_tokens_max=2**20,
    prefill_chunk_busy_max=2**20,
    attach_ttl_s=10,
    transcript_ttl_s=180,
    transcripts_max=3,
)


def _play(driver: ScriptDriver, stream: int = 1, call: int = 1, **more: object) -> Heard:
    more = {"repeat": REPEAT, "lasting": True, "generation": "s/1", "epoch": 1} | more
    return driver.play(stream, TOKENS, call=call, **more)


def _attach(
    driver: ScriptDriver,
    from_token: int,
    *,
    call: int = 2,
    stream: int = 1,
    epoch: int = 2,
    credit: int | None = None,
    generation: str = "s/1",
) -> Heard:
    driver.apply(Attach(StreamKey(call, stream), generation, epoch, from_token, credit))
    return driver.heard(stream, call)


@pytest.mark.parametrize("from_token", [0, 1, 2, 3, 6])
def test_attach_replays_from_any_token_and_goes_on(from_token: int) -> None:
    """The old text up to token n and what the new listener hears are the whole text."""
    driver = script_driver(LIMITS)
    first = _play(driver, credit=7)
    driver.run()
    driver.break_call()
    second = _attach(driver, from_token)
    driver.run()
    assert second.accepted[0].from_token == from_token
    assert second.first_index == from_token
    assert first.ids[:from_token] + second.ids == [*range(len(TOKENS))] * REPEAT
    assert first.text[: second.first_offset] + second.text == TEXT
    assert second.reason is FinishReason.STOP
    assert second.end.usage.completion_tokens == COUNT  # type: ignore[union-attr]


def test_without_a_call_it_runs_until_its_credit_is_used_up() -> None:
    """No tokens for nobody beyond what was asked for."""
    driver = script_driver(LIMITS)
    _play(driver, credit=12)
    driver.run(steps=3)
    driver.break_call()
    driver.run()
    second = _attach(driver, 0, credit=0)
    driver.run()
    assert second.ids == []
    known = driver.engine.desk.directory.named("s/1")
    assert known is not None
    assert len(known.answer.ids) == 12


def test_unlimited_credit_pauses_without_a_call() -> None:
    """Nobody said how much to make without a listener: nothing."""
    driver = script_driver(LIMITS)
    first = _play(driver)
    driver.run(steps=4)
    driver.break_call()
    driver.run()
    known = driver.engine.desk.directory.named("s/1")
    assert known is not None
    assert len(known.answer.ids) == len(first.ids)


def test_a_replay_is_sent_as_credit_allows() -> None:
    """The new owner's credit covers what comes again, too."""
    driver = script_driver(LIMITS)
    _play(driver, credit=10)
    driver.run()
    driver.break_call()
    second = _attach(driver, 2, credit=3)
    driver.run()
    assert len(second.ids) == 3
    driver.credit(1, 2, call=2)
    driver.run()
    assert len(second.ids) == 5
    driver.credit(1, 1000, call=2)
    driver.run()
    assert len(second.ids) == COUNT - 2


def test_the_end_waits_for_the_replay() -> None:
    """A finished generation is heard to its end by whoever attaches, once its tokens are."""
    driver = script_driver(LIMITS)
    _play(driver)
    driver.run()
    driver.break_call()
    second = _attach(driver, 0, credit=COUNT - 1)
    driver.run()
    assert second.ends == []
    driver.credit(1, 1, call=2)
    driver.run()
    assert second.text == TEXT
    assert second.reason is FinishReason.STOP


def test_an_older_epoch_is_refused_and_a_newer_one_takes_over() -> None:
    """Fencing: the old listener is told, the refused one hears nothing of the text."""
    driver = script_driver(LIMITS)
    first = _play(driver, epoch=5, credit=3)
    driver.run()
    late = _attach(driver, 0, epoch=4)
    driver.run()
    assert late.code == "session_expired"
    assert late.ids == []
    assert first.ends == []
    second = _attach(driver, 3, call=3, epoch=6)
    driver.run()
    assert first.code == "session_expired"
    assert "epoch 6" in first.end.error.message  # type: ignore[union-attr]
    assert first.text + second.text == TEXT


def test_open_with_a_newer_epoch_replaces() -> None:
    """The old sequence is cancelled first; the new one goes on from its forced prefix."""
    driver = script_driver(LIMITS)
    first = _play(driver, epoch=1, credit=6)
    driver.run()
    second = _play(driver, call=2, epoch=2, forced_ids=(0, 1, 2))
    driver.run()
    assert first.code == "session_expired"
    assert second.accepted[0].from_token == 3
    assert second.first_offset == 5
    assert second.text == TEXT[5:]
    assert second.end.usage.completion_tokens == COUNT - 3  # type: ignore[union-attr]
    older = _play(driver, call=3, epoch=1)
    driver.run()
    assert older.code == "session_expired"


def test_the_same_open_again_is_an_attach() -> None:
    """Same epoch, same prefix: taken up where the prefix ends, computed once."""
    driver = script_driver(LIMITS)
    first = _play(driver, credit=6)
    driver.run()
    driver.break_call()
    again = _play(driver, call=2, forced_ids=(0, 1, 2, 3))
    driver.run()
    assert first.text[: again.first_offset] + again.text == TEXT
    assert len(driver.records) == 1


def test_the_same_epoch_with_a_longer_prefix_begins_anew() -> None:
    """The generation went on elsewhere and comes back: what is known here is too short."""
    driver = script_driver(LIMITS)
    _play(driver, credit=2)
    driver.run()
    driver.break_call()
    again = _play(driver, call=2, forced_ids=(0, 1, 2, 3, 4, 0))
    driver.run()
    assert again.first_index == 6
    assert again.text == TEXT[8:]


def test_a_complete_prefix_ends_at_once() -> None:
    """The first instance died between its last token and its `done`: nothing is computed again."""
    driver = script_driver(LIMITS)
    heard = _play(driver, forced_ids=tuple(range(5)) * REPEAT)
    driver.step()
    assert heard.reason is FinishReason.STOP
    assert heard.text == b""
    driver.check_idle()


def test_unknown_generations_and_tokens() -> None:
    """What is not here is `unknown_stream`: open it with the known ids as forced prefix."""
    driver = script_driver(LIMITS)
    assert _attach(driver, 0).ends == []
    driver.step()
    assert driver.heard(1, 2).code == "unknown_stream"
    first = _play(driver, credit=2)
    driver.run()
    beyond = _attach(driver, 3, call=3)
    driver.run()
    assert beyond.code == "unknown_stream"
    assert first.ends == []


def test_blocks_are_kept_for_attach_ttl_and_the_text_longer() -> None:
    """After 10 s the blocks are free; until 180 s an attach goes on exactly, by computing again."""
    driver = script_driver(LIMITS)
    first = _play(driver, credit=6)
    driver.run()
    driver.break_call()
    pool = driver.engine.scheduler.places.pool
    driver.clock.now += 9
    driver.step()
    assert pool.free < pool.total
    driver.clock.now += 2
    driver.step()
    assert pool.free == pool.total
    driver.clock.now += 160
    driver.step()
    second = _attach(driver, 6)
    driver.run()
    assert first.text + second.text == TEXT


def test_an_abandoned_generation_is_forgotten() -> None:
    """Nobody came within the time: cancelled, gone, recorded once."""
    driver = script_driver(LIMITS)
    _play(driver, credit=6)
    driver.run()
    driver.break_call()
    driver.clock.now += 181
    driver.step()
    assert len(driver.engine.desk.directory) == 0
    assert [r.reason for r in driver.records] == [FinishReason.CANCELLED]


def test_release_forgets_an_ended_generation_at_once() -> None:
    """The end is safe in the store; an attach afterwards finds nothing."""
    driver = script_driver(LIMITS)
    heard = _play(driver)
    driver.apply(Release(StreamKey(1, 1)))
    driver.run()
    assert heard.text == TEXT
    driver.apply(Release(StreamKey(1, 1)))
    assert len(driver.engine.desk.directory) == 0


def test_ended_transcripts_are_bounded() -> None:
    """At the bound the oldest goes."""
    driver = script_driver(LIMITS)
    for index in range(6):
        _play(driver, stream=index + 1, generation=f"s/{index}")
        driver.run()
        driver.clock.now += 1
    driver.step()
    names = [g.opened.generation for g in driver.engine.desk.directory]
    assert names == ["s/3", "s/4", "s/5"]


def test_a_stream_id_is_used_once_in_a_call() -> None:
    """A second opening of a known stream is refused."""
    driver = script_driver(LIMITS)
    _play(driver, credit=1)
    driver.run()
    _play(driver, generation="s/2")
    driver.run()
    assert driver.heard(1).code == "bad_request"
    assert driver.engine.desk.directory.named("s/2") is None


def test_who_cancels_and_releases_at_once_hears_the_end() -> None:
    """Else its call would count the stream as live for ever, and a drain wait for it."""
    driver = script_driver(LIMITS)
    heard = _play(driver, credit=3)
    driver.run()
    driver.apply(Cancel(StreamKey(1, 1)), Release(StreamKey(1, 1)))
    driver.run()
    assert heard.reason is FinishReason.CANCELLED
    assert driver.engine.desk.directory.named("s/1") is None


@pytest.mark.parametrize("made", [10, COUNT], ids=["running", "finished"])
def test_a_cancelled_replay_ends_without_its_credit(made: int) -> None:
    """A new owner that is behind, and whose client wants no more, hears the end all the same (CASES 28)."""
    driver = script_driver(LIMITS)
    _play(driver, credit=made)
    driver.run()
    driver.break_call()
    second = _attach(driver, 2, credit=3)
    driver.run()
    driver.apply(Cancel(StreamKey(2, 1)))
    driver.run()
    assert second.reason is (FinishReason.CANCELLED if made < COUNT else FinishReason.STOP)
    assert second.first_index == 2
    assert len(second.ids) == made - 2
