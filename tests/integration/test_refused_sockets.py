"""WebSockets that are refused, over real sockets."""

from __future__ import annotations

import logging

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
