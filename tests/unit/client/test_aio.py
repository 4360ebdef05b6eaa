"""The asyncio client against real sockets and a gateway that misbehaves as told."""

from __future__ import annotations

import asyncio
import gc
from urllib.parse import urlsplit

import pytest

from seedance.client import AsyncSeedanceClient, link
from seedance.client.stream import BUFFER_BYTES_MAX
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import PressureFrame, Usage
from seedance.protocol.json_codec import encode_server
from seedance.protocol.reconnect import Backoff, BreakerState
from tests.support.scripted_gateway import TEXT, Script, ScriptedGateway, ScriptedSession
from tests.support.waiting import wait_until

MESSAGES = [{"role": "user", "content": "你好"}]
QUICK = Backoff(base_s=0.01, max_s=0.05)


async def read(client: AsyncSeedanceClient) -> str:
    return "".join([chunk.delta async for chunk in client.chat(MESSAGES)])


async def test_text_streams_and_is_acknowledged() -> None:
    """The text arrives whole, its chunks placed by offset, and every frame gets acknowledged."""
    async with ScriptedGateway() as gateway, AsyncSeedanceClient(gateway.url) as client:
        stream = client.chat(MESSAGES, temperature=0.3)
        text = ""
        async for chunk in stream:
            assert chunk.offset == len(text.encode())
            text += chunk.delta
        assert text == TEXT
        assert stream.finish_reason == "stop"
        await wait_until(lambda: gateway.acks[-1:] == [len(TEXT) // 3 + 1 + 3])
        assert len(gateway.acks) <= len(TEXT) // 3 / 8 + 2


async def test_a_whole_answer() -> None:
    """With `stream=False` the completion is awaited, and brings its usage."""
    async with ScriptedGateway() as gateway, AsyncSeedanceClient(gateway.url) as client:
        completion = await client.chat(prompt="x", stream=False)
    assert (completion.text, completion.usage) == (TEXT, Usage(5, 0, 0))


async def test_an_answer_that_is_too_big_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as what it is; no number of resumes would make it smaller."""
    monkeypatch.setattr(link, "MESSAGE_BYTES_MAX", 2000)
    async with ScriptedGateway(Script(text="x" * 5000)) as gateway:
        async with AsyncSeedanceClient(gateway.url, backoff=QUICK) as client:
            with pytest.raises(SeedanceError) as caught:
                await client.chat(prompt="x", stream=False)
        assert caught.value.code is ErrorCode.INTERNAL
        assert len(gateway.connections) == 1


async def test_cuts_in_mid_stream_lose_and_double_nothing() -> None:
    """Four cuts, each resume cut differently, frames sent twice: the text is exact, asked once."""
    script = Script(cuts=(10, 1, 7, 0), repeat_frames=2)
    states: list[str] = []
    async with ScriptedGateway(script) as gateway:
        client = AsyncSeedanceClient(gateway.url, backoff=QUICK, on_state=states.append)
        async with client:
            assert await read(client) == TEXT
        assert len(gateway.generated) == 1
        assert len(gateway.connections) == 5
    assert states == ["connecting", "open", *["connecting", "resuming", "open"] * 4, "closed"]


async def test_streams_of_a_session_survive_together() -> None:
    """Eight streams at once through two cuts: each has its own text, whole."""
    async with ScriptedGateway(Script(cuts=(5, 9))) as gateway:
        async with AsyncSeedanceClient(gateway.url, backoff=QUICK) as client:
            texts = await asyncio.gather(*(read(client) for _ in range(8)))
        assert texts == [TEXT] * 8
        assert len(gateway.generated) == 8


async def test_a_gateway_that_dies_is_replaced_by_another() -> None:
    """CASES 62: the stream goes on at another gateway that the session named."""
    sessions: dict[str, ScriptedSession] = {}
    script = Script(pace_s=0.002)
    async with (
        ScriptedGateway(script, sessions=sessions) as one,
        ScriptedGateway(script, sessions=sessions) as two,
    ):
        one.gateways += [one.base_url, two.base_url]
        async with AsyncSeedanceClient(one.url, backoff=QUICK) as client:
            text = ""
            async for chunk in client.chat(MESSAGES):
                text += chunk.delta
                if len(text) == 30:
                    await one.stop()
        assert text == TEXT
        assert (len(one.generated), len(two.generated)) == (1, 0)


@pytest.mark.parametrize("code", [4401, 4403, 4409])
async def test_a_refusal_is_final(code: int) -> None:
    """CASES 114: after 4401, 4403 or 4409 there is one connection and one error."""
    async with ScriptedGateway(Script(closes=(code,))) as gateway:
        async with AsyncSeedanceClient(gateway.url, api_key="wrong", backoff=QUICK) as client:
            with pytest.raises(SeedanceError) as caught:
                await read(client)
        assert caught.value.code in (ErrorCode.UNAUTHORIZED, ErrorCode.SESSION_EXPIRED)
        assert len(gateway.connections) == 1


@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [
        (401, "unauthorized", 1),
        (403, "unauthorized", 1),
        (404, "internal", 1),
        (503, "unavailable", 1 + QUICK.tries_max),
    ],
)
async def test_a_refused_handshake_is_an_error_of_the_table(
    status: int, code: str, tries: int
) -> None:
    """An HTTP refusal is told as what it means; only a busy server is tried again."""
    async with ScriptedGateway(Script(refuse_status=status)) as gateway:
        async with AsyncSeedanceClient(gateway.url, backoff=QUICK) as client:
            with pytest.raises(SeedanceError) as caught:
                await read(client)
        assert caught.value.code.value == code
        assert len(gateway.requested_paths) == tries


async def test_nobody_there_is_unavailable_soon() -> None:
    """With nothing listening the error comes after the last try."""
    async with ScriptedGateway() as gateway:
        url = gateway.url
    async with AsyncSeedanceClient(url, backoff=QUICK) as client:
        with pytest.raises(SeedanceError) as caught:
            await read(client)
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_a_session_that_is_gone_is_said_so() -> None:
    """A server that forgot the session gets no second generation: the loss is told (CASES 65)."""
    async with ScriptedGateway(Script(cuts=(3,))) as gateway:
        async with AsyncSeedanceClient(gateway.url, backoff=QUICK) as client:
            stream = client.chat(MESSAGES)
            await stream
            gateway.sessions.clear()
            with pytest.raises(SeedanceError) as caught:
                [chunk async for chunk in stream]
        assert caught.value.code is ErrorCode.SESSION_EXPIRED
        assert len(gateway.generated) == 1


async def test_cancel_ends_the_stream_and_no_other() -> None:
    """A cancelled stream ends as cancelled; its neighbour runs on."""
    async with (
        ScriptedGateway(Script(pace_s=0.002)) as gateway,
        AsyncSeedanceClient(gateway.url) as client,
    ):
        other = asyncio.create_task(read(client))
        stream = client.chat(MESSAGES)
        await anext(stream)
        stream.cancel()
        rest = [chunk async for chunk in stream]
        assert stream.finish_reason == "cancelled"
        assert len(rest) < len(TEXT) / 3 - 1
        assert await other == TEXT


async def test_a_dropped_stream_is_cancelled_at_the_server() -> None:
    """A stream that its program forgot stops at the server, from wherever it is collected."""
    async with (
        ScriptedGateway(Script(pace_s=0.005)) as gateway,
        AsyncSeedanceClient(gateway.url) as client,
    ):
        stream = client.chat(MESSAGES)
        stream_id = stream.id
        await stream
        del stream
        gc.collect()
        await wait_until(lambda: any(stream_id in s.cancelled for s in gateway.sessions.values()))


async def test_a_slow_reader_stops_the_server_and_loses_nothing() -> None:
    """Unread text is bounded by the buffer and one window; once read, the rest follows."""
    script = Script(text="x" * (3 * BUFFER_BYTES_MAX), piece_chars=4000)
    async with ScriptedGateway(script) as gateway, AsyncSeedanceClient(gateway.url) as client:
        stream = client.chat(MESSAGES)
        await stream
        session = next(iter(gateway.sessions.values()))
        await wait_until(lambda: session.next_seq - session.expected >= script.window)
        said = session.next_seq
        await asyncio.sleep(0.1)
        assert session.next_seq == said
        assert said * 4000 < BUFFER_BYTES_MAX + 2 * script.window * 4000
        assert sum([len(chunk.delta) async for chunk in stream]) == len(script.text)


async def test_closing_ends_the_session() -> None:
    """`close` is told to the server, which frees the session; a running stream hears of it."""
    async with ScriptedGateway(Script(pace_s=0.01)) as gateway:
        client = AsyncSeedanceClient(gateway.url)
        stream = client.chat(MESSAGES)
        await stream
        await client.close()
        with pytest.raises(SeedanceError, match="closed"):
            [chunk async for chunk in stream]
        await wait_until(lambda: not gateway.sessions)
        with pytest.raises(SeedanceError, match="closed"):
            client.chat(MESSAGES)


async def test_pressure_is_told_when_it_changes() -> None:
    """`on_pressure` hears of a new level once, and `pressure` holds it."""
    heard: list[tuple[str, str]] = []
    async with ScriptedGateway(Script(pace_s=0.005)) as gateway:
        client = AsyncSeedanceClient(
            gateway.url,
            backoff=QUICK,
            on_pressure=lambda level, reason: heard.append((level, reason)),
        )
        async with client:
            reading = asyncio.create_task(read(client))
            await wait_until(lambda: gateway.connections)
            for level in ("throttle", "throttle", "pause"):
                await gateway.connections[0].send(encode_server(PressureFrame(level, "full")))
            await wait_until(lambda: client.pressure == "pause")
            assert await reading == TEXT
        assert heard == [("throttle", "full"), ("pause", "full")]


async def test_a_gateway_that_is_late_is_waited_for() -> None:
    """A client that knows one gateway, which is not there yet, tries on until it is."""
    async with ScriptedGateway() as gateway:
        url = gateway.url
        port = urlsplit(url).port or 0
    states: list[str] = []
    backoff = Backoff(base_s=0.05, max_s=0.1)
    async with AsyncSeedanceClient(url, backoff=backoff, on_state=states.append) as client:
        asked = [client.chat(MESSAGES) for _ in range(3)]
        await wait_until(lambda: client._machine.reconnect.breaker.state is BreakerState.OPEN)
        async with ScriptedGateway(port=port) as gateway:
            texts = ["".join([chunk.delta async for chunk in stream]) for stream in asked]
            assert texts == [TEXT] * 3
            assert gateway.generated == [stream.id for stream in asked]
