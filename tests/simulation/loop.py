"""An event loop on virtual time, and the processes that share it.

Nothing waits: when nothing can run, the clock jumps to the next timer. Every callback belongs to the
process (`Host`) in whose context it was scheduled, so that a process can be frozen or killed: then
they are kept aside, until it goes on or the run is over.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, TypeVar

__all__ = ["Host", "HostClock", "HostState", "StandstillError", "VirtualLoop", "current_host"]

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
# So many turns without a tick of the clock are no burst of work but a circle.
TURNS_AT_ONCE_MAX = 100_000

_HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


class StandstillError(Exception):
    """Nothing can ever happen again, or time stands still."""


class HostState(Enum):
    """Whether a process runs, is stopped (SIGSTOP), or is gone."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Host:
    """One process: its state, and the callbacks that wait while it does not run.

    `heard_at`: when a client's machine last had word of a gateway; `slept_s`: how long it stood still.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = HostState.RUNNING
        self.context = contextvars.copy_context()
        self.context.run(_HOST.set, self)
        self.draining = False
        self.heard_at: float | None = None
        self.slept_s = 0.0
        self._froze_at = 0.0
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.hosts.append(self)
        self._loop = loop
        self._parked: list[asyncio.Handle] = []

    @property
    def alive(self) -> bool:
        """Whether it is not dead."""
        return self.state is not HostState.DEAD

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of this process."""
        return self._loop.create_task(work, context=self.context.copy())

    def soon(self, what: Callable[[], None]) -> None:
        """Call something in this process."""
        self._loop.call_soon(what, context=self.context)

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Call something in this process at a time."""
        self._loop.call_at(when, what, context=self.context)

    def kill(self) -> None:
        """It does nothing any more."""
        self.state = HostState.DEAD

    def freeze(self) -> None:
        """It stands still; time goes on."""
        if self.state is HostState.RUNNING:
            self.state = HostState.FROZEN
            self._froze_at = self._loop.time()

    def thaw(self) -> None:
        """It goes on: all that waited happens, in order."""
        if self.state is HostState.FROZEN:
            self.slept_s += self._loop.time() - self._froze_at
            self.release()

    def release(self) -> None:
        """Let all that waited happen, whatever it was."""
        self.state = HostState.RUNNING
        parked, self._parked = self._parked, []
        self._loop._ready.extend(parked)

    def park(self, handle: asyncio.Handle) -> None:
        """Keep a callback until it goes on, or until the run is over."""
        self._parked.append(handle)


def current_host() -> Host:
    """The process that is running."""
    host = _HOST.get()
    assert host is not None
    return host


class HostClock:
    """`mesh.clock.Clock` of one process; its wall clock can be set."""

    def __init__(self) -> None:
        self.wall_step_ms = 0
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000) + self.wall_step_ms


class _Task(asyncio.Task[T]):
    """A task whose place in a set does not depend on where it lies in memory."""

    def __init__(self, coro: Coroutine[Any, Any, T], serial: int, **options: Any) -> None:
        self._serial = serial  # before the rest, which puts it into a set
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop without selector: timers come in their order and take no time."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self._turns = 0
        # The loop's own record is weak, and a killed process's tasks are waited for by nobody.
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.hosts: list[Host] = []
        self._serial = 0
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def _make_task(
        self, _loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        self._serial += 1
        task = _Task(coro, self._serial, loop=self, **options)
        self.tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    async def unwind(self) -> None:
        """End all tasks, those of killed processes too: nobody hears what they do now."""
        for host in self.hosts:
            host.release()
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run_in_executor(  # type: ignore[override]
        self, _executor: object, func: Callable[..., T], *args: Any
    ) -> T:
        """Work of a thread pool takes a turn of the loop."""
        await asyncio.sleep(0)
        return func(*args)

    def _write_to_self(self) -> None:
        """There is no other thread to wake it for."""

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        self._turns += 1
        if not ready and not self._stopping:
            if not timers:
                raise StandstillError("nothing can happen any more")
            self._now, self._turns = max(self._now, timers[0].when()), 0
        if self._turns > TURNS_AT_ONCE_MAX:
            raise StandstillError("time stands still")
        while timers and timers[0].when() <= self._now:
            ready.append(heapq.heappop(timers))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                self._run_handle(handle)

    def _run_handle(self, handle: asyncio.Handle) -> None:
        host = handle._context.get(_HOST)
        if host is None or host.state is HostState.RUNNING:
            handle._run()
        else:
            host.park(handle)
