"""An instance in front of a planned OpenAI-compatible server, and what is asked of it."""

from __future__ import annotations

import contextlib
from typing import Any

from inference.instance import Instance
from mesh.rpc.convert import request_to_pb
from seedance.protocol.request import ChatMessage, GenerateRequest
from seedance.v2 import inference_pb2 as pb
from tests.support.instance import Caller, Received, running_instance
from tests.support.openai_server import OpenAIServer

__all__ = ["TEXT", "WORDS", "chat_request", "open_stream", "upstream_instance"]

WORDS = [f"{number} wörd 😁 " for number in range(40)]
TEXT = "".join(WORDS).encode()


def upstream_instance(
    server: OpenAIServer, **more: Any
) -> contextlib.AbstractAsyncContextManager[Instance]:
    return running_instance(engine="openai", upstream_url=server.url, **more)


def chat_request(**fields: Any) -> GenerateRequest:
    return GenerateRequest(messages=(ChatMessage("user", "hello"),), **fields)


async def open_stream(
    caller: Caller, stream: int = 1, request: GenerateRequest | None = None, **more: Any
) -> Received:
    more.setdefault("generation", f"s/{stream}")
    opening = pb.Open(request=request_to_pb(request or chat_request()), **more)
    await caller.send(pb.ClientFrame(stream_id=stream, open=opening))
    return caller.streams[stream]
