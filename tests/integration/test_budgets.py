"""Budgets with real sockets, a real instance and a real store: cut at the exact token (CASES 101)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway_under_test import Wire, wire
from tests.support.scripts import script_messages
from tests.support.valkey import TestStore
from tests.support.whole_path import whole_path

WORD = [b"word "]
PROMPT_TOKENS = len(script_messages(WORD, repeat=1000)[0]["content"])


async def _to_the_end(client: Wire, name: str) -> dict[str, Any]:
    """Read a stream, acknowledging, until its `done` or `error`."""
    while True:
        frame = await client.read()
        if frame.get("seq", 0) % 8 == 0 and "seq" in frame:
            await client.send(type="ack", seq=client.last_seq + 1)
        if frame["type"] in ("done", "error") and frame["id"] == name:
            return frame


@pytest.fixture(params=["memory", "redis"])
def redis_url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return ""
    valkey: TestStore = request.getfixturevalue("valkey")
    return valkey.url


async def test_a_stream_is_cut_at_the_exact_token(redis_url: str) -> None:
    """Prompt and 37 tokens are paid for: 37 come, `quota_exceeded` says so with the usage, and the next is refused free of charge."""
    budget = f"local={PROMPT_TOKENS + 37} tokens/ever"
    async with (
        whole_path(budgets=budget, redis=redis_url) as path,
        wire(path.gateway.url) as client,
    ):
        messages = script_messages(WORD, repeat=1000)
        await client.send(type="generate", id="a", messages=messages)
        end = await _to_the_end(client, "a")
        assert (end["type"], end["code"], end["retryable"]) == ("error", "quota_exceeded", False)
        assert client.text("a") == "word " * 37
        assert end["usage"]["completion_tokens"] == 37
        assert end["usage"]["prompt_tokens"] == PROMPT_TOKENS
        await client.send(type="generate", id="b", messages=messages)
        end = await _to_the_end(client, "b")
        assert (end["code"], end["usage"]["total_tokens"]) == ("quota_exceeded", 0)


async def test_parallel_streams_share_a_budget_to_the_token(redis_url: str) -> None:
    """CASES 101, with no slack: ten streams of 1,000 tokens use up what there is, and not a token more."""
    budget = f"local={10 * PROMPT_TOKENS + 100} tokens/ever"
    async with whole_path(budgets=budget, redis=redis_url) as path:
        async with wire(path.gateway.url) as client:
            for n in range(10):
                messages = script_messages(WORD, repeat=1000)
                await client.send(type="generate", id=f"s{n}", messages=messages)
            ends = {}
            while len(ends) < 10:
                frame = await client.read()
                if "seq" in frame:
                    await client.send(type="ack", seq=client.last_seq + 1)
                if frame["type"] in ("done", "error"):
                    ends[frame["id"]] = frame
        assert {end["code"] for end in ends.values()} == {"quota_exceeded"}
        total = sum(end["usage"]["total_tokens"] for end in ends.values())
        assert total == 10 * PROMPT_TOKENS + 100
        # Who came too late for its prompt leaves the money to the others.
        words = sum(end["usage"]["completion_tokens"] for end in ends.values())
        assert words >= 100
        assert client.text() == "word " * words


async def test_a_stream_that_fits_is_not_touched(redis_url: str) -> None:
    """One token more than is needed is enough, and what a stream did not use another has."""
    budget = f"local={2 * PROMPT_TOKENS + 2000} tokens/ever"
    async with (
        whole_path(budgets=budget, redis=redis_url) as path,
        wire(path.gateway.url) as client,
    ):
        for name in ("a", "b"):
            messages = script_messages(WORD, repeat=1000)
            await client.send(type="generate", id=name, messages=messages)
            end = await _to_the_end(client, name)
            assert end["type"] == "done", end
            assert end["usage"]["completion_tokens"] == 1000


async def test_an_answer_in_one_piece_is_cut_too(redis_url: str) -> None:
    """`stream: false`: the engine makes what is paid for and no more, and the error has the usage."""
    budget = f"local={PROMPT_TOKENS + 5} tokens/ever"
    async with (
        whole_path(budgets=budget, redis=redis_url) as path,
        wire(path.gateway.url) as client,
    ):
        messages = script_messages(WORD, repeat=1000)
        await client.send(type="generate", id="a", messages=messages, stream=False)
        end = await _to_the_end(client, "a")
        assert end["code"] == "quota_exceeded"


async def test_without_the_store_nothing_is_overshot(valkey: TestStore) -> None:
    """What is held is spent; then the stream rests, and goes on when the store is back with its data lost or not."""
    budget = f"local={PROMPT_TOKENS + 600} tokens/ever"
    async with (
        whole_path(budgets=budget, redis=valkey.url) as path,
        wire(path.gateway.url) as client,
    ):
        messages = script_messages(WORD, dt_ms=1, repeat=1000)
        await client.send(type="generate", id="a", messages=messages)
        await client.until("token")
        valkey.stop()
        await asyncio.to_thread(valkey.start)
        end = await _to_the_end(client, "a")
        assert end["code"] == "quota_exceeded"
        assert end["usage"]["total_tokens"] == PROMPT_TOKENS + 600


async def test_an_http_stream_is_cut_at_the_exact_token(redis_url: str) -> None:
    """The words that are paid for arrive, then the error; the next request is a 429 of OpenAI's shape, at no cost."""
    budget = f"local={PROMPT_TOKENS + 37} tokens/ever"
    body = {"messages": script_messages(WORD, repeat=1000), "stream": True}
    async with whole_path(budgets=budget, redis=redis_url) as path:
        url = f"http://127.0.0.1:{path.gateway.port}/v1/chat/completions"
        async with httpx.AsyncClient() as client:
            said = (await client.post(url, json=body)).text
            events = [
                json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")
            ]
            deltas = [
                e["choices"][0]["delta"].get("content") or "" for e in events if "choices" in e
            ]
            assert "".join(deltas) == "word " * 37
            assert events[-1]["error"]["code"] == "quota_exceeded"
            refused = await client.post(url, json=body | {"stream": False})
            assert refused.status_code == 429
            assert refused.json()["error"]["type"] == "insufficient_quota"


async def test_an_http_answer_that_fits_is_whole(redis_url: str) -> None:
    """In one piece, and with what it did not use left to the next."""
    budget = f"local={2 * PROMPT_TOKENS + 2000} tokens/ever"
    body = {"messages": script_messages(WORD, repeat=1000), "stream": False}
    async with whole_path(budgets=budget, redis=redis_url) as path:
        url = f"http://127.0.0.1:{path.gateway.port}/v1/chat/completions"
        async with httpx.AsyncClient() as client:
            for _ in range(2):
                answer = (await client.post(url, json=body)).json()
                assert answer["usage"]["completion_tokens"] == 1000
            assert (await client.post(url, json=body)).status_code == 429


async def test_a_key_has_a_budget_of_its_own(redis_url: str, tmp_path: Path) -> None:
    """By name in the tenants file, beside the tenant's and a pace in tokens: one key is cut, the other goes on."""
    keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(f"""
format: 1
tenants:
  acme:
    keys:
      - {{sha256: {keys["one"]}, name: one, budgets: [{PROMPT_TOKENS + 7} tokens/day]}}
      - {{sha256: {keys["two"]}, name: two}}
    limits: {{tokens_per_s: 100000}}
    budgets: [{2 * PROMPT_TOKENS + 7 + 9} tokens/month]
""")
    settings = {"tenants_file": str(tenants), "redis": redis_url, "anonymous_tenant": ""}
    messages = script_messages(WORD, repeat=1000)
    async with whole_path(**settings) as path:
        for key, words in (("one", 7), ("two", 9)):
            headers = {"Authorization": f"Bearer {key}"}
            async with wire(path.gateway.url, additional_headers=headers) as client:
                await client.send(type="generate", id="a", messages=messages)
                end = await _to_the_end(client, "a")
                assert (end["code"], end["usage"]["completion_tokens"]) == ("quota_exceeded", words)
                assert client.text("a") == "word " * words
