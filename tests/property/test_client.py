"""The client machine between cuts, duplicates and new cuts of the text (contract §4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from seedance.protocol import client_events as on
from seedance.protocol.client import ClientState
from seedance.protocol.frames import Accepted, Ack, Done, Generate, Resume, Resumed, SequencedFrame
from tests.support.client_session import SESSION, Bench, accepted, done, generate, token

TEXT = st.text(min_size=1, max_size=60)
# What happens next: say so many characters (and say them twice), cut the connection while so many
# frames are in the store above what the client has, or let so many milliseconds pass.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("lose frame"), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("cut"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("wait"), st.integers(1, 200), st.booleans()),
    ),
    max_size=25,
)


@dataclass
class Server:
    """A naive server of one stream: what it said by number, and how far the text is."""

    text: str
    bench: Bench
    said: list[SequencedFrame] = field(default_factory=list)
    at: int = 0  # characters said

    def begin(self) -> None:
        self.bench.step(on.Submit(generate("a")))
        self.bench.step(on.Opened())
        self.bench.receive(SESSION)
        self.number(accepted("a"))

    def number(self, frame: SequencedFrame, *, twice: bool = False, lost: bool = False) -> None:
        self.said.append(frame)
        for _ in range(0 if lost else 1 + twice):
            self.bench.receive(frame, len(self.said))

    def say(self, characters: int, *, twice: bool = False, lost: bool = False) -> None:
        piece = self.text[self.at : self.at + characters]
        if piece:
            offset = len(self.text[: self.at].encode())
            self.at += len(piece)
            self.number(token("a", offset, piece), twice=twice, lost=lost)

    def cut(self, stored_above: int) -> None:
        """Cut; then resume as §4.5 has it: stored frames again as they were, the rest cut anew."""
        bench = self.bench
        bench.lose()
        bench.wait()
        bench.take_sent()
        bench.step(on.Opened())
        [resume] = [frame for frame in bench.take_sent() if isinstance(frame, Resume)]
        kept = self.said[: resume.last_seq + stored_above]
        self.said = self.said[: resume.last_seq]
        bench.receive(Resumed(resume.last_seq + 1, SESSION))
        for frame in kept[resume.last_seq :]:
            self.number(frame)
        if not any(isinstance(frame, Accepted) for frame in self.said):
            self.number(accepted("a"))
        self.at = len(bench.text("a"))

    def finish(self) -> None:
        self.cut(0)
        self.say(len(self.text))
        self.number(done("a"))


@given(TEXT, STEPS)
def test_text_comes_out_once_whatever_happens(text: str, steps: list[tuple]) -> None:
    """Through cuts, lost and repeated frames the text grows as a prefix, and ends whole."""
    bench = Bench()
    server = Server(text, bench)
    server.begin()
    for kind, number, flag in steps:
        match kind:
            case "say":
                server.say(number, twice=flag)
            case "lose frame":
                server.say(number, lost=True)
            case "cut":
                server.cut(number)
            case "wait":
                bench.now += number / 1000
                bench.step(on.Tick())
        if bench.machine.state is ClientState.CONNECTING:
            server.cut(0)  # it left by itself, out of silence
        assert text.startswith(bench.text("a"))
    server.finish()
    assert bench.text("a") == text
    assert [type(f) for f in bench.delivered].count(Done) == 1
    assert [type(f) for f in bench.delivered].count(Accepted) == 1


@given(TEXT, STEPS)
def test_acknowledgements_never_go_back(text: str, steps: list[tuple]) -> None:
    """Within a connection the acknowledged number only rises, and never passes what was said."""
    bench = Bench()
    server = Server(text, bench)
    server.begin()
    bench.take_sent()
    highest = 1
    for kind, number, flag in steps:
        if kind == "wait":
            bench.now += number / 1000
            bench.step(on.Tick())
        else:
            server.say(number, twice=flag, lost=kind == "lose frame")
        for frame in bench.take_sent():
            assert not isinstance(frame, Generate)
            if isinstance(frame, Ack):
                assert highest <= frame.seq <= len(server.said) + 1
                highest = frame.seq
