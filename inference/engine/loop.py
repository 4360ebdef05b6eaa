"""The one thread that owns the engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from inference.engine.engine import Engine
from inference.engine.messages import Command, StepOutput
from mesh.membership import Load

__all__ = ["EngineLoop"]

# Callers' commands that may wait for the next step; over it callers wait before they read on.
INBOX_MAX = 8192
STOP_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class EngineLoop:
    """Runs the engine's steps in a thread of its own; everything else talks to it by messages.

    `deliver` is called in that thread with each step's output, once per step for all generations;
    it must be quick, and the commands that it returns come before the next step. `on_crash` is called, in that thread too, if the engine itself fails: then no
    generation goes on, and the process had better end.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[StepOutput], list[Command]],
        on_crash: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._on_crash = on_crash
        self._inbox: list[Command] = []
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def load(self) -> Load:
        """How busy it was after its last step."""
        return self._engine.load

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current step and give the runner's memory back."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(STOP_TIMEOUT_S)

    def offer(self, commands: Sequence[Command]) -> bool:
        """Hand in a caller's commands, all or none; false: the inbox is full, try again."""
        with self._condition:
            if len(self._inbox) + len(commands) > INBOX_MAX and self._inbox:
                return False
            self._inbox.extend(commands)
            self._condition.notify()
        return True

    def post(self, command: Command) -> None:
        """Hand in a command of the instance itself, bound or not: there are few for each call."""
        with self._condition:
            self._inbox.append(command)
            self._condition.notify()

    def _take_inbox(self) -> list[Command] | None:
        with self._condition:
            if not self._inbox and not self._stopping and self._engine.wait_s > 0:
                self._condition.wait(self._engine.wait_s)
            if self._stopping:
                return None
            commands, self._inbox = self._inbox, []
            return commands

    def _run(self) -> None:
        try:
            answered: list[Command] = []
            while (commands := self._take_inbox()) is not None:
                self._engine.apply(answered + commands)
                output = self._engine.step()
                answered = [] if output is None else self._deliver(output)
            self._engine.close()
        except Exception:  # noqa: BLE001 - a fault of the engine itself: nothing can go on
            _log.exception("the engine has failed")
            self._on_crash()
