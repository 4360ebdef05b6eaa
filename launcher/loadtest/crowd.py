"""The connections of a run and what they carry: who asks next, and what is lost is dialled again."""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter

from launcher.loadtest.arrivals import Zipf
from launcher.loadtest.caller import LOST, Caller, DialError, Who
from launcher.loadtest.grpc_call import CallCaller
from launcher.loadtest.load import Face, Load, Target
from launcher.loadtest.prompts import Prompts
from launcher.loadtest.sse import EventCaller
from launcher.loadtest.tally import UNFINISHED, Answer, Judge, Tally
from launcher.loadtest.websocket import SocketCaller

__all__ = ["Crowd"]

# Requests that are due while every connection is busy; one more counts as an error.
WAITING_MAX = 100_000
NOT_SENT = "not_sent"
# A connection that cannot be had so often in a row is given up.
DIALS_MAX = 20
DIAL_PAUSE_S, DIAL_PAUSE_MAX_S = 0.05, 2.0

_CALLERS: Mapping[Face, Callable[[Target, Load, Who], Caller]] = {
    Face.WEBSOCKET: SocketCaller,
    Face.SSE: EventCaller,
    Face.GRPC: CallCaller,
}


class Crowd:
    """All connections to one target; each is dialled `dials` times in a row before it is given up."""

    def __init__(
        self, target: Target, load: Load, prompts: Prompts, dials: int = DIALS_MAX
    ) -> None:
        self.tally = Tally()
        self.started = perf_counter()
        self.given_up = 0
        self._load = load
        self._dials = dials
        self._prompts = prompts
        self._judge = Judge(prompts)
        self._rng = random.Random(load.seed)  # noqa: S311 - a run can be repeated
        self.callers = [
            _CALLERS[target.face](target, load, who) for who in _everybody(target, load, self._rng)
        ]
        self._ready: deque[Caller] = deque()
        self._waiting: deque[float] = deque()
        self._live: set[Answer] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._closed_loop = False

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return sum(caller.is_open for caller in self.callers)

    @property
    def live(self) -> int:
        """Requests without an end."""
        return len(self._live) + len(self._waiting)

    # ------------------------------------------------------------ connections

    async def connect(self) -> None:
        """Dial all, so many a second; returns when each is open or given up."""
        opened = [asyncio.Event() for _ in self.callers]
        for number, caller in enumerate(self.callers):
            due = self.started + number / self._load.connect_rate
            self._keepers.append(asyncio.create_task(self._keep(caller, due, opened[number])))
        await asyncio.gather(*(event.wait() for event in opened))

    async def _keep(self, caller: Caller, due: float, opened: asyncio.Event) -> None:
        await asyncio.sleep(max(0.0, due - perf_counter()))
        first = True
        while await self._dial(caller):
            now = perf_counter()
            (self.tally.handshake if first else self.tally.back).add(now - due)
            first = False
            self._reopened(caller)
            opened.set()
            await caller.lost.wait()
            due = perf_counter()
        self.given_up += 1
        caller.give_up(LOST)
        opened.set()

    async def _dial(self, caller: Caller) -> bool:
        for tried in range(self._dials):
            caller.lost.clear()
            try:
                await caller.dial()
            except OSError as error:  # of which TimeoutError is one
                self.tally.errors["dial_" + _code_of(error)] += 1
                if isinstance(error, DialError) and error.final:
                    return False
                pause = min(DIAL_PAUSE_S * 2**tried, DIAL_PAUSE_MAX_S)
                await asyncio.sleep(pause * (0.5 + self._rng.random() / 2))
            else:
                return True
        return False

    def _reopened(self, caller: Caller) -> None:
        free, caller.parked = caller.parked, 0
        for _ in range(free):
            self._free(caller)

    def storm(self) -> None:
        """Cut a share of the connections in one moment."""
        for caller in self.callers[: round(len(self.callers) * self._load.storm_share)]:
            caller.cut()

    # ------------------------------------------------------------ requests

    def begin(self, *, closed_loop: bool) -> None:
        """The clock starts; every connection may carry its requests."""
        self.started = perf_counter()
        self._closed_loop = closed_loop
        for _ in range(self._load.streams):
            for caller in self.callers:
                self._free(caller)

    def finish(self) -> None:
        """No new requests of a closed loop."""
        self._closed_loop = False

    def ask(self, due: float) -> None:
        """Send a request that was due at `due`, or let it wait for a connection that is free."""
        caller = self._take()
        if caller is not None:
            self._send(caller, due)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting.append(due)
        else:
            self.tally.errors[NOT_SENT] += 1

    def _take(self) -> Caller | None:
        while self._ready:
            caller = self._ready.popleft()
            if caller.is_open:
                return caller
            caller.parked += 1
        return None

    def _free(self, caller: Caller) -> None:
        if not caller.is_open:
            caller.parked += 1
        elif self._waiting:
            self._send(caller, self._waiting.popleft())
        elif self._closed_loop:
            self._send(caller, perf_counter())
        else:
            self._ready.append(caller)

    def _send(self, caller: Caller, due: float) -> None:
        def ended() -> None:
            self._live.discard(answer)
            self._free(caller)

        answer = Answer(next(self._prompts), due, self.tally, self._judge, ended, self.started)
        answer.slow = caller.who.slow
        self._live.add(answer)
        caller.ask(answer)

    async def close(self) -> None:
        """Count what has no end, and part from the server."""
        self._closed_loop = False
        self.tally.errors[UNFINISHED] += len(self._waiting)
        self._waiting.clear()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for answer in list(self._live):
            answer.end(UNFINISHED)
        await asyncio.gather(*(caller.close() for caller in self.callers))
        self.tally.errors = +self.tally.errors


def _everybody(target: Target, load: Load, rng: random.Random) -> list[Who]:
    """Whose each connection is: keys and users by Zipf's law, slow readers evenly among them."""
    users = Zipf(load.users, load.zipf, rng)
    keys = Zipf(len(target.keys) or 1, load.zipf, rng)
    slow = round(load.connections * load.slow_share)
    made = []
    for number in range(load.connections):
        key = target.keys[keys.draw()] if target.keys else ""
        lags = (number + 1) * slow // load.connections > number * slow // load.connections
        made.append(Who(f"seedance-bench-{users.draw()}", key, lags))
    return made


def _code_of(error: OSError) -> str:
    if isinstance(error, DialError):
        return error.code
    if isinstance(error, ssl.SSLError):
        return f"tls_{(error.reason or 'failed').lower()}"
    if isinstance(error, TimeoutError):
        return "timed_out"
    return errno.errorcode.get(error.errno or 0, type(error).__name__).lower()
