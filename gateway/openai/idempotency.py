"""`Idempotency-Key`: a repeated request joins or replays the first one, and is billed once (§6).

The first request with a key runs the generation into a `Recording`; it and every repeat are readers of
that, each from the beginning. So a client may lose its connection, ask again, and get the whole
answer; the run ends early only when nobody has come back for as long as a session would wait.

Between gateways the store's notes decide, under the hash of tenant and key:

    record   which body the key stands for, and the name that its run is billed under
    owner    which gateway runs it; lapses when that gateway dies
    answer   what was answered, once it is whole

An answer that failed or was refused is not remembered: the next request is a new run. With the store
away a key is known to its gateway only.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.deps import GatewayDeps
from gateway.http_errors import error_response
from gateway.openai.recording import IDEMPOTENCY_HEADER, REPLAYED_HEADER, Recording
from gateway.openai.sse import GenerationResponse, while_connected
from gateway.store.base import StoreUnavailableError
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import bad_field

__all__ = ["KEY_LIFE_S", "Repeatable", "Repeats", "read_key"]

_KEY = re.compile(r"[!-~]{1,255}", re.ASCII)

# How long a key stands for its first request.
KEY_LIFE_S = 3600.0
# A gateway that dies leaves its runs to others after this long.
LEASE_S = 12.0
_POLL_S = 0.25
RUNS_MAX = 256
# Answers that the store could not be given.
UNSAVED_MAX = 64
_UNPROCESSABLE = 422


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A request that may come again: hashes of tenant and key, and of what it asks."""

    name: str
    body: str


def read_key(
    headers: Mapping[str, str], tenant: str, operation: str, body: bytes
) -> Repeatable | None:
    """What the request's key stands for; None: it has none. Raises `bad_request`."""
    key = headers.get(IDEMPOTENCY_HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise bad_field(IDEMPOTENCY_HEADER, "1 to 255 visible ASCII characters")
    name = hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()
    return Repeatable(name, hashlib.sha256(operation.encode() + b"\0" + body).hexdigest())


class _Record(msgspec.Struct, frozen=True):
    body: str
    run: str


Make = Callable[[str], GenerationResponse]


class Repeats:
    """This gateway's runs that may be asked for again, and through the store those of others."""

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps
        self._runs: dict[str, Recording] = {}
        self._owner = secrets.token_hex(8).encode()

    def response(self, asked: Repeatable, make: Make, headers: Mapping[str, str]) -> Response:
        """What answers: the run itself, of the name that `make` is given, or a reader of it.

        Raises `SeedanceError` `overloaded`: too many such runs are on their way.
        """
        running = self._runs.get(asked.name)
        if running is not None:
            if running.body == asked.body:
                return _Reader(running, {**headers, REPLAYED_HEADER: "true"})
            return self._misused(headers)
        if sum(not run.ended for run in self._runs.values()) >= RUNS_MAX:
            message = f"{RUNS_MAX} requests with {IDEMPOTENCY_HEADER} run already"
            raise SeedanceError(ErrorCode.OVERLOADED, message, retry_after_ms=1000)
        recording = Recording(asked.body, self._deps.settings.resume_ttl_s)
        self._runs[asked.name] = recording

        async def record(scope: Scope) -> None:
            await self._record(asked, recording, make, scope, headers)

        return _First(recording, record, headers)

    async def _record(
        self,
        asked: Repeatable,
        recording: Recording,
        make: Make,
        scope: Scope,
        headers: Mapping[str, str],
    ) -> None:
        """Bring the answer into the recording, by running it or out of the store."""
        known = True
        try:
            settled = await self._settle(asked, headers)
            if isinstance(settled, bytes):
                await recording.replay(settled)
            elif isinstance(settled, Response):
                await settled(scope, recording.receive, recording.send)
            else:
                known = await self._run(asked.name, recording, partial(make, settled), scope)
            if not recording.begun:  # nobody was there for so long that it was given up
                refusal = _unavailable("it was given up", headers)
                await refusal(scope, recording.receive, recording.send)
        except SeedanceError as error:
            self._deps.metrics.rejected.labels(error.code.value).inc()
            await error_response(error, headers)(scope, recording.receive, recording.send)
        finally:
            await recording.end()
            self._let_go(asked.name, known=known)

    def _let_go(self, name: str, *, known: bool) -> None:
        if known:
            self._runs.pop(name, None)  # trimmed already, when the store was away for long
            return
        unsaved = [name for name, run in self._runs.items() if run.ended]
        for oldest in unsaved[:-UNSAVED_MAX]:
            del self._runs[oldest]

    # ------------------------------------------------------------ among gateways

    async def _settle(
        self, asked: Repeatable, headers: Mapping[str, str]
    ) -> str | bytes | Response:
        """The name to run it under, or the answer as the store has it, or a refusal."""
        store, name, now = self._deps.store, asked.name, self._deps.clock.monotonic
        mine = _Record(asked.body, secrets.token_hex(12))
        give_up_at = now() + self._deps.settings.resume_ttl_s
        try:
            while now() < give_up_at:
                noted = await store.note(name, msgspec.json.encode(mine), KEY_LIFE_S)
                found = msgspec.json.decode(noted, type=_Record)
                if found.body != asked.body:
                    return self._misused(headers)
                # The owner first: whoever ends a run leaves its answer before it lets go.
                owner = await store.note(f"{name}:owner", self._owner, LEASE_S)
                answer = await store.find_note(f"{name}:answer")
                if answer is None and owner == self._owner:
                    return found.run
                if answer is not None:
                    if owner == self._owner:
                        await store.drop_note(f"{name}:owner")
                    return answer
                await asyncio.sleep(_POLL_S)
        except StoreUnavailableError:
            return mine.run
        return _unavailable("it still runs at another gateway", headers)

    async def _run(
        self, name: str, recording: Recording, make: Callable[[], GenerationResponse], scope: Scope
    ) -> bool:
        """Run it; whether the store knows what came of it. Raises what `make` raises."""
        complete = False
        try:
            response = make()
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(self._renew(name))
                await response(scope, recording.receive, recording.send)
                renewing.cancel()
            complete = response.complete
        finally:
            known = await self._tell(name, recording, complete=complete)
        return known

    async def _tell(self, name: str, recording: Recording, *, complete: bool) -> bool:
        store = self._deps.store
        try:
            if complete:
                await store.put_note(f"{name}:answer", recording.encoded(), KEY_LIFE_S)
            else:
                await store.drop_note(name)
            await store.drop_note(f"{name}:owner")
        except StoreUnavailableError:
            return not complete  # what failed is to be forgotten, here and there
        return True

    async def _renew(self, name: str) -> None:
        # Should this gateway have stood still for longer than its lease, another one may run the same
        # by now. Both answer in full, under one name: billed once.
        while True:
            await asyncio.sleep(LEASE_S / 3)
            with suppress(StoreUnavailableError):
                await self._deps.store.put_note(f"{name}:owner", self._owner, LEASE_S)

    def _misused(self, headers: Mapping[str, str]) -> Response:
        """The key stands for something else."""
        self._deps.metrics.rejected.labels(ErrorCode.BAD_REQUEST.value).inc()
        refused = bad_field(IDEMPOTENCY_HEADER, "new: it was given with another request")
        return error_response(refused, headers, status=_UNPROCESSABLE)


def _unavailable(why: str, headers: Mapping[str, str]) -> Response:
    message = f"the first request with this {IDEMPOTENCY_HEADER} was not answered: {why}"
    error = SeedanceError(ErrorCode.UNAVAILABLE, message, retry_after_ms=1000)
    return error_response(error, headers)


class _Reader(Response):
    """A repeat, while the first one's run is on this gateway."""

    def __init__(self, recording: Recording, headers: Mapping[str, str]) -> None:
        self.background = None
        self._recording = recording
        self._common = headers

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Read from the beginning."""
        await while_connected(receive, self._play(send))

    async def _play(self, send: Send) -> None:
        # Who takes nothing for too long is let go, as one who left; the run has other readers to come.
        with suppress(TimeoutError):
            await self._recording.play(send, self._common)


class _First(_Reader):
    """The first request of a key: it runs the generation, also after its client has left."""

    def __init__(
        self,
        recording: Recording,
        record: Callable[[Scope], Coroutine[Any, Any, None]],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(recording, headers)
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run, and read."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._record(scope))
            await super().__call__(scope, receive, send)
