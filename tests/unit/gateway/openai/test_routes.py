"""OpenAI's API as a client sees it, without sockets."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.auth import Authenticator, allowed_origins, parse_keys
from gateway.tickets import Tickets
from mesh.telemetry.metrics import render
from tests.support.openai_api import TEXT, Api, events

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    yield api
    await api.client.aclose()


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


async def test_who_asks_for_usage_finds_it_in_every_chunk(api: Api) -> None:
    """As OpenAI does: null in each chunk and the figures in the last; who does not ask finds none."""
    asked = events(await api.chat(stream=True, stream_options={"include_usage": True}))[:-1]
    assert [chunk["usage"] for chunk in asked[:-1]] == [None] * (len(asked) - 1)
    assert asked[-1]["usage"]["total_tokens"] == 11
    assert not any("usage" in chunk for chunk in events(await api.chat(stream=True))[:-1])


async def test_several_prompts(api: Api) -> None:
    """CASES 89: a choice for each prompt, told apart by `index`; the usage adds them up, both ways."""
    ask = {"prompt": ["a b", "c"], "n": 2}
    body = (await api.client.post("/v1/completions", json=ask)).json()
    found = [(choice["index"], choice["text"]) for choice in body["choices"]]
    assert found == [(0, "a b"), (1, "a b"), (2, "c"), (3, "c")]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (14, 6)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    streamed = ask | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, _ = events(await api.client.post("/v1/completions", json=streamed))
    texts = ["", "", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["a b", "a b", "c", "c"]
    assert usage["usage"] == body["usage"]


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
    """A gateway that knows no metering says so: nobody need ask again."""
    for path in ("usage", "plans", "invoices", "invoices/2026-11"):
        response = await api.client.get(f"/v1/{path}")
        assert response.status_code == 404
        assert "metering" in response.json()["error"]["message"]


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
