"""The engine's thread: commands in, one output per step out, idle in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from inference.engine.engine import Engine
from inference.engine.limits import EngineLimits
from inference.engine.door import DOOR_MAX
from inference.engine.loop import EngineLoop
from inference.engine.messages import (
    Cancel,
    Command,
    Credit,
    Done,
    Hold,
    Open,
    StepOutput,
    StreamKey,
)
from inference.engine.timing import Marks
from inference.script import ScriptPreparer, ScriptRunner, script_info
from mesh.clock import SystemClock
from tests.support.engine_driver import script_request
from tests.support.scripts import script
from tests.support.waiting import wait_until_sync

KEY = StreamKey(1, 1)


class _Sink:
    """Collects outputs; answers with the commands it was told to."""

    def __init__(self) -> None:
        self.outputs: list[StepOutput] = []
        self.answers: list[Command] = []
        self.crashed = threading.Event()

    def deliver(self, output: StepOutput) -> list[Command]:
        self.outputs.append(output)
        answers, self.answers = self.answers, []
        return answers

    @property
    def text(self) -> bytes:
        parts = [part for output in list(self.outputs) for part in output.calls.values()]
        return b"".join(tokens.piece.text for part in parts for tokens in part.tokens)

    @property
    def ends(self) -> list[object]:
        return [e for output in list(self.outputs) for p in output.calls.values() for e in p.ends]


@pytest.fixture
def sink() -> _Sink:
    return _Sink()


@pytest.fixture(params=[False, True], ids=["in turn", "overlapping"])
def loop(request: pytest.FixtureRequest, sink: _Sink) -> Iterator[EngineLoop]:
    engine = Engine(ScriptRunner(script_info()), EngineLimits(), SystemClock())
    loop = EngineLoop(engine, SystemClock(), sink.deliver, sink.crashed.set, overlap=request.param)
    loop.start()
    yield loop
    loop.stop()


def _open(tokens: list[bytes], **timing: float) -> Open:
    request = script_request(script(tokens, **timing))  # type: ignore[arg-type]
    return Open(KEY, "g", request, ScriptPreparer().prepare(request), Marks(0, 0, 0))


def test_it_wakes_for_a_command_and_plays(loop: EngineLoop, sink: _Sink) -> None:
    """An idle engine answers at once, and is idle again afterwards."""
    assert loop.offer([_open([b"a", b"b"], repeat=3)])
    wait_until_sync(lambda: sink.ends)
    assert sink.text == b"ababab"
    assert loop.load.free_blocks == loop.load.total_blocks


def test_it_sleeps_until_a_token_is_due(loop: EngineLoop, sink: _Sink) -> None:
    """A paced script is played by the engine's own clock, without being asked."""
    loop.offer([_open([b"a"], repeat=5, dt_ms=5, first_ms=20)])
    wait_until_sync(lambda: sink.ends)
    assert sink.text == b"aaaaa"


def test_cancel_reaches_a_running_sequence(loop: EngineLoop, sink: _Sink) -> None:
    """Between two steps."""
    loop.offer([_open([b"a"], repeat=1_000_000)])
    wait_until_sync(lambda: len(sink.text) > 100)
    loop.post(Cancel(KEY))
    (end,) = wait_until_sync(lambda: sink.ends)
    assert isinstance(end, Done)
    assert end.reason.value == "cancelled"


def test_what_delivery_answers_comes_before_the_next_step(loop: EngineLoop, sink: _Sink) -> None:
    """A call that is full is held at once: not one token more."""
    sink.answers = [Hold(1, on=True)]
    loop.offer([_open([b"a"], repeat=1000)])
    wait_until_sync(lambda: sink.outputs)
    loop.post(Hold(2, on=True))
    wait_until_sync(lambda: loop.load.running == 0)
    assert len(sink.text) <= 1
    loop.post(Hold(1, on=False))
    wait_until_sync(lambda: sink.ends)
    assert sink.text == b"a" * 1000


def test_a_full_inbox_says_so() -> None:
    """At the bound a caller has to wait; the instance's own commands never do."""
    engine = Engine(ScriptRunner(script_info()), EngineLimits(), SystemClock())
    loop = EngineLoop(engine, SystemClock(), lambda _: [], lambda: None)
    full: list[Command] = [Credit(KEY, 1)] * DOOR_MAX
    assert loop.offer(full)
    assert not loop.offer([Credit(KEY, 1)])
    loop.post(Credit(KEY, 1))


def test_a_fault_of_the_engine_itself_is_told(
    loop: EngineLoop, sink: _Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can go on: the process is told to end, instead of standing still."""
    monkeypatch.setattr(loop._engine, "fetch", lambda: 1 / 0)
    loop.post(Cancel(KEY))
    assert sink.crashed.wait(5)
