"""The streams of one call, without a call."""

from __future__ import annotations

import pytest

from gateway.upstream.base import Attach, Open, PressureLevel, UpstreamTokens
from gateway.upstream.streams import OUTBOX_FRAMES_MAX, REQUEST_BYTES_MAX, CallStreams
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Usage
from seedance.protocol.request import GenerateRequest
from seedance.v2 import inference_pb2 as pb
from tests.support.recording_listener import RecordingListener
from tests.support.waiting import wait_until


class Woken:
    """Counts wake-ups."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def _open(prompt: str = "hi", credit: int | None = None) -> Open:
    return Open("s/a", 1, GenerateRequest(prompt=prompt), "tenant", credit=credit)


def _streams() -> CallStreams:
    return CallStreams("i0", Woken())


def _sent(streams: CallStreams) -> list[pb.ClientFrame]:
    request = streams.take_request()
    return list(request.frames) if request else []


def _kinds(frames: list[pb.ClientFrame]) -> list[str | None]:
    return [frame.WhichOneof("frame") for frame in frames]


def _tokens(*entries: tuple[int, tuple[int, ...], bytes]) -> pb.TokenColumns:
    columns = pb.TokenColumns(timestamp_ms=5)
    for stream_id, ids, text in entries:
        columns.stream_ids.append(stream_id)
        columns.token_counts.append(len(ids))
        columns.byte_lengths.append(len(text))
        columns.offsets.append(0)
        columns.token_indexes.append(0)
        columns.token_ids.extend(ids)
        columns.text += text
    return columns


def test_frames_of_one_turn_are_one_message_in_order() -> None:
    """What is asked between two sends leaves as one message, credit last and merged."""
    streams = _streams()
    first = streams.open(_open(), RecordingListener())
    first.add_credit(3)
    second = streams.open(Attach("s/b", 2, 17), RecordingListener())
    first.add_credit(4)
    second.cancel()
    frames = _sent(streams)
    assert _kinds(frames) == ["open", "attach", "cancel", "credit"]
    assert frames[0].stream_id == frames[3].stream_id != frames[1].stream_id
    assert frames[1].attach.from_token == 17
    assert frames[3].credit.tokens == 7
    assert streams.take_request() is None


def test_absent_credit_is_absent_on_the_wire() -> None:
    """None is unlimited and not sent; zero is zero."""
    streams = _streams()
    streams.open(_open(credit=None), RecordingListener())
    streams.open(_open(credit=0), RecordingListener())
    unlimited, none_yet = _sent(streams)
    assert not unlimited.open.HasField("credit")
    assert none_yet.open.HasField("credit")


def test_a_message_has_a_bounded_size() -> None:
    """CASES 39: many large opens leave in several messages, none over the bound but by one frame."""
    streams = _streams()
    for _ in range(5):
        streams.open(_open("x" * (REQUEST_BYTES_MAX // 2 - 1000)), RecordingListener())
    sizes = []
    while (request := streams.take_request()) is not None:
        sizes.append(len(request.frames))
    assert sizes == [2, 2, 1]


def test_credit_never_overtakes_its_open() -> None:
    """While an open still waits, its credit waits too."""
    streams = _streams()
    handles = [
        streams.open(_open("x" * (REQUEST_BYTES_MAX - 1000)), RecordingListener()) for _ in range(2)
    ]
    for handle in handles:
        handle.add_credit(1)
    assert _kinds(_sent(streams)) == ["open", "credit"]
    assert _kinds(_sent(streams)) == ["open", "credit"]
    assert streams.take_request() is None


def test_nothing_waits_behind_the_large_opens_of_others() -> None:
    """CASES 26: a cancellation, a release and credit are in the next message, whatever else waits."""
    streams = _streams()
    running, ended, waiting = (streams.open(_open(), RecordingListener()) for _ in range(3))
    _sent(streams)
    large = [
        streams.open(_open("x" * (REQUEST_BYTES_MAX - 1000)), RecordingListener()) for _ in range(3)
    ]
    large[2].cancel()
    running.cancel()
    ended.release()
    waiting.add_credit(5)
    assert _kinds(_sent(streams)) == ["cancel", "release", "open", "credit"]
    assert _kinds(_sent(streams)) == ["open"]
    assert _kinds(_sent(streams)) == ["open", "cancel"]
    assert streams.take_request() is None


def test_the_outbox_is_bounded() -> None:
    """An instance that takes nothing gets no more opens: `overloaded`, and the others still wait."""
    streams = _streams()
    for _ in range(OUTBOX_FRAMES_MAX):
        streams.open(_open(), RecordingListener())
    with pytest.raises(SeedanceError) as refused:
        streams.open(_open(), RecordingListener())
    assert refused.value.code is ErrorCode.OVERLOADED
    assert len(streams) == OUTBOX_FRAMES_MAX


def test_a_message_is_handled_as_one_batch() -> None:
    """Accepted, then tokens, then ends, whatever the order of the frames; each to its own stream."""
    streams = _streams()
    one, two = RecordingListener(), RecordingListener()
    a, b = (streams.open(_open(), listener) for listener in (one, two))
    done = pb.Done(
        finish_reason=pb.FINISH_REASON_LENGTH,
        usage=pb.Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=2),
    )
    streams.receive(
        pb.StreamResponse(
            frames=[
                pb.ServerFrame(stream_id=a.stream_id, done=done),
                pb.ServerFrame(
                    stream_id=a.stream_id, accepted=pb.Accepted(instance="i0", model="m")
                ),
            ],
            tokens=_tokens((b.stream_id, (9,), b"b"), (a.stream_id, (1, 2), "aé".encode())),
        )
    )
    assert one.heard == ["accepted", "tokens", "done"]
    assert one.tokens == [UpstreamTokens((1, 2), 0, "aé".encode(), 0, 5)]
    assert (one.finish_reason, one.usage) == ("length", Usage(1, 0, 2))
    assert two.heard == ["tokens"]
    assert two.tokens[0].token_ids == (9,)


def test_ids_without_text_arrive() -> None:
    """An entry whose text is still held brings its ids, so that a forced prefix is complete."""
    streams = _streams()
    listener = RecordingListener()
    handle = streams.open(_open(), listener)
    streams.receive(pb.StreamResponse(tokens=_tokens((handle.stream_id, (4,), b""))))
    assert listener.tokens[0].token_ids == (4,)


def test_logprobs_go_to_their_stream() -> None:
    """Log-probabilities arrive with the tokens of the stream that asked; replayed ones are absent."""
    streams = _streams()
    asked, other = RecordingListener(), RecordingListener()
    a, b = streams.open(_open(), asked), streams.open(_open(), other)
    columns = _tokens((b.stream_id, (1,), b"x"), (a.stream_id, (2, 3), b"yz"))
    best = pb.TokenLogprob(token_id=3, token=b"\xff", logprob=-0.5)
    columns.logprobs.append(pb.TokenLogprobs(stream_id=a.stream_id))
    columns.logprobs.append(pb.TokenLogprobs(stream_id=a.stream_id, chosen=best, top=[best]))
    streams.receive(pb.StreamResponse(tokens=columns))
    (logprob,) = asked.tokens[0].logprobs
    assert (logprob.token, logprob.bytes, logprob.logprob) == ("\ufffd", (255,), -0.5)
    assert logprob.top[0].bytes == (255,)
    assert other.tokens[0].logprobs == ()


def test_error_ends_a_stream() -> None:
    """An error carries code, field, advice and usage; an unknown code is `internal`."""
    streams = _streams()
    listener = RecordingListener()
    handle = streams.open(_open(), listener)
    error = pb.Error(
        code="overloaded",
        message="later",
        retry_after_ms=70,
        field="model",
        usage=pb.Usage(prompt_tokens=3),
    )
    streams.receive(
        pb.StreamResponse(frames=[pb.ServerFrame(stream_id=handle.stream_id, error=error)])
    )
    assert listener.error is not None
    assert listener.error.code is ErrorCode.OVERLOADED
    assert (listener.error.retry_after_ms, listener.error.field) == (70, "model")
    assert listener.usage == Usage(3, 0, 0)
    strange = streams.open(_open(), listener)
    streams.receive(
        pb.StreamResponse(
            frames=[pb.ServerFrame(stream_id=strange.stream_id, error=pb.Error(code="new"))]
        )
    )
    assert listener.error.code is ErrorCode.INTERNAL
    assert listener.usage is None


def test_nothing_follows_an_end() -> None:
    """CASES 29: what crosses with the end is dropped; cancel after it is silent, release is said once."""
    streams = _streams()
    listener = RecordingListener()
    handle = streams.open(_open(), listener)
    _sent(streams)
    done = pb.StreamResponse(frames=[pb.ServerFrame(stream_id=handle.stream_id, done=pb.Done())])
    streams.receive(done)
    streams.receive(done)
    streams.receive(pb.StreamResponse(tokens=_tokens((handle.stream_id, (1,), b"x"))))
    streams.break_all()
    assert listener.heard == ["done"]
    handle.cancel()
    handle.add_credit(1)
    assert _sent(streams) == []
    handle.release()
    handle.release()
    handle.abandon()
    assert _kinds(_sent(streams)) == ["release"]


async def test_abandon_says_nothing_until_a_newer_owner_has_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fenced owner stops listening without a word; what nobody took over by then is ended.

    The call lives on, and the instance would keep the blocks of a generation that it believes heard.
    """
    monkeypatch.setattr("gateway.upstream.streams.ORPHANED_S", 0.01)
    streams = _streams()
    listener = RecordingListener()
    handle = streams.open(_open(), listener)
    _sent(streams)
    handle.abandon()
    handle.cancel()
    handle.release()
    streams.receive(pb.StreamResponse(tokens=_tokens((handle.stream_id, (1,), b"x"))))
    assert _sent(streams) == []
    assert listener.heard == []
    sent: list[pb.ClientFrame] = []
    await wait_until(lambda: sent.extend(_sent(streams)) or len(sent) == 2)
    assert _kinds(sent) == ["cancel", "release"]
    assert {frame.stream_id for frame in sent} == {handle.stream_id}


def test_a_break_reaches_every_live_stream_once() -> None:
    """Each live stream hears `on_broken` once, and its handle is dead."""
    streams = _streams()
    listeners = [RecordingListener() for _ in range(3)]
    handles = [streams.open(_open(), listener) for listener in listeners]
    streams.break_all()
    streams.break_all()
    assert [listener.heard for listener in listeners] == [["broken"]] * 3
    assert not any(handle.live for handle in handles)
    assert len(streams) == 0


class _Faulty(RecordingListener):
    def on_tokens(self, tokens: UpstreamTokens) -> None:
        raise RuntimeError("ours")


def test_one_faulty_stream_spares_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours in one stream cancels that stream alone."""
    streams = _streams()
    good = RecordingListener()
    bad_handle = streams.open(_open(), _Faulty())
    good_handle = streams.open(_open(), good)
    _sent(streams)
    streams.receive(
        pb.StreamResponse(
            tokens=_tokens((bad_handle.stream_id, (1,), b"x"), (good_handle.stream_id, (2,), b"y"))
        )
    )
    assert good.text == "y"
    assert _kinds(_sent(streams)) == ["cancel", "release"]
    assert "ours" in caplog.text


def test_columns_that_do_not_add_up_are_refused() -> None:
    """A message that no instance of ours would send ends the call, not the process."""
    streams = _streams()
    handle = streams.open(_open(), RecordingListener())
    lacking = _tokens((handle.stream_id, (1,), b"x"))
    del lacking.offsets[:]
    surplus = _tokens((handle.stream_id, (1,), b"x"))
    surplus.text += b"more"
    for columns in (lacking, surplus):
        with pytest.raises(ValueError, match=r"zip|add up"):
            streams.receive(pb.StreamResponse(tokens=columns))


def test_pressure_is_kept() -> None:
    """The level that was asked for last holds until the next one."""
    streams = _streams()
    for level, meant in (
        (pb.PRESSURE_LEVEL_PAUSE, PressureLevel.PAUSE),
        (pb.PRESSURE_LEVEL_THROTTLE, PressureLevel.THROTTLE),
        (pb.PRESSURE_LEVEL_NONE, PressureLevel.NONE),
    ):
        frame = pb.ServerFrame(pressure=pb.Pressure(level=level))
        streams.receive(pb.StreamResponse(frames=[frame]))
        assert streams.pressed[0] is meant


def _pressure(level: int, reason: str = "") -> pb.StreamResponse:
    pressure = pb.Pressure(level=level, reason=reason)  # type: ignore[arg-type]
    return pb.StreamResponse(frames=[pb.ServerFrame(pressure=pressure)])


async def test_pressure_is_heard_by_every_stream_of_the_call() -> None:
    """At once by those that live, by a later one when it is accepted, by none that has ended."""
    streams = _streams()
    live, ended, late = RecordingListener(), RecordingListener(), RecordingListener()
    streams.open(_open(), live)
    streams.open(_open(), ended).abandon()
    streams.receive(_pressure(pb.PRESSURE_LEVEL_THROTTLE, "the queue is half full"))
    third = streams.open(_open(), late)
    throttled = (PressureLevel.THROTTLE, "the queue is half full")
    assert (live.pressures, ended.pressures, late.pressures) == ([throttled], [], [])
    accepted = pb.ServerFrame(stream_id=third.stream_id, accepted=pb.Accepted(instance="i0"))
    streams.receive(pb.StreamResponse(frames=[accepted]))
    assert late.pressures == [throttled]
    streams.receive(_pressure(pb.PRESSURE_LEVEL_NONE))
    assert live.pressures == late.pressures == [throttled, (PressureLevel.NONE, "")]
