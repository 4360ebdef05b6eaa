"""The session store as a process of its own: late, away, frozen, or back with less than it had."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from gateway.store.base import (
    CommitResult,
    GatewayLease,
    OvertakenError,
    SessionOverError,
    SessionWrite,
    StoredSession,
    StoreUnavailableError,
    UsageEvent,
    UsageMarks,
)
from gateway.store.belief import StoreBelief
from gateway.store.memory import MemoryStore
from mesh.clock import Clock
from mesh.store_link import COMMAND_TIMEOUT_S
from tests.simulation.checkers import Watch
from tests.simulation.loop import Host, HostClock, current_host
from tests.simulation.network import Network

__all__ = ["Data", "RemoteStore", "StoreServer"]

# How often what a cut network holds back is tried again.
RETRANSMIT_S = 0.05


class Data(Enum):
    """What a store has when it is back."""

    SAME = "same"
    OLD = "old"
    EMPTY = "empty"


class StoreServer:
    """A memory store behind the network. `remember` makes the copy that `OLD` brings back."""

    def __init__(self, network: Network, watch: Watch, resume_ttl_s: float) -> None:
        self.host = Host("store")
        self.memory = self._memory(resume_ttl_s)
        self.answers_to_lose = 0
        # Called once, in the turn in which the next command of this caller was carried out.
        self.traps: dict[str, Callable[[], None]] = {}
        self._resume_ttl_s = resume_ttl_s
        self._network = network
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._copy: tuple[Any, ...] | None = None
        self._run_id = ""
        self._marked = False
        self._restarted()

    def _memory(self, resume_ttl_s: float) -> MemoryStore:
        return MemoryStore(HostClock(), resume_ttl_s)

    def _restarted(self) -> None:
        self._run_id = secrets.token_hex(4)

    # ------------------------------------------------------------ its life

    def remember(self) -> None:
        """Write the data to disk."""
        memory = self.memory
        self._copy = (copy.deepcopy(memory._sessions), memory.usage.copy(), memory._mark)

    def stop(self) -> None:
        """Kill it; whoever waits for an answer hears so."""
        self.host.kill()
        for answer in self._pending:
            self._loop.call_at(self._network.arrival(), _break, answer)

    def start(self, data: Data) -> None:
        """Start it again."""
        self.host = Host("store")
        self._restarted()
        if data is Data.SAME:
            return
        self.memory = self._memory(self._resume_ttl_s)
        self._marked = False
        if data is Data.OLD and self._copy is not None:
            sessions, usage, mark = self._copy
            self.memory._sessions = copy.deepcopy(sessions)
            self.memory.usage = usage.copy()
            self.memory._mark = mark
            self._marked = True

    # ------------------------------------------------------------ commands

    async def exchange(self, method: str, args: tuple[Any, ...]) -> Any:
        """Ask it something from the process that is running. Raises `OSError`."""
        if not self.host.alive:
            await asyncio.sleep(self._network.arrival() - self._loop.time())
            raise ConnectionRefusedError
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._pending[answer] = None
        self._deliver(current_host(), self.host, answer, method, args)
        try:
            return await answer
        finally:
            del self._pending[answer]

    def _deliver(
        self,
        caller: Host,
        server: Host,
        answer: asyncio.Future[Any],
        method: str,
        args: tuple[Any, ...],
    ) -> None:
        again = (caller, server, answer, method, args)
        if self._network.blocked(caller, server):
            self._loop.call_later(RETRANSMIT_S, self._deliver, *again)
        else:
            server.at(self._network.arrival(), lambda: self._execute(*again))

    def _execute(
        self,
        caller: Host,
        server: Host,
        answer: asyncio.Future[Any],
        method: str,
        args: tuple[Any, ...],
    ) -> None:
        try:
            result = _run_now(getattr(self, f"_{method}")(*args))
        except (PermissionError, SessionOverError, OvertakenError) as error:
            result = error
        trap = (
            self.traps.pop(caller.name, None)
            if method in ("commit", "add_usage", "claim", "raise_epoch")
            else None
        )
        if trap is not None:
            trap()
        if self.answers_to_lose:
            # It has happened, and the one who asked will never know.
            self.answers_to_lose -= 1
            self._loop.call_at(self._network.arrival(), _break, answer)
        else:
            self._answer(caller, server, answer, result)

    def _answer(self, caller: Host, server: Host, answer: asyncio.Future[Any], result: Any) -> None:
        if self._network.blocked(caller, server):
            self._loop.call_later(RETRANSMIT_S, self._answer, caller, server, answer, result)
        else:
            self._loop.call_at(self._network.arrival(), _settle, answer, result)

    async def _commit(self, writes: Sequence[SessionWrite], gateway: str) -> CommitResult:
        result = await self.memory.commit(writes, gateway)
        for write in writes:
            if write.session not in result.fenced | result.missing:
                self._watch.store_took(write)
        return result

    async def _claim(
        self, session: str, token_hash: str, gateway: str, above: int, bars: bool
    ) -> StoredSession | None:
        stored = await self.memory.claim(session, token_hash, gateway, above=above, bars=bars)
        if stored is not None:
            self._watch.claimed(stored)
        return stored

    async def _raise_epoch(self, session: str, above: int, gateway: str) -> int | None:
        epoch = await self.memory.raise_epoch(session, above, gateway)
        if epoch is not None:
            self._watch.raised(session, epoch)
        return epoch

    async def _sweep(self, limit: int, gateway: str) -> list[StoredSession]:
        swept = await self.memory.sweep(limit, gateway)
        for stored in swept:
            self._watch.claimed(stored, swept=True)
        return swept

    async def _add_usage(self, events: Sequence[UsageEvent]) -> None:
        await self.memory.add_usage(events)

    async def _meet_metering(self, lease: GatewayLease) -> UsageMarks:
        return await self.memory.meet_metering(lease)

    async def _mark(self) -> tuple[str, bool, int]:
        fresh, self._marked = not self._marked, True
        mark = f"{await self.memory.generation_mark()}/{self._run_id}"
        return mark, fresh, self.memory.now_ms()


class RemoteStore:
    """`SessionStore` of one gateway: asks the server, and doubts it as the Redis store does."""

    def __init__(self, server: StoreServer, clock: Clock) -> None:
        self._server = server
        self._belief = StoreBelief(clock)

    async def commit(self, writes: Sequence[SessionWrite], gateway: str = "") -> CommitResult:
        """Write all; see the base."""
        result: CommitResult = await self._ask("commit", writes, gateway)
        return result

    async def claim(
        self,
        session: str,
        token_hash: str,
        gateway: str = "",
        *,
        above: int = 0,
        bars: bool = False,
    ) -> StoredSession | None:
        """Become the owner; see the base."""
        await self._settled()
        stored: StoredSession | None = await self._ask(
            "claim", session, token_hash, gateway, above, False
        )
        if stored is None:
            await self.generation_mark()
            self._belief.check_lacking(session)
            if bars:
                stored = await self._ask("claim", session, token_hash, gateway, above, True)
        return stored

    async def raise_epoch(self, session: str, above: int, gateway: str) -> int | None:
        """Become the owner of a session that is known; see the base."""
        epoch: int | None = await self._ask("raise_epoch", session, above, gateway)
        return epoch

    async def sweep(self, limit: int, gateway: str = "") -> list[StoredSession]:
        """Claim sessions past their deadline; see the base."""
        await self._settled()
        swept: list[StoredSession] = await self._ask("sweep", limit, gateway)
        return swept

    async def add_usage(self, events: Sequence[UsageEvent]) -> None:
        """Keep usage events; see the base."""
        await self._ask("add_usage", events)

    async def meet_metering(self, lease: GatewayLease) -> UsageMarks:
        """Renew a lease and take the marks; see the base."""
        marks: UsageMarks = await self._ask("meet_metering", lease)
        return marks

    async def put_ticket(self, ticket: str, value: bytes, ttl_s: float) -> None:
        """Nobody asks for tickets here."""
        raise NotImplementedError

    async def take_ticket(self, ticket: str) -> bytes | None:
        """Nobody asks for tickets here."""
        raise NotImplementedError

    async def generation_mark(self) -> str:
        """The server's mark; see the base."""
        mark, fresh, now_ms = await self._ask("mark")
        self._belief.marked(mark, fresh=fresh)
        self._belief.told_time(now_ms)
        return str(mark)

    def now_ms(self) -> int:
        """The server's clock as last heard; see the base."""
        return self._belief.now_ms()

    async def close(self) -> None:
        """Nothing is held."""

    async def _settled(self) -> None:
        await self.generation_mark()
        self._belief.check()

    async def _ask(self, method: str, *args: Any) -> Any:
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                answer = await self._server.exchange(method, args)
        except OSError as error:  # a `TimeoutError` is one
            self._belief.failed()
            raise StoreUnavailableError(type(error).__name__) from error
        self._belief.answered()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _run_now(work: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a memory store waits for nothing")


def _break(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(ConnectionResetError())


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    with suppress(asyncio.InvalidStateError):
        answer.set_result(result)
