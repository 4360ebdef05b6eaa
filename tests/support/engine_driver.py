"""Drives an engine step by step, without threads and on a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.engine.answer import FinishReason
from inference.engine.engine import Engine
from inference.engine.limits import EngineLimits
from inference.engine.messages import (
    Accepted,
    CallEnded,
    Cancel,
    Command,
    Credit,
    Done,
    Failed,
    Hold,
    Open,
    Pressure,
    StepOutput,
    StreamKey,
)
from inference.engine.runner import Prepared, Runner
from inference.engine.timing import Marks
from inference.script import ScriptPreparer, ScriptRunner, script_info
from seedance.protocol.request import ChatMessage, GenerateRequest
from tests.support.scripts import script

__all__ = ["EngineDriver", "FakeClock", "Heard", "ScriptDriver", "script_driver", "script_request"]

STEPS_MAX = 100_000


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def wall_ms(self) -> int:
        """Milliseconds of the same clock."""
        return int(self.now * 1000)


@dataclass
class Heard:
    """What one stream was sent, and in how many pieces."""

    accepted: list[Accepted] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    pieces: list[bytes] = field(default_factory=list)
    piece_tokens: list[int] = field(default_factory=list)
    first_index: int | None = None
    first_offset: int | None = None
    ends: list[Done | Failed] = field(default_factory=list)

    @property
    def end(self) -> Done | Failed:
        """How it ended: exactly once."""
        assert len(self.ends) == 1, self.ends
        return self.ends[0]

    @property
    def reason(self) -> FinishReason:
        """Why it ended well."""
        assert isinstance(self.end, Done), self.end
        return self.end.reason

    @property
    def code(self) -> str:
        """The error code it ended with."""
        assert isinstance(self.end, Failed), self.end
        return self.end.error.code.value


class EngineDriver:
    """An engine, its clock, and what each stream heard."""

    def __init__(self, runner: Runner, limits: EngineLimits | None = None) -> None:
        self.clock = FakeClock()
        self.engine = Engine(runner, limits or EngineLimits(), self.clock)
        self.streams: dict[StreamKey, Heard] = {}
        self.pressures: list[Pressure] = []
        self.records = []
        self.steps = 0

    def heard(self, stream: int, call: int = 1) -> Heard:
        """What a stream was sent until now."""
        return self.streams.setdefault(StreamKey(call, stream), Heard())

    def open(
        self,
        stream: int,
        prepared: Prepared,
        request: GenerateRequest | None = None,
        **more: object,
    ) -> Heard:
        """Send `open` on a stream (of call 1 unless told); its name is `g<stream>` unless told."""
        key = StreamKey(int(more.pop("call", 1)), stream)  # type: ignore[call-overload]
        now = self.clock.now
        more.setdefault("generation", f"g{stream}")
        self.apply(
            Open(
                stream=key,
                request=request or GenerateRequest(prompt="x"),
                prepared=prepared,
                marks=Marks(now, now, now),
                **more,  # type: ignore[arg-type]
            )
        )
        return self.heard(stream, key.call)

    def apply(self, *commands: Command) -> None:
        """Hand in commands."""
        self.engine.apply(list(commands))

    def credit(self, stream: int, tokens: int, call: int = 1) -> None:
        """Send `credit`."""
        self.apply(Credit(StreamKey(call, stream), tokens))

    def cancel(self, stream: int, call: int = 1) -> None:
        """Send `cancel`."""
        self.apply(Cancel(StreamKey(call, stream)))

    def hold(self, *, on: bool, call: int = 1) -> None:
        """The call lags, or has caught up."""
        self.apply(Hold(call, on=on))

    def break_call(self, call: int = 1) -> None:
        """The call breaks."""
        self.apply(CallEnded(call))

    def step(self) -> StepOutput | None:
        """One step; checks the engine's own invariants and the order within the output."""
        output = self.engine.step()
        self.steps += 1
        return self._heard(output)

    def hear(self) -> StepOutput | None:
        """What is new without a step, or amid one."""
        return self._heard(self.engine.emit())

    def run(self, steps: int = STEPS_MAX, *, tick_s: float = 0.0) -> None:
        """Step until nothing is left to do, moving the clock by what the engine would wait."""
        for _ in range(steps):
            output = self.step()
            due = self.engine.scheduler.next_due(self.clock.now)
            if output is None and self.engine.wait_s > 0 and due is None:
                return
            self.clock.now += max(tick_s, 0.0 if output else self.engine.wait_s)

    def check_idle(self) -> None:
        """Everything was given back."""
        pool = self.engine.scheduler.places.pool
        assert pool.free == pool.total
        assert self.engine.scheduler.places.running == self.engine.scheduler.places.queued == 0

    def _heard(self, output: StepOutput | None) -> StepOutput | None:
        self.engine.scheduler.places.check()
        if output is not None:
            self._hear(output)
        return output

    def _hear(self, output: StepOutput) -> None:
        if output.pressure:
            self.pressures.append(output.pressure)
        self.records += output.ended
        for part in output.calls.values():
            for accepted in part.accepted:
                self.streams.setdefault(accepted.stream, Heard()).accepted.append(accepted)
            for tokens in part.tokens:
                heard, piece = self.streams[tokens.stream], tokens.piece
                if heard.first_index is None:
                    heard.first_index, heard.first_offset = piece.token_index, piece.offset
                assert piece.token_index == heard.first_index + len(heard.ids)
                assert piece.offset == (heard.first_offset or 0) + len(heard.text)
                piece.text.decode()  # every piece is whole UTF-8
                assert not heard.ends
                heard.ids += piece.ids
                heard.text += piece.text
                heard.pieces.append(piece.text)
                heard.piece_tokens.append(len(piece.ids))
            for end in part.ends:
                self.streams.setdefault(end.stream, Heard()).ends.append(end)


def script_request(content: str, **fields: object) -> GenerateRequest:
    """A request for the script engine."""
    return GenerateRequest(messages=(ChatMessage("user", content),), **fields)  # type: ignore[arg-type]


class ScriptDriver(EngineDriver):
    """An engine that plays scripts."""

    def play(self, stream: int, tokens: list[bytes], **more: object) -> Heard:
        """Open a script; `dt_ms`, `first_ms`, `repeat` are the script's, `stop` and the like the request's."""
        timing = {k: more.pop(k) for k in ("dt_ms", "first_ms", "repeat") if k in more}
        fields = {
            k: more.pop(k)
            for k in ("stop", "max_tokens", "min_tokens", "priority", "sampling")
            if k in more
        }
        request = script_request(script(tokens, **timing), **fields)  # type: ignore[arg-type]
        return self.open(stream, ScriptPreparer().prepare(request), request, **more)


def script_driver(limits: EngineLimits | None = None, **info: object) -> ScriptDriver:
    """A driver of the script engine."""
    limits = limits or EngineLimits(
        batch_max=4096, step_tokens_max=2**22, prefill_chunk_busy_max=2**22
    )
    return ScriptDriver(ScriptRunner(script_info(**info)), limits)  # type: ignore[arg-type]
