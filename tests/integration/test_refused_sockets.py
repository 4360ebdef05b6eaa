"""WebSockets that are refused, over real sockets."""

from __future__ import annotations

import logging

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import running_gateway


async def test_a_refusal_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever shows a wrong key gets HTTP 401 and cannot fill the log."""
    wrong = {"Authorization": "Bearer wrong"}
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        with pytest.raises(InvalidStatus) as refused:
            await connect(gateway.url, additional_headers=wrong)
    assert refused.value.response.status_code == 401
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_a_path_that_is_not_there_is_refused_like_all_else() -> None:
    """An unknown path or a wrong method is 404 or 405 in OpenAI's shape, with a request id."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        base = gateway.url.replace("ws://", "http://").rsplit("/v2", 1)[0]
        async with httpx.AsyncClient(base_url=base) as client:
            missing = await client.get("/v1/nothing")
            wrong = await client.get("/v1/chat/completions")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    for answer in (missing, wrong):
        assert answer.json()["error"]["code"] == "bad_request"
        assert answer.headers["x-request-id"]
