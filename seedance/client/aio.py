"""The asyncio client: a session over as many connections as it takes, each text exactly once."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from seedance.client.link import Link
from seedance.client.options import ChatOptions, Message, endpoint, generate_frame
from seedance.client.receipts import ReceiptDesk
from seedance.client.stream import AsyncStream, Completion, Inbox
from seedance.client.subprotocols import SubprotocolChoice, offers
from seedance.protocol.client import ClientMachine
from seedance.protocol.client_events import (
    Abort,
    Connect,
    Deliver,
    Dial,
    Effect,
    Event,
    Hangup,
    Reading,
    Send,
    Shut,
    Submit,
    Tick,
)
from seedance.protocol.frames import Done, ErrorFrame
from seedance.protocol.reconnect import Backoff

__all__ = ["AsyncSeedanceClient"]


class AsyncSeedanceClient:
    """A client of the mesh for asyncio programs.

    It connects at the first `chat`, reconnects to any gateway of the mesh when a connection breaks,
    and resumes every stream where it was: text arrives once and in order. What is asked while no gateway can
    be reached waits, up to 1,024 generations, and is asked in order afterwards. `on_state` hears of
    `idle`, `connecting`, `resuming`, `open`, `closed`; `on_pressure` of a level (`none`, `throttle`,
    `pause`) and its reason when it changes. All calls belong to one event loop.

        async with AsyncSeedanceClient("ws://localhost:8080") as client:
            async for chunk in client.chat(messages=[{"role": "user", "content": "Hello"}]):
                print(chunk.delta, end="")

    `subprotocol`: `json`, `proto` and `proto.zstd` (contract §5; they need `seedance[binary]`), or
    `auto`: `proto` where that is installed. `ca_cert` is a PEM file of authorities to trust for
    `wss://` instead of the system's; reading it raises `OSError`.
    `receipt_keys`: the mesh's public keys that `verify` goes by.
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
        self._offers = offers(subprotocol)
        self._machine = ClientMachine(endpoint(url), jitter=random.random, backoff=backoff)
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._tls = None if ca_cert is None else ssl.create_default_context(cafile=ca_cert)
        self._receipts = ReceiptDesk(lambda: self._machine.reconnect.urls, receipt_keys, self._tls)
        self._on_state = on_state
        self._on_pressure = on_pressure
        self._inboxes: dict[str, Inbox] = {}
        self._link: Link | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """idle, connecting, resuming, open or closed."""
        return self._machine.state.value

    @property
    def pressure(self) -> str:
        """How much less the mesh asks for now: none, throttle or pause."""
        return self._machine.pressure.level

    @overload
    def chat(
        self,
        messages: Sequence[Message] | None = None,
        *,
        prompt: str | None = None,
        stream: Literal[True] = True,
        **options: Unpack[ChatOptions],
    ) -> AsyncStream: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message] | None = None,
        *,
        prompt: str | None = None,
        stream: Literal[False],
        **options: Unpack[ChatOptions],
    ) -> Awaitable[Completion]: ...

    def chat(
        self,
        messages: Sequence[Message] | None = None,
        *,
        prompt: str | None = None,
        stream: bool = True,
        **options: Unpack[ChatOptions],
    ) -> AsyncStream | Awaitable[Completion]:
        """Begin a generation; `async for` its chunks, or with `stream=False` await its completion.

        Raises `SeedanceError` at once: `bad_request` for a value that is not allowed, `overloaded` when
        1,024 generations run or wait already.
        """
        frame = generate_frame(messages, prompt, options, stream=stream)
        stream_id = frame.id or ""
        inbox = Inbox(lambda behind: self._step(Reading(stream_id, behind)))
        self._inboxes[stream_id] = inbox
        try:
            self._step(Submit(frame))
        except BaseException:
            del self._inboxes[stream_id]
            raise
        running = AsyncStream(stream_id, inbox, self._aborter(stream_id))
        return running if stream else running.completion()

    async def verify(
        self, receipt: Completion | Mapping[str, Any], *, text: str | None = None
    ) -> None:
        """Return when the mesh signed this receipt, for `text` where it is given.

        Of a `Completion`, its own receipt is checked against its id, text and usage. Nobody is asked where the
        client was made with `receipt_keys`; else a gateway is, once, for its keys. Needs
        `seedance[receipts]`. Raises `ReceiptError` when it does not hold, `OSError` when no key can be had.
        """
        await self._receipts.verify(receipt, text)

    async def connect(self) -> None:
        """Connect now instead of at the first `chat`; returns at once, see `on_state`."""
        self._step(Connect())

    async def close(self) -> None:
        """End the session and everything in it."""
        self._step(Shut())
        if self._links:
            await asyncio.wait(self._links)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ the machine's host

    def _aborter(self, stream_id: str) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def abort() -> None:
            # Also called by the garbage collector: from any thread, at any time.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._abort, stream_id)

        return abort

    def _abort(self, stream_id: str) -> None:
        if stream_id in self._inboxes:
            self._step(Abort(stream_id))

    def _step(self, event: Event) -> None:
        before, pressed = self._machine.state, self._machine.pressure
        for effect in self._machine.step(event, asyncio.get_running_loop().time()):
            self._do(effect)
        self._set_timer()
        if self._machine.state is not before and self._on_state is not None:
            self._on_state(self._machine.state.value)
        if self._machine.pressure != pressed and self._on_pressure is not None:
            self._on_pressure(self._machine.pressure.level, self._machine.pressure.reason)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Deliver(frame):
                inbox = self._inboxes.get(frame.id or "")
                if inbox is not None:
                    inbox.put(frame)
                if isinstance(frame, Done | ErrorFrame):
                    self._inboxes.pop(frame.id or "", None)
            case Send(frame):
                if self._link is not None:
                    self._link.send(frame)
            case Dial(url):
                self._link = Link(url, self._headers, self._step, self._offers, self._tls)
                self._links.add(self._link.task)
                self._link.task.add_done_callback(self._links.discard)
            case Hangup(close_code):
                if self._link is not None:
                    self._link.hang_up(close_code)
                self._link = None

    def _set_timer(self) -> None:
        # A timer that is early only asks again, so most frames leave it as it is.
        deadline = self._machine.deadline()
        if self._timer is not None:
            if deadline is not None and self._timer.when() <= deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(Tick())
