"""The engine's threads: commands in, outputs out, idle in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from inference.engine.door import DOOR_MAX
from inference.engine.engine import Engine
from inference.engine.limits import EngineLimits
from inference.engine.loop import EngineLoop
from inference.engine.messages import (
    Accepted,
    Cancel,
    Command,
    Credit,
    Done,
    Failed,
    Hold,
    Open,
    Pressure,
    PressureLevel,
    StepOutput,
    StreamKey,
)
from inference.engine.plan import Sampled, StepPlan
from inference.engine.runner import Prepared
from inference.engine.timing import Marks
from inference.script import ScriptPreparer, ScriptRunner, script_info
from mesh.clock import SystemClock
from seedance.protocol.errors import ErrorCode
from seedance.protocol.request import GenerateRequest
from tests.support.engine_driver import script_request
from tests.support.fake_runner import FakeRunner, fake_info
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
    def accepted(self) -> list[Accepted]:
        return [
            a for output in list(self.outputs) for p in output.calls.values() for a in p.accepted
        ]

    @property
    def pressures(self) -> list[Pressure]:
        return [output.pressure for output in list(self.outputs) if output.pressure]

    @property
    def ends(self) -> list[Done | Failed]:
        return [e for output in list(self.outputs) for p in output.calls.values() for e in p.ends]


@pytest.fixture
def sink() -> _Sink:
    return _Sink()


@pytest.fixture(params=[False, True], ids=["in turn", "overlapping"])
def loop(request: pytest.FixtureRequest, sink: _Sink) -> Iterator[EngineLoop]:
    engine = Engine(ScriptRunner(script_info()), EngineLimits(), SystemClock())
    loop = EngineLoop(engine, sink.deliver, sink.crashed.set, SystemClock(), overlap=request.param)
    loop.start()
    yield loop
    loop.stop()


def _marks() -> Marks:
    now = SystemClock().monotonic()
    return Marks(now, now, now)


def _open(tokens: list[bytes], **timing: float) -> Open:
    request = script_request(script(tokens, **timing))  # type: ignore[arg-type]
    return Open(KEY, "g", request, ScriptPreparer().prepare(request), _marks())


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


def test_what_delivery_answers_comes_before_the_next_plan(loop: EngineLoop, sink: _Sink) -> None:
    """A call that is full is held at once: nothing more than the step that is computed meanwhile."""
    sink.answers = [Hold(1, on=True)]
    loop.offer([_open([b"a"], repeat=1000)])
    wait_until_sync(lambda: sink.outputs)
    loop.post(Hold(2, on=True))
    wait_until_sync(lambda: loop.load.running == 0)
    assert len(sink.text) <= 2
    loop.post(Hold(1, on=False))
    wait_until_sync(lambda: sink.ends)
    assert sink.text == b"a" * 1000


class _SlowRunner(FakeRunner):
    """Computes a step, however long it takes, each time that it is let `go`."""

    def __init__(self) -> None:
        super().__init__(fake_info())
        self.busy = threading.Event()
        self.go = threading.Semaphore(0)

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Wait, then compute."""
        self.busy.set()
        assert self.go.acquire(timeout=10)
        return super().run(plan)


@pytest.fixture
def slow(sink: _Sink) -> Iterator[tuple[EngineLoop, _SlowRunner]]:
    """An overlapping loop whose first step, with one token for stream 1, is being computed."""
    runner = _SlowRunner()
    engine = Engine(runner, EngineLimits(batch_max=1, queue_max=2), SystemClock())
    loop = EngineLoop(engine, sink.deliver, sink.crashed.set, SystemClock())
    loop.start()
    loop.offer([_fake_open(1)])
    assert runner.busy.wait(5)
    yield loop, runner
    runner.go.release(10)
    loop.stop()


def _fake_open(stream: int) -> Open:
    request = GenerateRequest(prompt="x", max_tokens=3)
    prepared = Prepared([stream], lambda token_id: bytes([token_id % 128]))
    return Open(StreamKey(1, stream), f"g{stream}", request, prepared, _marks())


def test_commands_are_served_while_a_step_is_computed(
    slow: tuple[EngineLoop, _SlowRunner], sink: _Sink
) -> None:
    """Openings are accepted, pressure is told and a cancellation is answered before the step ends."""
    loop, _ = slow
    loop.offer([_fake_open(2), _fake_open(3)])
    wait_until_sync(lambda: len(sink.accepted) == 3)
    wait_until_sync(lambda: [p.level for p in sink.pressures] == [PressureLevel.PAUSE])
    loop.offer([Cancel(KEY)])
    (end,) = wait_until_sync(lambda: sink.ends)
    assert end.stream == KEY
    assert loop.load.free_blocks == loop.load.total_blocks


def test_a_flood_is_answered_while_a_step_is_computed(
    slow: tuple[EngineLoop, _SlowRunner], sink: _Sink
) -> None:
    """Whoever waits at the door counts: beyond `queue_max` nobody does, and is told when to come back."""
    loop, _ = slow
    loop.offer([_fake_open(stream) for stream in range(2, 1000)])
    wait_until_sync(lambda: len(sink.ends) == 996)
    assert len(sink.accepted) == 3
    assert len(loop._door) == 0
    errors = [end.error for end in sink.ends if isinstance(end, Failed)]
    assert {error.code for error in errors} == {ErrorCode.OVERLOADED}
    assert all(error.retry_after_ms for error in errors)


def test_a_step_is_sent_while_the_next_is_computed(
    slow: tuple[EngineLoop, _SlowRunner], sink: _Sink
) -> None:
    """Its token is heard although the step after it does not end."""
    _, runner = slow
    runner.busy.clear()
    runner.go.release()
    assert runner.busy.wait(5)
    wait_until_sync(lambda: sink.text)
    assert sink.ends == []


def test_no_text_depends_on_the_overlap(loop: EngineLoop, sink: _Sink) -> None:
    """Sixty streams that come and go beside each other say what each says alone."""
    texts = {i: [bytes([65 + i % 26]), b"-", bytes([97 + i % 26])] for i in range(1, 61)}
    for stream, tokens in texts.items():
        opened = replace(
            _open(tokens, repeat=7), stream=StreamKey(1, stream), generation=f"g{stream}"
        )
        loop.offer([opened])
    wait_until_sync(lambda: len(sink.ends) == len(texts))
    heard: dict[int, bytes] = {}
    for output in sink.outputs:
        for tokens in output.calls[1].tokens:
            heard[tokens.stream.stream] = heard.get(tokens.stream.stream, b"") + tokens.piece.text
    assert heard == {stream: b"".join(tokens) * 7 for stream, tokens in texts.items()}


def test_a_full_inbox_says_so() -> None:
    """At the bound a caller has to wait; the instance's own commands never do."""
    engine = Engine(ScriptRunner(script_info()), EngineLimits(), SystemClock())
    loop = EngineLoop(engine, lambda _: [], lambda: None, SystemClock())
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


def test_it_steps_without_threads(sink: _Sink) -> None:
    """Whoever has a clock of his own drives it himself: door, step and delivery in one call."""
    engine = Engine(ScriptRunner(script_info()), EngineLimits(), SystemClock())
    loop = EngineLoop(engine, sink.deliver, sink.crashed.set, SystemClock(), overlap=False)
    loop.offer([_open([b"a", b"b"])])
    for expected in (b"a", b"ab"):
        loop.step()
        assert sink.text == expected
    assert sink.ends
