"""Limits of the tenants file over real sockets: exact, slowing instead of cutting, for one tenant alone."""

from __future__ import annotations

import asyncio
import hashlib
import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from gateway.tenants.allowance import Limit
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway, wire
from tests.support.valkey import running_valkey
from tests.support.waiting import wait_until

ACME, OTHER = "sk-acme", "sk-other"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def file_text(acme: str) -> str:
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in (ACME, OTHER)]
    return (
        "format: 1\ntenants:\n"
        f'  acme: {{keys: [{{sha256: "{digests[0]}"}}], {acme}}}\n'
        f'  other: {{keys: [{{sha256: "{digests[1]}"}}]}}\n'
    )


class Tenancy:
    """A gateway whose tenants file a test writes."""

    def __init__(self, path: Path) -> None:
        self.path = path / "tenants.yaml"
        self.cluster = FakeCluster()

    def write(self, acme: str) -> None:
        self.path.write_text(file_text(acme))

    def running(self, acme: str, **settings: Any) -> Any:
        self.write(acme)
        return running_gateway(
            FakeUpstream(self.cluster), tenants_file=str(self.path), anonymous_tenant="", **settings
        )


@pytest.fixture
def tenancy(tmp_path: Path) -> Tenancy:
    return Tenancy(tmp_path)


async def ask(gateway: GatewayUnderTest, key: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(
            f"http://127.0.0.1:{gateway.port}/v1/completions",
            json={"model": "fake", "prompt": "a b c", **body},
            headers=bearer(key),
        )


async def test_rate_limited_says_exactly_when_on_both_ways_in(tenancy: Tenancy) -> None:
    """WebSocket and HTTP say the same milliseconds; after them the request is served."""
    async with tenancy.running("limits: {requests_per_s: {base: 2, burst: 1}}") as gateway:
        async with wire(gateway.url, additional_headers=bearer(ACME)) as client:
            await client.send(type="generate", id="a", prompt="a b c")
            await client.until("done", id="a")
            await asyncio.sleep(0.51)
            await client.send(type="generate", id="b", prompt="a b c")
            await client.send(type="generate", id="c", prompt="a b c")
            refused = await client.until("error", id="c")
            assert (refused["code"], refused["retryable"]) == ("rate_limited", True)
            assert 250 < refused["retry_after_ms"] <= 500
            assert refused["usage"]["total_tokens"] == 0
            await asyncio.sleep(refused["retry_after_ms"] / 1000)
            await client.send(type="generate", id="c", prompt="a b c")
            assert (await client.until("done", id="c"))["finish_reason"] == "stop"
        answer = await ask(gateway, ACME)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "rate_limited"
        assert 0 < int(answer.headers["retry-after-ms"]) <= 500
        assert answer.headers["retry-after"] == "1"
        assert (await ask(gateway, OTHER)).status_code == 200
        await asyncio.sleep(int(answer.headers["retry-after-ms"]) / 1000)
        assert (await ask(gateway, ACME)).status_code == 200


async def test_answers_say_how_far_the_limits_are(tenancy: Tenancy) -> None:
    """OpenAI's headers on answers, streams and refusals; a refusal's times agree; no limit, no header."""
    limits = (
        'limits: {requests_per_s: {base: "0.01", burst: 3}, tokens_per_s: {base: 5, burst: 50}}'
    )
    async with tenancy.running(limits) as gateway:
        for left, stream in ((2, False), (1, True), (0, False)):
            answer = await ask(gateway, ACME, stream=stream)
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
            assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
            assert answer.headers["x-ratelimit-limit-tokens"] == "50"
            assert 30 < int(answer.headers["x-ratelimit-remaining-tokens"]) <= 50
        refused = await ask(gateway, ACME)
        assert refused.status_code == 429
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-ratelimit-reset-requests"].startswith("4m5")
        retry_ms = int(refused.headers["retry-after-ms"])
        assert 90_000 < retry_ms <= 100_000
        assert int(refused.headers["retry-after"]) == math.ceil(retry_ms / 1000)
        other = await ask(gateway, OTHER)
        assert not [name for name in other.headers if name.startswith("x-ratelimit")]


async def test_a_repeated_id_is_no_new_request(tenancy: Tenancy) -> None:
    """What is resent for a repeated `generate` counts against no limit (§3)."""
    async with (
        tenancy.running("limits: {requests_per_s: {base: '0.001', burst: 1}}") as gateway,
        wire(gateway.url, additional_headers=bearer(ACME)) as client,
    ):
        await client.send(type="generate", id="a", prompt="a b c")
        done = await client.until("done", id="a")
        await client.send(type="generate", id="a", prompt="a b c")
        assert await client.until("done", id="a") == done


async def test_tokens_over_the_rate_slow_and_are_not_cut(tenancy: Tenancy) -> None:
    """40 words at 20 per second after a burst of 10 take a second and a half, and all of them come."""
    text = " ".join(["word"] * 40)
    async with tenancy.running("limits: {tokens_per_s: {base: 20, burst: 10}}") as gateway:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with wire(gateway.url, additional_headers=bearer(ACME), windowed=False) as client:
            await client.send(type="generate", id="a", prompt=text)
            other = await ask(gateway, OTHER, prompt=text)
            assert other.json()["choices"][0]["text"] == text
            assert loop.time() - begun < 1.0
            done = await client.until("done", id="a")
            assert client.text() == text
            assert done["usage"]["completion_tokens"] == 40
            assert loop.time() - begun >= 1.4
        begun = loop.time()
        whole = await ask(gateway, ACME, prompt=text)
        assert whole.json()["choices"][0]["text"] == text
        assert loop.time() - begun >= 1.4


async def test_streams_and_connections_at_once(tenancy: Tenancy) -> None:
    """One more stream is `rate_limited`, one more connection closes with 4429; both come free again."""
    async with tenancy.running("limits: {streams: 1, connections: 1}") as gateway:
        async with wire(gateway.url, additional_headers=bearer(ACME), windowed=False) as client:
            await client.send(type="generate", id="a", prompt="x " * 300)
            await client.until("token", id="a")
            await client.send(type="generate", id="b", prompt="b")
            assert (await client.until("error", id="b"))["code"] == "rate_limited"
            await client.send(type="cancel", id="a")
            await client.until("done", id="a")
            await client.send(type="generate", id="b", prompt="b")
            await client.until("done", id="b")
            async with wire(gateway.url, additional_headers=bearer(ACME), greeting=False) as second:
                assert await second.closed() == 4429
            async with wire(gateway.url, additional_headers=bearer(OTHER)):
                pass
        await wait_until(lambda: gateway.deps.tenants.of("acme").connections == 0)
        async with wire(gateway.url, additional_headers=bearer(ACME)):
            pass


async def test_models_of_the_tenants_list(tenancy: Tenancy) -> None:
    """Others are neither listed nor served."""
    async with tenancy.running("models: [elsewhere]") as gateway:
        assert (await ask(gateway, ACME)).status_code == 404
        async with httpx.AsyncClient(trust_env=False) as client:
            for key, names in ((ACME, []), (OTHER, ["fake"])):
                base = f"http://127.0.0.1:{gateway.port}/v1/models"
                listed = (await client.get(base, headers=bearer(key))).json()["data"]
                assert [model["id"] for model in listed] == names
                one = await client.get(f"{base}/fake", headers=bearer(key))
                assert one.status_code == (200 if names else 404)


async def test_a_new_file_is_in_force_within_seconds(tenancy: Tenancy) -> None:
    """A key that is taken out opens nothing any more; the session that runs goes on."""
    async with (
        tenancy.running("weight: 1") as gateway,
        wire(gateway.url, additional_headers=bearer(ACME)) as client,
    ):
        tenancy.path.write_text("format: 1\ntenants:\n  acme: {weight: 1}\n")
        await wait_until(lambda: not gateway.deps.tenants.book.keys)
        with pytest.raises(InvalidStatus) as refused:
            async with wire(gateway.url, additional_headers=bearer(ACME)):
                pass
        assert refused.value.response.status_code == 401
        await client.send(type="generate", id="a", prompt="a b c")
        await client.until("done", id="a")


def uses_its_half(gateway: GatewayUnderTest) -> bool:
    """The store has lent this gateway half of acme's 20 requests per second, and they are taken."""
    acme = gateway.deps.tenants.of("acme")
    empty = acme._requests is not None and not acme._requests.room(gateway.deps.clock.monotonic())
    return empty and acme._slices.get(Limit.REQUESTS) == 10


async def test_two_gateways_are_one_limit(tenancy: Tenancy) -> None:
    """A tenant that asks both gets no more than its rate, and each gateway serves what it may alone."""
    # A burst of a second: what a busy machine's pause leaves in the buckets is used after it.
    limit = "limits: {requests_per_s: {base: 20, burst: 20}}"
    both = "ws://127.0.0.1:1,ws://127.0.0.1:2"
    with running_valkey() as valkey:
        settings = {"redis": valkey.url, "gateways": both}
        async with (
            tenancy.running(limit, **settings) as one,
            tenancy.running(limit, **settings) as other,
            wire(one.url, additional_headers=bearer(ACME), windowed=False) as first,
            wire(other.url, additional_headers=bearer(ACME), windowed=False) as second,
        ):
            loop = asyncio.get_running_loop()
            passed: list[float] = []

            async def press(client: Any) -> None:
                for number in range(10**6):
                    await client.send(type="generate", id=f"s{number}", prompt="a")
                    while (frame := await client.read())["type"] not in ("done", "error"):
                        pass
                    if frame["type"] == "done":
                        passed.append(loop.time())
                    await asyncio.sleep(0.01)

            begun = loop.time()
            pressing = [asyncio.create_task(press(client)) for client in (first, second)]
            # A slice moves in two renewals: the one that has too much gives it back, the other takes it.
            await wait_until(lambda: uses_its_half(one) and uses_its_half(other), within_s=10)
            settled = len(passed)
            await wait_until(lambda: len(passed) > settled + 40, within_s=10)
            for task in pressing:
                task.cancel()
            await asyncio.gather(*pressing, return_exceptions=True)
            for number, at in enumerate(passed, start=1):
                assert number <= 20 + 20 * (at - begun) + 2
            seconds = passed[settled + 40] - passed[settled]
            assert 40 / seconds == pytest.approx(20, rel=0.15)
