"""One OpenAI-compatible server over HTTP: how it is reached, and how long it is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from inference.config import InferenceSettings
from inference.engine.runner import ModelInfo
from inference.openai.wire import DONE, Delta, Upstream, delta, event_data, refusal, wish
from seedance.protocol.request import GenerateRequest

__all__ = ["IDS", "UpstreamClient", "find_upstream"]

# Before its first byte a request is tried so often, with so long in between, times two.
TRIES = 3
RETRY_S = 0.1
CONNECT_S = 5.0
# After its last word a server may still tell its usage.
LAST_WORDS_S = 5.0
# Continuations that are said again, beside the streams of the batch.
REPLAYS_MAX = 8
# Where nobody says how long an answer may be.
CONTEXT_LENGTH = 2**24
# Token ids are below.
IDS = 2**31
_OK = 200
# Not reached, or a door whose server is away for a moment: nothing was computed yet.
_PASSING = frozenset({0, 502, 503, 504})
# Servers that count with every event when asked to.
_COUNTING = frozenset({"vllm", "sglang"})

# What reading a listing that is none comes to.
_NO_LISTING = (ValueError, LookupError, TypeError, StopIteration)

_log = logging.getLogger(__name__)
# It writes a line for each request.
logging.getLogger("httpx").setLevel(logging.WARNING)


def _headers(settings: InferenceSettings) -> dict[str, str]:
    key = settings.upstream_key
    return {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})


def find_upstream(settings: InferenceSettings) -> Upstream:
    """Ask what is served. Raises `ConnectionError` when there is no answer."""
    try:
        url, headers = f"{settings.upstream_url.rstrip('/')}/models", _headers(settings)
        answer = httpx.get(url, headers=headers, timeout=CONNECT_S, trust_env=False)
        models = {model["id"]: model for model in answer.raise_for_status().json()["data"]}
        name = settings.upstream_model or next(iter(models))
        told = models.get(name, {})
        context = settings.context_length or told.get("max_model_len") or CONTEXT_LENGTH
    except (httpx.HTTPError, httpx.InvalidURL, *_NO_LISTING) as error:
        raise ConnectionError(type(error).__name__) from None
    info = ModelInfo(
        # Some servers call a model by its file, whose folders are nobody's business.
        name=settings.model_name or (Path(name).stem if name.startswith("/") else name),
        aliases=settings.alias_names,
        context_length=context,
        vocab_size=IDS,
        eos_token_ids=frozenset(),
        # A sequence holds one block, and no stream, running or paused, loses its own to another.
        block_size=context,
        total_blocks=2 * settings.limits().batch_max + 1,
    )
    return Upstream(name, told.get("owned_by") in _COUNTING, info)


class UpstreamClient:
    """Opens streams; whoever closes one's generator closes its connection, and the server stops."""

    def __init__(self, settings: InferenceSettings, upstream: Upstream) -> None:
        self._upstream = upstream
        self._first_byte_s = settings.upstream_first_byte_s
        self._idle_s = settings.upstream_idle_s
        # How long an answer may take is not HTTP's affair; no proxy and no netrc has a say.
        self.http = httpx.AsyncClient(
            base_url=settings.upstream_url,
            headers=_headers(settings),
            timeout=httpx.Timeout(None, connect=CONNECT_S, pool=CONNECT_S),
            limits=httpx.Limits(max_connections=settings.limits().batch_max + REPLAYS_MAX),
            trust_env=False,
        )

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The answer's events up to its end. Raises `SeedanceError`: `unavailable` for a cut one.

        Nothing is read ahead: while nobody asks for the next event, the server meets a full socket.
        """
        path, body = wish(request, self._upstream.model, counting=self._upstream.counting)
        wait_s, finished = self._first_byte_s, False
        async with contextlib.AsyncExitStack() as stack:
            response = await self._begin(stack, path, body)
            events = event_data(response.aiter_bytes())
            stack.push_async_callback(events.aclose)
            while (data := await _next(events, wait_s)) not in {None, DONE}:
                found = delta(data or b"")
                finished = finished or found.finish_reason is not None
                wait_s = LAST_WORDS_S if finished else self._idle_s
                yield found
        if not finished:
            raise refusal(0)

    async def _begin(
        self, stack: contextlib.AsyncExitStack, path: str, body: dict[str, Any]
    ) -> httpx.Response:
        """The response whose body is the stream."""
        for attempt in range(1, TRIES + 1):
            try:
                async with asyncio.timeout(self._first_byte_s):
                    sent = self.http.stream("POST", path, json=body)
                    response = await stack.enter_async_context(sent)
                    status, why = response.status_code, f"status {response.status_code}"
                    if status == _OK:
                        return response
                    if status not in _PASSING:
                        said = await anext(response.aiter_bytes(), b"")
                        raise refusal(status, response.headers.get("retry-after", ""), said)
            except httpx.HTTPError as error:
                status, why = 0, type(error).__name__
            except TimeoutError:
                break
            _log.warning("the upstream refused try %d of %d: %s", attempt, TRIES, why)
            await asyncio.sleep(RETRY_S * 2 ** (attempt - 1))
        raise refusal(0)


async def _next(events: AsyncIterator[bytes], wait_s: float) -> bytes | None:
    """The next event's data; None: the stream ended, broke or stands still."""
    try:
        async with asyncio.timeout(wait_s):
            return await anext(events, None)
    except (httpx.HTTPError, TimeoutError) as error:
        _log.warning("the upstream's stream broke: %s", type(error).__name__)
        return None
