"""The short way of an acknowledgement says and does what the long one would (contract §3, §4.1, §4.3)."""

from __future__ import annotations

import json

import hypothesis.strategies as st
from hypothesis import example, given

from seedance.protocol.events import FromInstance, Pump, UpstreamTokens
from seedance.protocol.frames import Ack, Token
from seedance.protocol.json_codec import client_frame, plain_ack
from tests.support.server_session import Bench

PIECES = ["{", "}", '"type"', '"ack"', '"seq"', '"sack"', ":", ",", " ", "1", "0", "17", "-", "e"]
FORMS = ['{"type":"ack","seq":%s}', '{"type": "ack", "seq": %s}', '{"type":"ack","seq":%s }']


@given(
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
    | st.builds(str.__mod__, st.sampled_from(FORMS), st.integers().map(str) | st.text(max_size=3))
)
@example('{"type":"ack","seq":8}')
@example('{"type":"ack","seq":08}')
@example('{"type":"ack","seq":٣}')
@example('{"type":"ack","seq":8,"seq":9}')
@example('{"type":"ack","seq":8}\n')
def test_what_is_read_quickly_is_read_so_by_json(message: str) -> None:
    """A spelling is either left to the parser, or means exactly what the parser makes of it."""
    seq = plain_ack(message.encode(errors="replace"))
    if seq is not None:
        body = json.loads(message)
        assert body == {"type": "ack", "seq": seq}
        assert client_frame(body) == Ack(seq)


@given(st.integers(1, 10**18 - 1))
def test_the_usual_forms_are_read_quickly(seq: int) -> None:
    """Compact, and with blanks as Python's `json` writes it."""
    body = {"type": "ack", "seq": seq}
    for form in (json.dumps(body), json.dumps(body, separators=(",", ":"))):
        assert plain_ack(form.encode()) == seq


class Engine(Bench):
    """A session whose instance makes what it has credit for."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.names = [f"s{number}" for number in range(streams)]
        for name in self.names:
            self.open(name)
        self.made = dict.fromkeys(self.names, 0)

    def make(self, name: str, most: int) -> None:
        """As many tokens as credit covers."""
        made, credit = self.made[name], self.machine.streams.live[name].allowed_tokens
        count = min(most, credit - made)
        if count > 0:
            what = UpstreamTokens((7,) * count, made, b"x" * count, made, 1)
            self.step(FromInstance(name, what))
            self.made[name] += count
        self.step(Pump())

    def acknowledge(self, unread: int) -> None:
        """All but the last so many frames have been processed."""
        seq = max(1, self.machine.delivery.log.next_seq - unread)
        self.effects += self.machine.acknowledged(seq, self.now)


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 20), st.integers(0, 40)), max_size=12),
    st.booleans(),
)
def test_no_stream_waits_for_ever(
    streams: int, turns: list[tuple[int, int, int]], stall: bool
) -> None:
    """However acknowledgements fall, also after the stream layer's time: credit comes again for everybody."""
    engine = Engine(streams)
    for which, most, unread in turns:
        engine.make(engine.names[which % streams], most)
        engine.acknowledge(unread)
    if stall:
        engine.make(engine.names[0], 20)
        engine.wait(9.0)
        engine.make(engine.names[-1], 20)
    engine.acknowledge(0)
    before = dict(engine.made)
    for name in engine.names:
        engine.make(name, 1)
        engine.acknowledge(0)
    assert all(engine.made[name] > before[name] for name in engine.names)
    assert sum(frame.tokens for frame in engine.of(Token)) == sum(engine.made.values())
