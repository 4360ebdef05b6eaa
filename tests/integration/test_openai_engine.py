"""The openai engine over real gRPC, in front of a server that a test plans, on real sockets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from seedance.protocol.request import GenerateRequest, Sampling
from seedance.v2 import inference_pb2 as pb
from tests.support.instance import Received, calling, running_instance
from tests.support.openai_engine import TEXT, WORDS, chat_request, open_stream, upstream_instance
from tests.support.openai_server import MODEL, OpenAIServer, openai_server
from tests.support.waiting import wait_until


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with openai_server() as serving:
        serving.plan.tokens = list(WORDS)
        yield serving


async def _outcome(
    server: OpenAIServer, request: GenerateRequest | None = None, **more: Any
) -> Received:
    """What one request comes to, on an instance of its own."""
    async with upstream_instance(server, **more) as instance, calling(instance.address) as call:
        caller = call()
        received = await open_stream(caller, request=request)
        await caller.until(lambda: received.ended)
        await wait_until(lambda: not server.open)
        return received


@pytest.mark.parametrize("cut", [0, 1, 7])
async def test_text_is_exact_however_events_are_cut(server: OpenAIServer, cut: int) -> None:
    """Events that come in pieces, cut inside code points, are the text and the usage they were."""
    server.plan.cut = cut
    server.plan.line_end = "\r\n" if cut == 7 else "\n"
    received = await _outcome(server)
    assert received.text == TEXT
    assert received.done is not None
    assert received.done.finish_reason == pb.FINISH_REASON_STOP
    usage = received.done.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (11, 4, 40)
    assert received.accepted[0].model == MODEL


async def test_the_request_is_passed_on(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chat goes to chat, a prompt to completions, with the key, and with words that were asked for only."""
    monkeypatch.setenv("SOME_KEY", "sk-1")
    sampling = Sampling(temperature=0.5, seed=7, top_k=3, logit_bias={5: 1.0})
    await _outcome(
        server,
        chat_request(sampling=sampling, stop=("zz",), max_tokens=99),
        upstream_key_env="SOME_KEY",
    )
    await _outcome(server, GenerateRequest(prompt="once", sampling=Sampling(seed=2**40)))
    (chat_path, chat), (path, completion) = server.requests
    assert (chat_path, path) == ("/v1/chat/completions", "/v1/completions")
    assert chat == {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 7,
        "top_k": 3,
        "logit_bias": {"5": 1.0},
        "stop": ["zz"],
        "max_tokens": 99,
    }
    assert completion["prompt"] == "once"
    assert 0 <= completion["seed"] < 2**31
    assert "Bearer sk-1" in server.keys


async def test_a_url_may_end_with_a_slash(server: OpenAIServer) -> None:
    """It means the same: many servers know no path with two of them."""
    async with (
        running_instance(engine="openai", upstream_url=f"{server.url}/") as instance,
        calling(instance.address) as call,
    ):
        caller = call()
        received = await open_stream(caller)
        await caller.until(lambda: received.ended)
    assert received.text == TEXT
    assert server.requests[0][0] == "/v1/chat/completions"


async def test_ends(server: OpenAIServer) -> None:
    """`length` is the server's or ours at `max_tokens`; a stop string ends it also where the server knows none."""
    server.plan.finish_reason = "length"
    received = await _outcome(server, chat_request(max_tokens=40))
    assert received.done is not None
    assert received.done.finish_reason == pb.FINISH_REASON_LENGTH
    assert received.done.usage.prompt_tokens == 11
    received = await _outcome(server, chat_request(stop=("5 wö",)))
    assert received.done is not None
    assert received.done.finish_reason == pb.FINISH_REASON_STOP
    assert received.text == TEXT[: TEXT.index("5 wö".encode())]


async def test_usage_that_never_comes(server: OpenAIServer) -> None:
    """A server that tells no usage, or not in time: the answer ends well all the same, the prompt free."""
    server.plan.usage = False
    received = await _outcome(server)
    assert received.done is not None
    assert received.done.usage.completion_tokens == 40
    assert received.done.usage.prompt_tokens == 0
    server.plan.usage, server.plan.usage_delay_s = True, 0.2
    received = await _outcome(server)
    assert received.done is not None
    assert received.done.usage.prompt_tokens == 11


@pytest.mark.parametrize(
    ("statuses", "code", "retry_ms"),
    [
        ([400], "bad_request", 0),
        ([401], "unavailable", 1000),
        ([404], "unavailable", 1000),
        ([429], "overloaded", 7000),
        ([500], "unavailable", 7000),
        ([503, 503, 503], "unavailable", 1000),
        ([0, 0, 0], "unavailable", 1000),
    ],
)
async def test_refusals_are_translated(
    server: OpenAIServer, statuses: list[int], code: str, retry_ms: int
) -> None:
    """By one table, and nothing of the server's own words reaches a peer."""
    server.plan.statuses = statuses
    server.plan.retry_after = "7" if retry_ms == 7000 else ""
    received = await _outcome(server)
    assert received.error is not None
    assert (received.error.code, received.error.retry_after_ms) == (code, retry_ms)
    assert "10.0.0.1" not in received.error.message
    assert not received.ids


async def test_a_long_prompt_is_told_as_what_it_is(server: OpenAIServer) -> None:
    """`context_length_exceeded`, as with a model of ours."""
    server.plan.statuses = [400]
    server.plan.refusal = "This model's maximum context length is 8192 tokens"
    received = await _outcome(server)
    assert received.error is not None
    assert received.error.code == "context_length_exceeded"


async def test_before_the_first_byte_it_is_tried_again(server: OpenAIServer) -> None:
    """A server that is away for a moment, or hangs up on an old connection, is not noticed (CASES 47)."""
    server.plan.statuses = [503, 0]
    received = await _outcome(server)
    assert received.text == TEXT
    assert len(server.requests) == 3


@pytest.mark.parametrize(("drop", "reason"), [(10, "stop"), (None, None)])
async def test_a_cut_answer_is_no_end(
    server: OpenAIServer, drop: int | None, reason: str | None
) -> None:
    """A connection that dies, or an end without a reason: `unavailable`, and what came is kept (CASES 67)."""
    server.plan.drop_after, server.plan.finish_reason = drop, reason
    received = await _outcome(server)
    assert received.error is not None
    assert received.error.code == "unavailable"
    assert received.text == "".join(WORDS[: drop or 40]).encode()
    assert len(server.requests) == 1


@pytest.mark.parametrize("after", [0, 10])
async def test_a_server_that_hangs_is_given_up(server: OpenAIServer, after: int) -> None:
    """After the time that is set for it, before the first byte and within an answer."""
    server.plan.hang_after = after
    received = await _outcome(server, upstream_first_byte_s=0.2, upstream_idle_s=0.2)
    assert received.error is not None
    assert received.error.code == "unavailable"


async def test_cancel_and_a_broken_call_hang_up(server: OpenAIServer) -> None:
    """The server stops within a moment, and the streams are free (CASES 26)."""
    server.plan.dt_s = 0.02
    async with upstream_instance(server) as instance:
        async with (
            calling(instance.address, secret=None) as direct,
            calling(instance.address) as call,
        ):
            broken, caller = direct(), call()
            left, cancelled = await open_stream(broken), await open_stream(caller)
            await caller.until(lambda: left.ids and cancelled.ids)
            assert server.open == 2
            await broken.cut()
            await caller.send(pb.ClientFrame(stream_id=1, cancel=pb.Cancel()))
            await caller.until(lambda: cancelled.ended)
            await wait_until(lambda: server.open == 0, within_s=1)
        assert cancelled.done is not None
        assert cancelled.done.finish_reason == pb.FINISH_REASON_CANCELLED


async def test_without_credit_the_server_is_not_read(server: OpenAIServer) -> None:
    """It meets a full socket: what is held here and in the sockets is bounded, and nothing is lost."""
    # More than the sockets of both sides take.
    server.plan.tokens = ["x" * 2000] * 20_000
    async with upstream_instance(server) as instance, calling(instance.address) as call:
        caller = call()
        received = await open_stream(caller, credit=5)
        await caller.until(lambda: len(received.ids) == 5)
        stalled = -1
        while stalled != server.sent:
            stalled = server.sent
            with contextlib.suppress(AssertionError):
                await wait_until(lambda: server.sent != stalled, within_s=0.3)  # noqa: B023
        assert server.sent < 10_000
        assert len(received.ids) == 5
        await caller.send(pb.ClientFrame(stream_id=1, credit=pb.Credit(tokens=100)))
        await caller.until(lambda: len(received.ids) == 105)


async def test_streams_are_bounded_and_so_is_the_queue(server: OpenAIServer) -> None:
    """Two at the server, one waits, the next is told `overloaded` and when to come back."""
    server.plan.dt_s = 0.01
    async with (
        upstream_instance(server, batch_max=2, queue_max=1) as instance,
        calling(instance.address) as call,
    ):
        caller = call()
        streams = [await open_stream(caller, number) for number in (1, 2)]
        await caller.until(lambda: server.open == 2)
        streams.append(await open_stream(caller, 3))
        await caller.until(lambda: streams[2].accepted)
        refused = await open_stream(caller, 4)
        await caller.until(lambda: refused.ended)
        assert refused.error is not None
        assert refused.error.code == "overloaded"
        assert refused.error.retry_after_ms > 0
        await caller.until(lambda: all(s.done for s in streams))
        assert [s.text for s in streams] == [TEXT] * 3
        assert server.open_max == 2


async def test_attach_goes_on_and_replays(server: OpenAIServer) -> None:
    """Another call takes over from any token: the transcript is here, the stream goes on."""
    server.plan.dt_s = 0.005
    async with upstream_instance(server) as instance, calling(instance.address) as call:
        first = call()
        begun = await open_stream(first, epoch=1, credit=20)
        await first.until(lambda: len(begun.ids) >= 9)
        await first.cut()
        second = call()
        attach = pb.Attach(generation="s/1", epoch=2, from_token=6)
        await second.send(pb.ClientFrame(stream_id=7, attach=attach))
        received = second.streams[7]
        await second.until(lambda: received.ended)
        assert received.offset is not None
        assert begun.text[: received.offset] + received.text == TEXT
        assert len(server.requests) == 1


async def test_who_comes_back_late_has_it_said_again(server: OpenAIServer) -> None:
    """After `attach_ttl` the server is left alone; whoever attaches then loses nothing."""
    server.plan.dt_s = 0.005
    async with (
        upstream_instance(server, attach_ttl_s=0.1) as instance,
        calling(instance.address) as call,
    ):
        first = call()
        begun = await open_stream(first, epoch=1, credit=9)
        await first.until(lambda: len(begun.ids) == 9)
        await first.cut()
        await wait_until(lambda: server.open == 0)
        second = call()
        attach = pb.Attach(generation="s/1", epoch=2, from_token=9)
        await second.send(pb.ClientFrame(stream_id=7, attach=attach))
        received = second.streams[7]
        await second.until(lambda: received.ended)
        assert begun.text + received.text == TEXT
        assert len(begun.ids) + len(received.ids) == 40


@pytest.mark.parametrize("same_cuts", [True, False])
async def test_a_continuation_is_said_again_and_checked(
    server: OpenAIServer, *, same_cuts: bool
) -> None:
    """On another instance, from token ids alone, also where the server cuts its text otherwise this time."""
    async with upstream_instance(server) as one, calling(one.address) as call:
        begun = await open_stream(call(), credit=15)
        await wait_until(lambda: len(begun.ids) == 15)
    if not same_cuts:
        text = TEXT.decode()
        server.plan.tokens = [text[i : i + 5] for i in range(0, len(text), 5)]
    async with upstream_instance(server) as other, calling(other.address) as call:
        caller = call()
        received = await open_stream(caller, epoch=2, forced_prefix=begun.ids)
        await caller.until(lambda: received.ended)
        assert received.offset == len(begun.text)
        assert begun.text + received.text == TEXT
        assert received.done is not None


async def test_a_server_that_does_not_repeat_itself_is_told_as_such(server: OpenAIServer) -> None:
    """Never another text behind the first one: an honest `unavailable` (CASES 66)."""
    async with upstream_instance(server) as one, calling(one.address) as call:
        begun = await open_stream(call(), credit=15)
        await wait_until(lambda: len(begun.ids) == 15)
    server.plan.tokens[7] = "something else"
    async with upstream_instance(server) as other, calling(other.address) as call:
        caller = call()
        received = await open_stream(caller, epoch=2, forced_prefix=begun.ids)
        await caller.until(lambda: received.ended)
        assert received.error is not None
        assert received.error.code == "unavailable"
        assert "did not repeat its answer" in received.error.message
        assert not received.text
        await wait_until(lambda: server.open == 0)


async def test_a_dropped_answer_goes_on_at_the_sameupstream_instance(server: OpenAIServer) -> None:
    """What a gateway does after `unavailable`: it opens anew with what it has, and nothing is lost."""
    server.plan.drop_after, server.plan.times = 10, 1
    async with upstream_instance(server) as instance, calling(instance.address) as call:
        caller = call()
        begun = await open_stream(caller, epoch=1)
        await caller.until(lambda: begun.ended)
        received = await open_stream(caller, 2, generation="s/1", epoch=2, forced_prefix=begun.ids)
        await caller.until(lambda: received.ended)
        assert begun.text + received.text == TEXT
        assert received.done is not None
        assert received.done.usage.completion_tokens == 30


async def test_what_a_server_cannot_say_is_refused(server: OpenAIServer) -> None:
    """Log-probabilities need the model's tokens."""
    received = await _outcome(server, chat_request(sampling=Sampling(logprobs=1)))
    assert received.error is not None
    assert (received.error.code, received.error.field) == ("bad_request", "logprobs")


@pytest.mark.skipif(
    "SEEDANCE_TEST_OPENAI_SERVER" not in os.environ,
    reason="SEEDANCE_TEST_OPENAI_SERVER names no running OpenAI-compatible server",
)
async def test_a_real_server() -> None:
    """Greedy twice is the same text, also continued from the middle on another instance."""
    url = os.environ["SEEDANCE_TEST_OPENAI_SERVER"]
    request = chat_request(max_tokens=24, sampling=Sampling(temperature=0, seed=1))
    settings = {"engine": "openai", "upstream_url": url}
    async with running_instance(**settings) as one, calling(one.address) as call:
        caller = call()
        # One after the other: llama-cpp-python's server hangs up on the first for the second's sake.
        whole = await open_stream(caller, 1, request)
        await wait_until(lambda: whole.ended, within_s=60)
        half = await open_stream(caller, 2, request, credit=5)
        await wait_until(lambda: len(half.ids) == 5, within_s=60)
    assert whole.done is not None
    assert whole.text
    async with running_instance(**settings) as other, calling(other.address) as call:
        caller = call()
        rest = await open_stream(caller, 2, request, epoch=2, forced_prefix=half.ids)
        await wait_until(lambda: rest.ended, within_s=60)
    assert rest.error is None
    assert half.text + rest.text == whole.text
