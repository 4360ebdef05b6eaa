"""OpenAI's API as a client sees it, without sockets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from gateway.auth import Authenticator, allowed_origins, parse_keys
from gateway.openai.routes import BODY_BYTES_MAX, openai_routes
from gateway.ticket_routes import ticket_routes
from gateway.tickets import Tickets
from mesh.telemetry.metrics import render
from seedance.protocol.errors import ErrorCode, SeedanceError
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps

HELLO = [{"role": "user", "content": "one two three 😁"}]
TEXT = HELLO[0]["content"]
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Api:
    """The routes on fake instances, asked through ASGI."""

    def __init__(self, **settings: Any) -> None:
        self.cluster = FakeCluster()
        self.upstream = FakeUpstream(self.cluster)
        self.deps = make_deps(self.upstream, **settings)
        app = FastAPI()
        app.include_router(openai_routes(self.deps))
        app.include_router(ticket_routes(self.deps))
        transport = httpx.ASGITransport(app, client=("10.0.0.1", 1))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def chat(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"messages": HELLO} | fields
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def raw(self, body: bytes, path: str = "/v1/chat/completions") -> httpx.Response:
        return await self.client.post(path, content=body)

    def refuse(self, error: SeedanceError) -> None:
        for instance in self.cluster.instances.values():
            instance.refuses = error


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    yield api
    await api.client.aclose()


def events(response: httpx.Response) -> list[Any]:
    """The events of an answer, the last of which is [DONE] or an error."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    found = [part.removeprefix("data: ") for part in parts]
    return [part if part == "[DONE]" else json.loads(part) for part in found]


async def test_chat_in_one_piece(api: Api) -> None:
    """A `chat.completion` with the text, the reason and the usage."""
    response = await api.chat()
    body = response.json()
    assert response.status_code == 200
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    assert body["id"].startswith("chatcmpl-")
    assert body["created"] > 1_600_000_000
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 4,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


async def test_chat_as_a_stream(api: Api) -> None:
    """Chunks: the role, the text, the reason, the usage when asked, and [DONE]."""
    response = await api.chat(stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(response)
    assert done == "[DONE]"
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {
        (usage["id"], "chat.completion.chunk", "fake")
    }
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert "".join(d["content"] for d in deltas[:-1]) == TEXT
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4


async def test_no_usage_chunk_unless_asked(api: Api) -> None:
    """Without `include_usage` every chunk has a choice."""
    *chunks, done = events(await api.chat(stream=True))
    assert done == "[DONE]"
    assert all(chunk["choices"] for chunk in chunks)


async def test_stop_reason_length(api: Api) -> None:
    """At `max_tokens` the reason is `length`."""
    body = (await api.chat(max_tokens=2)).json()
    assert body["choices"][0]["message"]["content"] == "one two"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


async def test_completions(api: Api) -> None:
    """The older endpoint says the same text, streamed and in one piece."""
    ask = {"prompt": TEXT}
    body = (await api.client.post("/v1/completions", json=ask)).json()
    assert (body["object"], body["choices"][0]["text"]) == ("text_completion", TEXT)
    assert body["id"].startswith("cmpl-")
    assert body["usage"]["total_tokens"] == 11
    response = await api.client.post("/v1/completions", json=ask | {"stream": True})
    *chunks, done = events(response)
    assert done == "[DONE]"
    assert "".join(c["choices"][0]["text"] for c in chunks) == TEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_logprobs_in_chat(api: Api) -> None:
    """Each token has its log-probability, streamed and in one piece alike."""
    body = (await api.chat(logprobs=True)).json()
    whole = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in whole] == ["one", " two", " three", " 😁"]
    assert whole[0] == {
        "token": "one",
        "logprob": -0.5,
        "bytes": [111, 110, 101],
        "top_logprobs": [],
    }
    *chunks, _ = events(await api.chat(logprobs=True, stream=True))
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == whole


async def test_logprobs_in_completions(api: Api) -> None:
    """The older shape has columns, with offsets in characters over the whole stream."""
    ask = {"prompt": "é two three", "logprobs": 1}
    whole = (await api.client.post("/v1/completions", json=ask)).json()["choices"][0]["logprobs"]
    assert whole["tokens"] == ["é", " two", " three"]
    assert whole["token_logprobs"] == [-0.5] * 3
    assert whole["text_offset"] == [0, 1, 5]
    response = await api.client.post("/v1/completions", json=ask | {"stream": True})
    parts = [e["choices"][0]["logprobs"] for e in events(response)[:-1]]
    assert [offset for part in parts if part for offset in part["text_offset"]] == [0, 1, 5]


async def test_adopted_and_wished(api: Api) -> None:
    """The wishes reach the instance, and the answer says what was adopted."""
    wishes = {"X-Expected-Tokens": "4", "X-Max-Latency": "250"}
    for stream in (False, True):
        response = await api.chat(wishes, stream=stream)
        assert response.headers["X-Adopted-Batch-Size"] == "8"
        assert response.headers["X-Token-Quota"] == "1000"
        request = api.upstream.opened[-1].request
        assert (request.expected_tokens, request.max_latency_ms) == (4, 250)


@pytest.mark.parametrize("given", ["abc-123", None, "x" * 200, "a\tb"])
async def test_request_id(api: Api, given: str | None) -> None:
    """A fit request id is kept, on refusals too; another one is made otherwise."""
    headers = {} if given is None else {"X-Request-Id": given}
    for fields in ({}, {"stream": True}, {"n": 99}):
        kept = (await api.chat(headers, **fields)).headers["X-Request-Id"]
        assert (kept == given) is (given == "abc-123")
        assert 1 <= len(kept) <= 128


async def test_one_trace(api: Api) -> None:
    """CASES 104: the caller's trace goes on to the instance."""
    await api.chat({"traceparent": TRACEPARENT})
    inner = api.upstream.opened[0].traceparent
    assert inner.split("-")[1] == TRACEPARENT.split("-")[1]
    assert inner != TRACEPARENT


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (SeedanceError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "9 of 8", field="messages"), 400, "inv"),
        (SeedanceError(ErrorCode.OVERLOADED, "full", retry_after_ms=1500), 503, "server_error"),
        (SeedanceError(ErrorCode.RATE_LIMITED, "slow", retry_after_ms=1), 429, "rate_limit_error"),
        (SeedanceError(ErrorCode.QUOTA_EXCEEDED, "spent"), 429, "insufficient_quota"),
        (SeedanceError(ErrorCode.INTERNAL, "sorry"), 500, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_of_instances(
    api: Api, error: SeedanceError, status: int, kind: str, stream: bool
) -> None:
    """CASES 18: before any text a refusal has its own status and OpenAI's shape, streamed or not."""
    api.refuse(error)
    response = await api.chat(stream=stream)
    body = response.json()["error"]
    assert response.status_code == status
    assert (body["code"], body["message"], body["param"]) == (
        error.code.value,
        error.message,
        error.field,
    )
    assert body["type"].startswith(kind)
    if error.retry_after_ms is not None:
        assert response.headers["Retry-After"] == str(-(-error.retry_after_ms // 1000))
        assert response.headers["Retry-After-Ms"] == str(error.retry_after_ms)


async def test_error_after_text_is_no_end(api: Api) -> None:
    """CASES 67: a stream that fails ends with an error event and without [DONE]."""
    api.cluster.script = lambda _: [b"x"] * 5000
    ended = []

    def step() -> bool:
        for held in api.cluster.instances["i-0"].generations.values():
            if held.made == 400:
                held.cancelled = True
                ended.append(held)
        return FakeCluster.step(api.cluster)

    api.cluster.step = step  # type: ignore[method-assign]
    *_, last = events(await api.chat(stream=True))
    assert ended
    assert last["error"]["code"] == "unavailable"


async def test_bad_field_is_400_in_openais_shape(api: Api) -> None:
    """CASES 13, 14: the refusal is valid JSON that names the field, and the next request works."""
    refused = await api.raw(b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}')
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "temperature"
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert (await api.chat()).status_code == 200


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"null", b'{"messages"', b"\xff\xfe", b""])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_no_object_is_400(api: Api, body: bytes, path: str) -> None:
    """CASES 22: a body that is no JSON object is a 400, on both endpoints."""
    response = await api.raw(body, path)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "bad_request"


@pytest.mark.parametrize(
    "fields",
    [b'"logit_bias":{"\\ud83d":1}', b'"model":"\\ud83d"', b'"user":"\\ud83d"'],
)
async def test_refusing_a_surrogate_can_be_said(api: Api, fields: bytes) -> None:
    """CASES 14, 20: the refusal of a lone surrogate is itself valid JSON."""
    response = await api.raw(b'{"messages":[{"role":"user","content":"x"}],' + fields + b"}")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(("size", "status"), [(BODY_BYTES_MAX, 200), (BODY_BYTES_MAX + 1, 413)])
async def test_body_size(api: Api, size: int, status: int) -> None:
    """CASES 39: the limit holds at the edge: the last size that fits, and one more byte."""
    head, tail = b'{"messages":[{"role":"user","content":"hi"}],"x":"', b'"}'
    response = await api.raw(head + b"a" * (size - len(head) - len(tail)) + tail)
    assert response.status_code == status


async def test_unknown_model(api: Api) -> None:
    """A model that is not served is 404 and named; no word is no wish."""
    response = await api.chat(model="gpt-9")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert response.json()["error"]["param"] == "model"
    assert (await api.chat(model="fake")).status_code == 200


async def test_no_instance(api: Api) -> None:
    """With no instance there the answer is 503 with Retry-After (CASES 48)."""
    api.cluster.kill("i-0")
    api.cluster.kill("i-1")
    response = await api.chat()
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")


async def test_models(api: Api) -> None:
    """Every served name is listed and can be looked up."""
    body = (await api.client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [(m["id"], m["object"]) for m in body["data"]] == [("fake", "model")]
    assert (await api.client.get("/v1/models/fake")).json()["id"] == "fake"
    assert (await api.client.get("/v1/models/org/other")).status_code == 404


async def test_who_may_ask() -> None:
    """CASES 25, 108, 109: keys, tickets and Origins have one answer on every route."""
    api = Api(anonymous_tenant="")
    digest = hashlib.sha256(b"sk-right").hexdigest()
    object.__setattr__(
        api.deps,
        "authenticator",
        Authenticator(
            parse_keys(f"acme:{digest}"),
            allowed_origins(["ws://gateway"]),
            Tickets(api.deps.store),
        ),
    )
    key = {"Authorization": "Bearer sk-right"}
    for method, path in (
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/usage"),
        ("GET", "/v1/plans"),
        ("GET", "/v1/invoices"),
        ("GET", "/v1/invoices/2026-11"),
    ):
        for headers, query, status in (
            ({}, "", 401),
            ({"Authorization": "Bearer"}, "", 401),
            ({"Authorization": "Bearer sk-wrong"}, "", 401),
            (key, "?api_key=sk-right", 401),
            (key | {"Origin": "https://evil.example"}, "", 403),
        ):
            response = await api.client.request(method, path + query, headers=headers)
            assert response.status_code == status
            assert response.json()["error"]["code"] == "unauthorized"
            assert "sk-" not in response.text
            assert ("WWW-Authenticate" in response.headers) is (status == 401)
    assert (await api.chat(key)).status_code == 200
    assert (await api.chat(key | {"Origin": "http://gateway"})).status_code == 200
    assert api.upstream.opened[0].tenant == "acme"
    await api.client.aclose()


async def test_ticket_route(api: Api) -> None:
    """A ticket is issued to whoever may ask, for 30 s, and is not for caches."""
    response = await api.client.post("/v2/tickets")
    body = response.json()
    assert (response.status_code, body["expires_in"]) == (200, 30)
    assert response.headers["Cache-Control"] == "no-store"
    redeemed = await api.deps.authenticator.tickets.redeem(body["ticket"])
    assert redeemed is not None
    assert redeemed.tenant == "local"
    wrong = await api.client.post("/v2/tickets", headers={"Authorization": "Bearer no"})
    assert wrong.status_code == 401


async def test_usage_without_metering(api: Api) -> None:
    """A gateway that knows no metering says so."""
    for path in ("usage", "plans", "invoices", "invoices/2026-11"):
        assert (await api.client.get(f"/v1/{path}")).status_code == 503


@pytest.mark.parametrize("bound", ["yesterday", "-1", "9" * 5000])
async def test_bad_bounds_of_usage(api: Api, bound: str) -> None:
    """They are named, also a number that Python would not read."""
    response = await api.client.get(f"/v1/usage?from_ms={bound}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "from_ms")


async def test_affinity(api: Api) -> None:
    """One user, or else who brings one cookie, goes one way; only the nameless are given one."""
    seen = []
    choose = api.upstream.choose

    def recording(where: Any) -> str:
        seen.append(where)
        return choose(where)

    api.upstream.choose = recording  # type: ignore[method-assign]
    named = await api.chat(user="ada")
    nameless = await api.chat({"User-Agent": "curl"})
    cookie, _, _ = nameless.headers["set-cookie"].partition(";")
    again = await api.chat({"User-Agent": "other", "Cookie": cookie, "X-Canary": "true"})
    assert seen[0].user == "local/ada"
    assert seen[1].user == seen[2].user == f"local~{cookie.partition('=')[2][:16]}"
    assert [where.canary for where in seen] == [False, False, True]
    assert "set-cookie" not in named.headers.keys() | again.headers.keys()


async def test_counters(api: Api) -> None:
    """Generations and refusals are counted once each (CASES 88)."""
    await api.chat()
    await api.chat(n=99)
    await api.chat(n=99)
    shown = render(api.deps.metrics.registry).decode()
    assert 'seedance_gateway_requests_total{outcome="stop",way="http"} 1.0' in shown
    assert 'seedance_gateway_rejected_total{code="bad_request"} 2.0' in shown
