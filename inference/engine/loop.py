"""The threads that own the engine: one that steps, and one that serves while it computes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from inference.engine.door import DOOR_MAX, Door
from inference.engine.engine import Engine
from inference.engine.messages import Command, StepOutput
from mesh.clock import Clock
from mesh.membership import Load

__all__ = ["EngineLoop"]

STOP_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class EngineLoop:
    """Runs the engine in threads of its own; everything else talks to it by messages.

        engine   fetch N │ compute N │ absorb N · fetch N+1 │ compute N+1 │ …
        desk             │ emit N-1  │                      │ emit N      │
                         │ commands  │                      │ commands    │

    The runner computes without the interpreter's lock; meanwhile the desk sends what the last step
    brought and serves the door, so that an opening or a cancellation, and the pressure that comes of
    it, is answered within a step and staged for the next plan. Whoever touches the engine holds
    `_turn`, and nobody holds it while the runner computes. With `overlap` false there is no desk: a
    runner that is itself Python gains nothing from it.

    `deliver` is called with each output, by one thread at a time; it must be quick, and the commands
    that it returns are applied at once. `on_crash` is called if the engine itself fails: then no
    generation goes on, and the process had better end.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[StepOutput], list[Command]],
        on_crash: Callable[[], None],
        clock: Clock,
        *,
        overlap: bool = True,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._deliver = deliver
        self._on_crash = on_crash
        self._overlap = overlap
        self._turn = threading.Lock()
        # Guards the door and the three flags.
        self._changed = threading.Condition()
        self._door = Door()
        self._stopping = False
        self._computing = False
        self._desk_due = False
        runs = {"engine": self._run_engine} | ({"desk": self._run_desk} if overlap else {})
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), name=name, daemon=True)
            for name, run in runs.items()
        ]

    @property
    def load(self) -> Load:
        """How busy it was lately."""
        return self._engine.load

    def start(self) -> None:
        """Begin to step."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the current step and give the runner's memory back."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)

    def offer(self, commands: Sequence[Command]) -> bool:
        """Hand in a caller's commands, all or none; false: the door is full, try again."""
        with self._changed:
            if len(self._door) + len(commands) > DOOR_MAX and len(self._door):
                return False
            self._put(commands)
        return True

    def post(self, command: Command) -> None:
        """Hand in a command of the instance itself, bound or not: there are few for each call."""
        with self._changed:
            self._put([command])

    def step(self) -> None:
        """One step from the door to what is sent; the engine's thread does nothing else.

        A simulation calls it instead of `start`, with `overlap` false.
        """
        with self._turn:
            self._serve_door()
            plan = self._engine.fetch()
            if not plan.rows:
                self._send()
                return
        self._set_computing(on=True)
        chosen = self._engine.compute(plan)
        self._set_computing(on=False)
        with self._turn:
            if self._overlap:
                # The desk may have had no time for the last step: that comes first.
                self._send()
            self._engine.absorb(chosen)
            if not self._overlap:
                self._send()

    def _put(self, commands: Sequence[Command]) -> None:
        self._door.put(commands)
        self._desk_due = self._computing
        self._changed.notify_all()

    # ------------------------------------------------------------ the engine's thread

    def _run_engine(self) -> None:
        while self._wait_for_work():
            self.step()
        with self._turn:
            self._engine.close()

    def _wait_for_work(self) -> bool:
        with self._changed:
            if not len(self._door) and not self._stopping and self._engine.wait_s > 0:
                self._changed.wait(self._engine.wait_s)
            return not self._stopping

    def _set_computing(self, *, on: bool) -> None:
        with self._changed:
            self._computing = self._desk_due = on and self._overlap
            if on:
                self._changed.notify_all()

    # ------------------------------------------------------------ the desk's thread

    def _run_desk(self) -> None:
        while self._wait_for_computing():
            with self._turn:
                # Else the engine is about to do the same; it must not find a door that was emptied
                # behind its back, and sleep.
                if self._computing:
                    self._serve_door()
                    self._send()

    def _wait_for_computing(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._desk_due)
            self._desk_due = False
            return not self._stopping

    # ------------------------------------------------------------ either one, in its turn

    def _serve_door(self) -> None:
        with self._changed:
            commands = self._door.take(self._clock.monotonic(), self._engine.desk.room)
            self._desk_due = self._computing and len(self._door) > 0
        self._engine.apply(commands)

    def _send(self) -> None:
        output = self._engine.emit()
        if output is not None:
            self._engine.apply(self._deliver(output))

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception:  # noqa: BLE001 - a fault of the engine itself: nothing can go on
            _log.exception("the engine has failed")
            self._on_crash()
