"""The light client's side of a session, frame by frame."""

from __future__ import annotations

import pytest

from launcher.loadtest.caller import Who
from launcher.loadtest.heard_frame import HeardFrame, read_binary, read_json
from launcher.loadtest.load import Load, target_of
from launcher.loadtest.prompts import Prompt, Prompts
from launcher.loadtest.tally import Answer, Judge, Tally
from launcher.loadtest.websocket import SocketCaller
from seedance.protocol.errors import ErrorCode
from seedance.protocol.frames import Checkpoint, Done, ErrorFrame, Flush, Ping, Timing, Token, Usage
from seedance.protocol.json_codec import encode_server

HELLO = {"type": "session", "session": "S", "token": "t"}
PROMPT = Prompt([{"role": "user", "content": "x"}])


class _Session:
    """A caller on a wire that leads nowhere, and one answer."""

    def __init__(self, subprotocol: str = "seedance.v2.json") -> None:
        target = target_of("ws://h:1", subprotocol=subprotocol)
        self.caller = SocketCaller(target, Load(), Who("u"))
        self.tally = Tally()
        self.judge = Judge(Prompts([PROMPT], comparable=False))

    def ask(self) -> Answer:
        answer = Answer(PROMPT, 0.0, self.tally, self.judge, lambda: None, 0.0)
        self.caller.ask(answer)
        return answer

    def hear(self, **frame: object) -> bool:
        return self.caller.heard(HeardFrame(**frame), 1.0)


@pytest.fixture
async def session() -> _Session:
    """One that is open, with a stream that has said three bytes."""
    made = _Session()
    assert made.hear(**HELLO)
    made.ask()
    made.hear(type="accepted", seq=1, id="s1")
    made.hear(type="token", seq=2, id="s1", delta="abc")
    return made


async def test_a_resume_says_what_was_processed(session: _Session) -> None:
    """§3 `resume`: the last number, bytes of open streams, −1 for ends above the checkpoint."""
    session.ask()
    session.hear(type="done", seq=3, id="s1")
    session.caller.disconnected(session_gone=False)
    resume = session.caller.hello()
    assert resume is not None
    # The second was not answered: it will be asked again.
    assert (resume["last_seq"], resume["offsets"]) == (3, {"s1": -1})
    session.hear(type="checkpoint", sequence_id=3)
    resume = session.caller.hello()
    assert resume is not None
    assert resume["offsets"] == {}


async def test_what_comes_again_is_dropped(session: _Session) -> None:
    """A number that was processed does not count twice."""
    session.hear(type="token", seq=2, id="s1", delta="abc")
    assert session.tally.tokens == 1


async def test_a_refused_resume_leaves_the_numbers_alone(session: _Session) -> None:
    """The error of a provisional session has a number of that one, not of ours."""
    session.caller.disconnected(session_gone=False)
    assert not session.hear(**{**HELLO, "session": "P"})
    session.hear(type="error", seq=3, code="unavailable")
    session.caller.disconnected(session_gone=False)
    resume = session.caller.hello()
    assert resume is not None
    assert (resume["session"], resume["last_seq"], resume["offsets"]) == ("S", 2, {"s1": 3})


async def test_a_resumed_session_goes_on_where_it_says(session: _Session) -> None:
    """`from_seq` may leave numbers out; text goes on behind it."""
    session.caller.disconnected(session_gone=False)
    assert session.hear(**{**HELLO, "type": "resumed"}, from_seq=7)
    session.hear(type="token", seq=7, id="s1", delta="d", tokens=2)
    session.hear(type="done", seq=8, id="s1")
    assert (session.tally.tokens, session.tally.answered) == (3, 1)


async def test_a_session_that_is_gone_ends_what_ran_in_it(session: _Session) -> None:
    """4410: its streams are errors by that name, and the next connection begins anew."""
    session.caller.disconnected(session_gone=True)
    assert dict(session.tally.errors) == {"session_expired": 1}
    assert session.caller.hello() is None


async def test_a_simple_client_resumes_nothing() -> None:
    """Its answers end with the connection."""
    simple = _Session(subprotocol="")
    simple.hear(**HELLO)
    simple.ask()
    simple.hear(type="accepted", seq=1, id="s1")
    simple.caller.disconnected(session_gone=False)
    assert dict(simple.tally.errors) == {"connection_lost": 1}
    assert simple.caller.hello() is None


def test_both_readings_of_a_frame_agree() -> None:
    """What the binary codec has read says the same as the JSON of the same frame."""
    frames = [
        (Token("s1", 3, "é", 5, tokens=2), 4),
        (Done("s1", "stop", Usage(), Timing()), 5),
        (ErrorFrame(ErrorCode.OVERLOADED, "m", retryable=True, id="s1"), 6),
        (Checkpoint(6, 1), None),
        (Ping(1.5), None),
        (Flush("s1", 3), 7),
    ]
    for frame, seq in frames:
        binary, text = read_binary(frame, seq), read_json(encode_server(frame, seq))
        fields = ("seq", "id", "delta", "tokens", "code", "sequence_id", "t")
        assert [getattr(binary, f) for f in fields] == [getattr(text, f) for f in fields]
        assert binary.type in {text.type, "other"}
