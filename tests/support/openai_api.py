"""OpenAI's routes on fake instances, asked through ASGI."""

from __future__ import annotations

import json
from typing import Any

import httpx
from fastapi import FastAPI

from gateway.openai.routes import openai_routes
from gateway.store.base import SessionStore
from gateway.ticket_routes import ticket_routes
from seedance.protocol.errors import SeedanceError
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps

__all__ = ["HELLO", "TEXT", "Api", "events"]

HELLO = [{"role": "user", "content": "one two three 😁"}]
TEXT = HELLO[0]["content"]


class Api:
    """One gateway's routes; several may share instances and a store."""

    def __init__(
        self,
        cluster: FakeCluster | None = None,
        store: SessionStore | None = None,
        **settings: Any,
    ) -> None:
        self.cluster = cluster or FakeCluster()
        self.upstream = FakeUpstream(self.cluster)
        self.deps = make_deps(self.upstream, store, **settings)
        app = self.app = FastAPI()
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


def events(response: httpx.Response) -> list[Any]:
    """The events of an answer, the last of which is [DONE] or an error."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    found = [part.removeprefix("data: ") for part in parts]
    return [part if part == "[DONE]" else json.loads(part) for part in found]
