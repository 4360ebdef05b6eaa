"""Answers as ASGI responses: a stream of server-sent events, or one JSON object.

Both watch the client while they work: one that goes away cancels its generations (§6, CASES 26).
The status line waits until an instance has taken the request, so that a refusal has its own status
and the headers can say what was adopted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http_errors import error_body, error_response
from gateway.openai.answers import AnswerShape
from gateway.openai.choices import Choices
from gateway.openai.run import End, Generation
from gateway.openai.schema import Asked
from gateway.upstream.base import UpstreamAccepted
from seedance.protocol.errors import SeedanceError

__all__ = [
    "ADOPTED_BATCH_HEADER",
    "STALL_S",
    "TOKEN_QUOTA_HEADER",
    "GenerationResponse",
    "while_connected",
]

ADOPTED_BATCH_HEADER = "X-Adopted-Batch-Size"
TOKEN_QUOTA_HEADER = "X-Token-Quota"  # noqa: S105 - a header's name

Tell = Callable[[Mapping[str, Any]], Awaitable[None]]

# A reader that takes nothing for so long is gone, as on a WebSocket (30 s and 15 s, §2): until then its
# generation pauses, but holds its blocks.
STALL_S = 45.0

_DONE = b"data: [DONE]\n\n"
_SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a proxy in front must not hold text back
}


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class GenerationResponse(Response):
    """Runs a request's generations while they are sent.

    `shape` makes the answer's form for the model that took it; `headers` go on every answer, also
    on a refusal. `complete`: everything was sent, and nothing failed.
    """

    def __init__(
        self,
        choices: Choices,
        asked: Asked,
        shape: Callable[[str], AnswerShape],
        headers: Mapping[str, str],
    ) -> None:
        self.background = None
        self._choices = choices
        self._asked = asked
        self._shape = shape
        self._common = dict(headers)
        self.complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and whatever happens, close the generations."""
        try:
            await while_connected(receive, self._answer(scope, receive, send))
        finally:
            await self._choices.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            accepted = await self._choices.open()
            headers = self._common | _adopted(accepted)
            shape = self._shape(accepted.model)
            if self._asked.stream:
                with suppress(TimeoutError):
                    await self._stream(send, headers, shape)
                return
            answers = await self._choices.each(lambda _, generation: generation.whole())
        except SeedanceError as error:
            refusal = error_response(self._asked.in_clients_words(error), self._common)
            await refusal(scope, receive, send)
        else:
            usage = self._choices.usage([end for _, end in answers])
            body = msgspec.json.encode(shape.whole(answers, usage) | self._choices.receipt(usage))
            answer = Response(body, headers=headers, media_type="application/json")
            await answer(scope, receive, send)
            self.complete = True

    async def _stream(self, send: Send, headers: dict[str, str], shape: AnswerShape) -> None:
        raw = [(k.lower().encode(), v.encode()) for k, v in (headers | _SSE_HEADERS).items()]

        async def tell(kind: str, **fields: Any) -> None:
            async with asyncio.timeout(STALL_S):
                await send({"type": f"http.response.{kind}", **fields})

        sending = asyncio.Lock()

        async def put(event: bytes, *, more: bool = True) -> None:
            async with sending:  # the choices' chunks come interleaved, each in one piece
                await tell("body", body=event, more_body=more)

        # As OpenAI does: who asked for the usage finds the field in every chunk.
        no_usage = {"usage": None} if self._asked.include_usage else {}

        async def chunk(body: Mapping[str, Any]) -> None:
            await put(_event({**body, **no_usage}))

        async def choice(index: int, generation: Generation) -> End:
            return await _pieces(chunk, generation, shape.choice(index))

        await tell("start", status=200, headers=raw)

        try:
            ends = await self._choices.each(choice)
        except SeedanceError as error:
            # The status line is gone: an error event, and no [DONE], says that this is no end.
            await put(_event(error_body(self._asked.in_clients_words(error))), more=False)
            return
        usage = self._choices.usage(ends)
        receipt = self._choices.receipt(usage)
        if self._asked.include_usage or receipt:
            await put(_event(shape.usage(usage) | receipt))
        await put(_DONE, more=False)
        self.complete = True


async def _pieces(tell: Tell, generation: Generation, shape: AnswerShape) -> End:
    """Send one choice from its first chunk to its last."""
    first = shape.first()
    if first is not None:
        await tell(first)
    characters = 0
    while True:
        token = await generation.next()
        if isinstance(token, End):
            await tell(shape.last(token))
            return token
        await tell(shape.delta(token, characters))
        characters += len(token.delta)


def _adopted(accepted: UpstreamAccepted) -> dict[str, str]:
    return {
        ADOPTED_BATCH_HEADER: str(accepted.adopted_batch_size),
        TOKEN_QUOTA_HEADER: str(accepted.token_quota),
    }


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it when the client goes away."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        watching = tasks.create_task(_client_gone(receive))
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        watching.cancel()


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
