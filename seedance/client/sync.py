"""The client for programs without asyncio: the same one, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from seedance.client.aio import AsyncSeedanceClient
from seedance.client.options import ChatOptions, Message
from seedance.client.stream import AsyncStream, Chunk, Completion
from seedance.client.subprotocols import SubprotocolChoice
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Accepted, Timing, Usage
from seedance.protocol.reconnect import Backoff

__all__ = ["SeedanceClient", "Stream"]

# A program that ends without `close()` tells the server so, but does not wait longer than this.
EXIT_TIMEOUT_S = 2.0

T = TypeVar("T")


class _LoopThread:
    """An event loop on a daemon thread, which no program has to wait for."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="seedance client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        with contextlib.closing(self.loop):
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; it ends when the waiting does (Ctrl-C)."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            # Left behind, it would take the next chunk for nobody.
            future.cancel()
            raise

    def shut(self, farewell: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine, stop the loop and wait for the thread, each within its time."""
        last = asyncio.run_coroutine_threadsafe(farewell, self.loop)
        last.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
        if threading.current_thread() is not self._thread:
            self._thread.join(EXIT_TIMEOUT_S)


class Stream:
    """A running generation: `for chunk in stream`.

    Errors of the server are raised by the iteration as `SeedanceError`. A stream that is left
    alone, or whose `with` ends, is cancelled. Belongs to one thread; `cancel` may be called by any.
    """

    def __init__(self, client: SeedanceClient, stream: AsyncStream) -> None:
        # Holds the client: its session lasts while one of its streams is being read.
        self._client = client
        self._stream = stream
        self._ready: deque[Chunk] = deque()

    @property
    def id(self) -> str:
        """The stream's id on the wire."""
        return self._stream.id

    @property
    def accepted(self) -> Accepted | None:
        """Which instance took it, and with which quota; None until then."""
        return self._stream.accepted

    @property
    def usage(self) -> Usage | None:
        """What is billed, once the stream ended."""
        return self._stream.usage

    @property
    def timing(self) -> Timing | None:
        """Where the time went, once the stream ended well."""
        return self._stream.timing

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The signed receipt, once the stream ended well and if one was asked for."""
        return self._stream.receipt

    @property
    def finish_reason(self) -> str | None:
        """stop, length, cancelled, or error; None while it runs."""
        return self._stream.finish_reason

    def cancel(self) -> None:
        """Ask for no more. What is on the way still arrives; then the stream ends."""
        self._stream.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if not self._ready:
            self._ready.extend(self._client.wait_for(self._stream.next_chunks()))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.cancel()


class SeedanceClient:
    """A client of the mesh for ordinary programs; see `AsyncSeedanceClient` for what it does.

    It may be used by several threads. `close` is polite, not needed: a program that just ends is
    not held up. `on_state` and `on_pressure` are called on the client's own thread.

        client = SeedanceClient("ws://localhost:8080")
        for chunk in client.chat(messages=[{"role": "user", "content": "Hello"}]):
            print(chunk.delta, end="", flush=True)
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        subprotocol: SubprotocolChoice = "json",
        ca_cert: Path | str | None = None,
        backoff: Backoff | None = None,
        on_state: Callable[[str], None] | None = None,
        on_pressure: Callable[[str, str], None] | None = None,
        receipt_keys: Sequence[str] | None = None,
    ) -> None:
        self._client = AsyncSeedanceClient(
            url,
            api_key=api_key,
            backoff=backoff,
            on_state=on_state,
            on_pressure=on_pressure,
            subprotocol=subprotocol,
            receipt_keys=receipt_keys,
            ca_cert=ca_cert,
        )
        self._thread = _LoopThread()
        self._finalizer = weakref.finalize(self, _farewell, self._thread, self._client)

    @property
    def state(self) -> str:
        """idle, connecting, resuming, open or closed."""
        return self._client.state

    @property
    def pressure(self) -> str:
        """How much less the mesh asks for now: none, throttle or pause."""
        return self._client.pressure

    @overload
    def chat(
        self,
        messages: Sequence[Message] | None = None,
        *,
        prompt: str | None = None,
        stream: Literal[True] = True,
        **options: Unpack[ChatOptions],
    ) -> Stream: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message] | None = None,
        *,
        prompt: str | None = None,
        stream: Literal[False],
        **options: Unpack[ChatOptions],
    ) -> Completion: ...

    def chat(
        self,
        messages: Sequence[Message] | None = None,
        *,
        prompt: str | None = None,
        stream: bool = True,
        **options: Unpack[ChatOptions],
    ) -> Stream | Completion:
        """Begin a generation: its stream, or with `stream=False` wait for its completion.

        Raises `SeedanceError`: `bad_request` at once for a value that is not allowed.
        """
        if stream:
            return Stream(self, self.wait_for(self._begin(messages, prompt, options)))
        return self.wait_for(self._complete(messages, prompt, options))

    async def _begin(
        self, messages: Sequence[Message] | None, prompt: str | None, options: ChatOptions
    ) -> AsyncStream:
        return self._client.chat(messages, prompt=prompt, **options)

    async def _complete(
        self, messages: Sequence[Message] | None, prompt: str | None, options: ChatOptions
    ) -> Completion:
        return await self._client.chat(messages, prompt=prompt, stream=False, **options)

    def verify(self, receipt: Completion | Mapping[str, Any], *, text: str | None = None) -> None:
        """Return when the mesh signed this receipt; see `AsyncSeedanceClient.verify`."""
        self.wait_for(self._client.verify(receipt, text=text))

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's thread and wait for its result."""
        if not self._finalizer.alive:
            work.close()
            raise SeedanceError(ErrorCode.UNAVAILABLE, "the client is closed")
        return self._thread.call(work)

    def close(self) -> None:
        """End the session and everything in it."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _farewell(thread: _LoopThread, client: AsyncSeedanceClient) -> None:
    thread.shut(client.close())
