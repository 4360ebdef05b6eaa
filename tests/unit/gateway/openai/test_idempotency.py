"""`Idempotency-Key`: one run and one bill, whoever asks again, where, and when."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.openai import idempotency, recording
from gateway.store.memory import MemoryStore
from mesh.clock import SystemClock
from seedance.protocol.errors import ErrorCode, SeedanceError
from tests.support.clock import FakeClock
from tests.support.fake_upstream import FakeCluster
from tests.support.flaky_store import FlakyStore
from tests.support.openai_api import HELLO, TEXT, Api
from tests.support.told_usage import stream_bills
from tests.support.waiting import SURELY_S, wait_until

KEY = {"Idempotency-Key": "order-66"}
TOKENS = 400


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "_POLL_S", 0.005)


class Mesh:
    """Two gateways on one store and the same instances."""

    def __init__(self, cluster: FakeCluster, **settings: Any) -> None:
        self.clock = FakeClock()
        self.memory = MemoryStore(self.clock, 120)
        self.store = FlakyStore(self.memory)
        self.cluster = cluster
        self.one = Api(cluster, self.store, **settings)  # type: ignore[arg-type]
        self.other = Api(cluster, self.store, **settings)  # type: ignore[arg-type]

    async def bills(self) -> list[dict[str, Any]]:
        for api in (self.one, self.other):
            await api.deps.usage.flush()
        return stream_bills(self.memory.usage)

    @property
    def runs(self) -> int:
        return len(self.one.upstream.opened) + len(self.other.upstream.opened)


@asynccontextmanager
async def running_mesh(cluster: FakeCluster | None = None, **settings: Any) -> AsyncIterator[Mesh]:
    mesh = Mesh(cluster or FakeCluster(), **settings)
    yield mesh
    await mesh.one.client.aclose()
    await mesh.other.client.aclose()


class Client:
    """The other end of a request through ASGI: it may leave in the middle."""

    def __init__(self, api: Api, key: dict[str, str] = KEY, **fields: Any) -> None:
        self.body = json.dumps({"messages": HELLO, **fields}).encode()
        self.received = b""
        self.leaving = asyncio.Event()
        headers = [(k.lower().encode(), v.encode()) for k, v in key.items()]
        self.scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}
        self.scope |= {"query_string": b"", "headers": headers, "client": ("10.0.0.1", 1)}
        self.asked = False
        self.answered = asyncio.create_task(api.app(self.scope, self.receive, self.send))

    async def receive(self) -> dict[str, Any]:
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": self.body}
        await self.leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.received += message.get("body", b"")
        await asyncio.sleep(0)


def _answers(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeat_is_answered_with_the_first_answer(stream: bool) -> None:
    """CASES 63, 65: five requests with one key, on two gateways: one run, one bill, the same bytes."""
    async with running_mesh() as mesh:
        first = await mesh.one.chat(KEY, stream=stream)
        assert "Idempotent-Replayed" not in first.headers
        for api in (mesh.one, mesh.other, mesh.one, mesh.other):
            again = await api.chat({**KEY, "X-Request-Id": "again"}, stream=stream)
            assert _answers(again) == _answers(first)
            assert again.headers["X-Request-Id"] == "again"
            assert again.headers["X-Token-Quota"] == first.headers["X-Token-Quota"]
            assert again.headers["content-type"] == first.headers["content-type"]
            assert again.headers["Idempotent-Replayed"] == "true"
        assert mesh.runs == 1
        (bill,) = await mesh.bills()
        assert bill["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_repeats_join_while_it_runs(stream: bool) -> None:
    """Whoever asks in the middle, here or elsewhere, reads the same answer from its beginning."""
    async with running_mesh(FakeCluster(lambda _: [b"~"] * TOKENS)) as mesh:
        apis = (mesh.one, mesh.other, mesh.one, mesh.other)
        answers = await asyncio.gather(*[api.chat(KEY, stream=stream) for api in apis])
        assert {response.text.count("~") for response in answers} == {TOKENS}
        assert mesh.runs == 1
        assert len(await mesh.bills()) == 1


async def test_a_first_reader_that_takes_nothing_stops_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is let go as one who left: the run goes on, and who asks again has it all, billed once."""
    monkeypatch.setattr(recording, "STALL_S", 0.02)
    let_go = asyncio.Event()

    class Stalled(Client):
        async def send(self, message: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                let_go.set()

    async with running_mesh(FakeCluster(lambda _: [b"~"] * TOKENS, auto=False)) as mesh:
        first = Stalled(mesh.one, stream=True)
        await wait_until(lambda: mesh.runs == 1)
        mesh.cluster.step()
        await let_go.wait()
        # Who reads is not to be let go with it, however busy the machine is.
        monkeypatch.setattr(recording, "STALL_S", SURELY_S)
        mesh.cluster.auto = True
        mesh.cluster.schedule()
        again = Client(mesh.one, stream=True)
        await asyncio.gather(first.answered, again.answered)
        assert again.received.count(b"~") == TOKENS
        assert mesh.runs == 1
        (bill,) = await mesh.bills()
        assert bill["completion_tokens"] == TOKENS


async def test_another_request_under_the_key_is_refused() -> None:
    """422 that names the header, while the first runs and afterwards, on every gateway."""
    async with running_mesh(FakeCluster(lambda _: [b"~"] * TOKENS)) as mesh:
        running = Client(mesh.one)
        await wait_until(lambda: mesh.runs == 1)
        refused = [await mesh.one.chat(KEY, n=2), await mesh.other.chat(KEY, n=2)]
        await running.answered
        refused += [await mesh.one.chat(KEY, n=2), await mesh.other.chat(KEY, n=2)]
        for response in refused:
            assert response.status_code == 422
            assert response.json()["error"]["param"] == "Idempotency-Key"
        older = await mesh.one.client.post("/v1/completions", json={"prompt": "x"}, headers=KEY)
        assert older.status_code == 422
        assert mesh.runs == 1


async def test_a_key_is_its_tenants_own() -> None:
    """Two tenants may choose the same key: neither sees the other's answer."""
    keys = ",".join(
        f"{name}:{hashlib.sha256(f'sk-{name}'.encode()).hexdigest()}" for name in ("ann", "bob")
    )
    async with running_mesh(keys=keys) as mesh:
        for name in ("ann", "bob"):
            headers = {**KEY, "Authorization": f"Bearer sk-{name}"}
            assert (await mesh.one.chat(headers, user=name)).status_code == 200
        assert mesh.runs == 2
        assert sorted(bill["tenant"] for bill in await mesh.bills()) == ["ann", "bob"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_not_remembered(stream: bool) -> None:
    """What was refused may be asked again under the same key, and then runs."""
    async with running_mesh() as mesh:
        busy = SeedanceError(ErrorCode.OVERLOADED, "full", retry_after_ms=1)
        mesh.one.refuse(busy)
        assert (await mesh.one.chat(KEY, stream=stream)).status_code == 503
        for instance in mesh.cluster.instances.values():
            instance.refuses = None
        answered = await mesh.other.chat(KEY, stream=stream)
        assert (answered.status_code, "😁" in answered.text) == (200, True)
        assert len(await mesh.bills()) == 1


async def test_a_failure_is_not_remembered() -> None:
    """A stream that broke off is billed for what it said; the next request is a run of its own."""
    async with running_mesh(FakeCluster(lambda _: [b"~"] * 50_000)) as mesh:
        failing = Client(mesh.one, stream=True)
        await wait_until(lambda: mesh.cluster.computed > 10)
        for held in mesh.cluster.instances["i-0"].generations.values():
            held.cancelled = True
        await failing.answered
        assert b"[DONE]" not in failing.received
        mesh.cluster.script = lambda _: [b"whole"]
        assert "whole" in (await mesh.other.chat(KEY, stream=True)).text
        ids = {bill["id"]: bill["finish_reason"] for bill in await mesh.bills()}
        assert sorted(ids.values()) == ["stop", "unavailable"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_comes_back_gets_it_all(stream: bool) -> None:
    """The run goes on without its client; the repeat has the whole answer, billed once."""
    async with running_mesh(FakeCluster(lambda _: [b"~"] * TOKENS)) as mesh:
        leaver = Client(mesh.one, stream=stream)
        await wait_until(lambda: mesh.cluster.computed > 10)
        leaver.leaving.set()
        again = Client(mesh.one, stream=stream)
        await again.answered
        assert again.received.count(b"~") == TOKENS
        await leaver.answered
        assert mesh.runs == 1
        (bill,) = await mesh.bills()
        assert (bill["finish_reason"], bill["completion_tokens"]) == ("stop", TOKENS)


async def test_a_run_that_nobody_comes_back_for_ends() -> None:
    """CASES 26: after the time that a session waits it is cancelled, billed and forgotten."""
    async with running_mesh(FakeCluster(lambda _: [b"~"] * 10**6), resume_ttl_s=1) as mesh:
        leaver = Client(mesh.one, stream=True)
        await wait_until(lambda: mesh.cluster.computed > 10)
        leaver.leaving.set()
        async with asyncio.timeout(5):
            await leaver.answered
        assert mesh.cluster.running == 0
        (bill,) = await mesh.bills()
        assert bill["finish_reason"] == "cancelled"
        mesh.cluster.script = lambda _: [b"anew"]
        assert "anew" in (await mesh.one.chat(KEY, stream=True)).text


async def test_a_gateway_that_died_leaves_its_runs_to_others() -> None:
    """Once its lease has lapsed another one runs it, under the name that the first would have billed."""
    async with running_mesh() as mesh:
        dying = Client(mesh.one)
        mesh.cluster.auto = False
        await wait_until(lambda: mesh.runs == 1)
        mesh.one.upstream.crash()
        waiting = Client(mesh.other)
        await wait_until(lambda: waiting.asked)
        assert mesh.runs == 1
        mesh.clock.advance(idempotency.LEASE_S + 1)
        mesh.cluster.auto = True
        async with asyncio.timeout(5):
            await waiting.answered
        assert TEXT in waiting.received.decode()
        first, second = (api.upstream.opened[0].generation for api in (mesh.one, mesh.other))
        assert first == second
        dying.answered.cancel()
        await asyncio.wait([dying.answered])


async def test_without_a_store_the_gateway_remembers() -> None:
    """With the store away a key is known where it was used; with it back, too."""
    async with running_mesh() as mesh:
        mesh.store.away = True
        first = await mesh.one.chat(KEY)
        assert (first.status_code, TEXT) == (
            200,
            first.json()["choices"][0]["message"]["content"],
        )
        assert _answers(await mesh.one.chat(KEY)) == _answers(first)
        mesh.store.away = False
        assert _answers(await mesh.one.chat(KEY)) == _answers(first)
        assert mesh.runs == 1


async def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer too long to be kept ends as an error; one run too many is told to come again."""
    monkeypatch.setattr(recording, "ANSWER_BYTES_MAX", 4_000)
    monkeypatch.setattr(idempotency, "RUNS_MAX", 1)
    monkeypatch.setattr(idempotency, "UNSAVED_MAX", 2)
    async with running_mesh(FakeCluster(lambda _: [b"~"] * TOKENS, auto=False)) as mesh:
        long = Client(mesh.one, stream=True)
        await wait_until(lambda: mesh.runs == 1)
        many = await mesh.one.chat({"Idempotency-Key": "another"})
        assert (many.status_code, many.json()["error"]["code"]) == (503, "overloaded")
        mesh.cluster.auto = True
        mesh.cluster.schedule()
        await long.answered
        *_, last = long.received.decode().strip().split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["param"] == "Idempotency-Key"
        assert len(long.received) < 8_000
        mesh.cluster.script = lambda _: [b"short"]
        mesh.store.away = True
        for number in range(4):
            await mesh.one.chat({"Idempotency-Key": f"unsaved-{number}"})
        opened = mesh.runs
        await mesh.one.chat({"Idempotency-Key": "unsaved-3"})
        assert mesh.runs == opened
        await mesh.one.chat({"Idempotency-Key": "unsaved-0"})
        assert mesh.runs == opened + 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
async def test_a_key_that_is_none(key: str) -> None:
    """Refused by name, before anything runs."""
    api = Api(store=MemoryStore(SystemClock(), 120))
    response = await api.chat({"Idempotency-Key": key.encode("latin-1")})  # type: ignore[dict-item]
    assert (response.status_code, response.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert not api.upstream.opened
    await api.client.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_over_a_limit_is_not_remembered(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant over its limit is told so under a key, too, and may ask again under it, anywhere."""
    async with running_mesh() as mesh:
        slow = SeedanceError(ErrorCode.RATE_LIMITED, "too fast", retry_after_ms=500)
        with monkeypatch.context() as limited:
            limited.setattr(mesh.one.deps.tenants, "admit", _raising(slow))
            refused = await mesh.one.chat(KEY, stream=stream)
        assert (refused.status_code, refused.headers["Retry-After-Ms"]) == (429, "500")
        assert (await mesh.other.chat(KEY, stream=stream)).status_code == 200
        assert mesh.runs == 1


def _raising(error: SeedanceError) -> Any:
    def admit(*_: Any) -> None:
        raise error

    return admit
