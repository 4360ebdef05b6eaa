"""`seedance bench` over real sockets: every face, every text checked, whatever is done to connections."""

from __future__ import annotations

import asyncio

import pytest

from launcher.loadtest.arrivals import Arrivals
from launcher.loadtest.load import Load, Target, target_of
from launcher.loadtest.prompts import chat_prompts, script_prompts
from launcher.loadtest.run import NotServedError, check, run
from launcher.loadtest.tally import Tally
from tests.support.openai_server import Plan, openai_server
from tests.support.whole_path import WholePath, whole_path

TOKENS = 24
SUBPROTOCOLS = ("seedance.v2.json", "seedance.v2.proto", "seedance.v2.proto.zstd", "")


def _load(**more: object) -> Load:
    given = {"connections": 6, "duration_s": 1, "max_tokens": TOKENS, "drain_s": 10.0, **more}
    return Load(**given)


async def _run(target: Target, load: Load, token_ms: float = 5) -> Tally:
    prompts = script_prompts(load.max_tokens, token_ms)
    async with asyncio.timeout(40):
        return await run(target, load, prompts, lambda _seconds, _crowd: None)


def _target(path: WholePath, subprotocol: str = SUBPROTOCOLS[0]) -> Target:
    return target_of(path.gateway.url, subprotocol=subprotocol)


def _all_exact(tally: Tally) -> bool:
    whole = tally.asked == tally.answered == tally.exact
    return whole and tally.asked > 0 and tally.tokens == TOKENS * tally.asked


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
async def test_a_websocket_in_every_subprotocol(subprotocol: str) -> None:
    """Every answer is whole, every token counted once, and the times are there."""
    async with whole_path() as path:
        tally = await _run(_target(path, subprotocol), _load(streams=3))
    assert _all_exact(tally), tally.errors
    assert tally.handshake.count == 6
    assert tally.ttft.count == tally.total.count == tally.asked
    assert tally.in_time <= tally.tokens


async def test_openais_api_and_an_instance_directly() -> None:
    """The same load by SSE and by gRPC: as exact, and counted by the server's own count."""
    async with whole_path() as path:
        address = path.gateway.url.partition("://")[2].partition("/")[0]
        sse = await _run(target_of(f"http://{address}"), _load())
        direct = await _run(target_of(f"grpc://{path.instance.address}"), _load(streams=2))
    assert _all_exact(sse), sse.errors
    assert _all_exact(direct), direct.errors


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS[:3])
async def test_a_storm_of_reconnects_costs_no_byte(subprotocol: str) -> None:
    """All connections are cut in one moment: each resumes, every text is whole."""
    async with whole_path() as path:
        load = _load(streams=2, storm_at_s=0.4, duration_s=2)
        tally = await _run(_target(path, subprotocol), load, token_ms=15)
    assert _all_exact(tally), tally.errors
    assert tally.back.count == 6
    assert not tally.errors


async def test_what_cannot_resume_is_an_error() -> None:
    """A simple client's answers end with its connection, and are counted by code."""
    async with whole_path() as path:
        load = _load(storm_at_s=0.3)
        tally = await _run(_target(path, ""), load, token_ms=20)
    assert tally.errors == {"connection_lost": 6}
    assert tally.inexact == 0


async def test_slow_readers_lose_nothing() -> None:
    """They read 4 KiB and rest; their text is whole, and their times are nobody's."""
    async with whole_path() as path:
        load = _load(slow_share=0.5, slow_pause_s=0.05)
        tally = await _run(_target(path), load)
    assert _all_exact(tally), tally.errors
    assert 0 < tally.ttft.count < tally.asked


async def test_an_open_loop_asks_in_time() -> None:
    """Forty requests a second are asked for even when two connections cannot carry them."""
    async with whole_path() as path:
        load = _load(connections=2, arrivals=Arrivals.FIXED, rate=40)
        tally = await _run(_target(path), load, token_ms=10)
    assert tally.asked == 40
    assert _all_exact(tally)
    # Two connections carry eight such answers a second; the last one waited for all before it.
    assert tally.ttft.quantile(0.99) > 2


async def test_a_real_models_answers_are_compared_among_themselves() -> None:
    """Any OpenAI-compatible server: what differs from a prompt's first answer is told."""
    async with openai_server() as server:
        server.plan = Plan()
        target = target_of(server.url, keys=("k",))
        prompts = chat_prompts(unique=False, temperature=0)
        load = _load(arrivals=Arrivals.FIXED, rate=30)
        tally = await run(target, load, prompts, lambda _seconds, _crowd: None)
        assert (tally.exact, tally.inexact) == (tally.answered - 8, 0)
        assert server.keys[0] == "Bearer k"


async def test_who_is_not_there_is_one_line() -> None:
    """Nobody listens, or somebody who plays no scripts: the message says what to do."""
    prompts = script_prompts(TOKENS, 0)
    async with openai_server() as server:
        with pytest.raises(NotServedError, match="--prompts chat"):
            await check(target_of(server.url), _load(), prompts)
        server.plan = Plan(statuses=[400])
        with pytest.raises(NotServedError, match="refuses the prompts"):
            await check(target_of(server.url), _load(), prompts)
    with pytest.raises(
        NotServedError, match=r"does not answer \(connection refused\).*seedance up"
    ):
        await check(target_of("http://127.0.0.1:1"), _load(), prompts)
