"""What OpenAI's API refuses, and how it says so."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.openai.routes import BODY_BYTES_MAX
from seedance.protocol.errors import ErrorCode, SeedanceError
from tests.support.fake_upstream import FakeCluster
from tests.support.openai_api import Api, events


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    yield api
    await api.client.aclose()


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
