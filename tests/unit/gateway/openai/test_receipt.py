"""A receipt on OpenAI's API: signed as a stream's is, by the name that the bill has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from gateway.openai.routes import openai_routes
from gateway.receipts import load_signer, make_key_file
from seedance.client import AsyncSeedanceClient
from seedance.receipt import ReceiptError
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps
from tests.support.openai_api import HELLO, TEXT, events
from tests.support.told_usage import kept_events, stream_bills


class Api:
    """Routes of a gateway that signs."""

    def __init__(self, folder: Path) -> None:
        make_key_file(folder / "key.pem")
        signer = load_signer([str(folder / "key.pem")])
        assert signer is not None
        self.deps = replace(make_deps(FakeUpstream(FakeCluster())), receipts=signer)
        self.keys = [entry["public_key"] for entry in signer.public_keys]
        app = FastAPI()
        app.include_router(openai_routes(self.deps))
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://gateway"
        )

    async def chat(self, **fields: Any) -> httpx.Response:
        """An answer to hello."""
        body = {"messages": HELLO, "receipt": True} | fields
        return await self.client.post("/v1/chat/completions", json=body)

    async def check(self, receipt: Any, text: str) -> None:
        """The SDK's own check, with the mesh's keys at hand: nobody is asked."""
        client = AsyncSeedanceClient("ws://127.0.0.1:9/v2/infer", receipt_keys=self.keys)
        await client.verify(receipt, text=text)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    made = Api(tmp_path)
    yield made
    await made.client.aclose()


async def _holds(api: Api, receipt: dict[str, Any], usage: dict[str, Any]) -> None:
    await api.check(receipt, TEXT)
    with pytest.raises(ReceiptError):
        await api.check(receipt, TEXT + "!")
    forged = receipt["usage"] | {"completion_tokens": 1}
    with pytest.raises(ReceiptError):
        await api.check(receipt | {"usage": forged}, TEXT)
    (bill,) = stream_bills(kept_events(api.deps.usage.outbox))
    assert bill["id"] == f"{receipt['session']}/{receipt['id']}/stream_finished"
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        assert receipt["usage"][name] == bill[name]
    assert usage["total_tokens"] == receipt["usage"]["total_tokens"]


async def test_an_answer_in_one_piece_is_signed(api: Api) -> None:
    """`receipt` stands beside `usage`; it holds for this text and this usage, and no other."""
    body = (await api.chat()).json()
    assert body["choices"][0]["message"]["content"] == TEXT
    await _holds(api, body["receipt"], body["usage"])


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}])
async def test_a_stream_is_signed_in_its_last_chunk(api: Api, more: dict[str, Any]) -> None:
    """The chunk without choices has usage and receipt, whether the usage was asked for or not."""
    *chunks, done = events(await api.chat(stream=True, **more))
    assert done == "[DONE]"
    last = chunks[-1]
    assert last["choices"] == []
    await _holds(api, last["receipt"], last["usage"])
    assert not any("receipt" in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize("fields", [{"n": 2}, {"receipt": "yes"}])
async def test_what_cannot_be_signed_is_refused(api: Api, fields: dict[str, Any]) -> None:
    """A receipt is of one text: for several answers there is none, and it is said."""
    refused = await api.chat(**fields)
    assert refused.status_code == 400
    assert "`receipt`" in refused.json()["error"]["message"]


async def test_nobody_gets_a_receipt_unasked(api: Api) -> None:
    """OpenAI's objects have no such field unless it is wanted."""
    assert "receipt" not in (await api.chat(receipt=False)).json()
