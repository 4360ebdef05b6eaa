"""The routes as a whole: their document, and what is said of those that are none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.app import build_app
from gateway.connections import Connections
from gateway.session.registry import SessionRegistry
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    deps = make_deps(FakeUpstream(FakeCluster()))
    app = build_app(deps, SessionRegistry(deps), Connections(10))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        client.app = app  # type: ignore[attr-defined]
        yield client


async def test_the_document_has_every_route(client: httpx.AsyncClient) -> None:
    """`/openapi.json` describes what is served over HTTP, and nothing else."""
    document = (await client.get("/openapi.json")).json()
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    served = {
        (path, method)
        for path, item in client.app.openapi()["paths"].items()  # type: ignore[attr-defined]
        for method in item
    }
    assert described == served


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET"),
        ("GET", "/v1/embeddings", 404, None),
        ("TRACE", "/healthz", 405, "GET"),
    ],
)
async def test_what_is_not_served(
    client: httpx.AsyncClient, method: str, path: str, status: int, allow: str | None
) -> None:
    """No such path, or not by this method: OpenAI's shape, a request id, and what is allowed."""
    response = await client.request(method, path, headers={"X-Request-Id": "r-1"})
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.headers["X-Request-Id"] == "r-1"
    assert response.headers.get("Allow") == allow
