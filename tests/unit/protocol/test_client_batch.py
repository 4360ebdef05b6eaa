"""Client frames as batches; that they mean what JSON means is a property test."""

from __future__ import annotations

import pytest

from seedance.protocol.client_batch import FRAMES_MAX, client_payload, read_client_payload
from seedance.protocol.errors import CloseCode, ProtocolFault, SeedanceError
from seedance.protocol.frames import Ack, Cancel, Close, Ping
from seedance.v2.frames_pb2 import Frame, FrameBatch

TOKEN = {"token": "t"}


def test_an_ack_is_small() -> None:
    """The frame that clients send all the time."""
    assert len(client_payload([Ack(4711)])) == 7


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (Frame(), "type"),
        (Frame(accepted=Frame.Accepted()), "type"),
        (Frame(ack=Frame.Ack()), "seq"),
        (Frame(ack=Frame.Ack(seq=2**63)), "seq"),
        (Frame(ack=Frame.Ack(seq=1, sack=[2])), "sack[0]"),
        (Frame(ack=Frame.Ack(seq=1, sack=[3, 2])), "sack[0]"),
        (Frame(ack=Frame.Ack(seq=1, sack=[2] * 130)), "sack"),
        (Frame(cancel=Frame.Cancel()), "id"),
        (Frame(resume=Frame.Resume(session="s", **TOKEN)), "last_seq"),
        (
            Frame(resume=Frame.Resume(session="s", **TOKEN, last_seq=1, offsets={"a": -2})),
            "offsets.a",
        ),
        (Frame(ping=Frame.Time(real=float("nan"))), "t"),
        (Frame(generate=Frame.Generate(prompt="x", logit_bias={-1: 1})), "logit_bias"),
        (
            Frame(generate=Frame.Generate(messages=[Frame.Message(role="user")])),
            "messages[0].content",
        ),
    ],
)
def test_a_wrong_frame_is_named_by_its_field(frame: Frame, field: str) -> None:
    """As in JSON, and the frames around it count (§3)."""
    good = Frame(close=Frame.Close())
    payload = FrameBatch(frames=[good, frame, good]).SerializeToString()
    before, refusal, after = read_client_payload(payload)
    assert (before, after) == (Close(), Close())
    assert isinstance(refusal, SeedanceError)
    assert refusal.field == field


def test_what_is_unknown_is_ignored() -> None:
    """Fields of a newer client, in the batch and in a frame."""
    newer = b"\xfa\x7f\x02hi"
    known = Frame(cancel=Frame.Cancel(id="s")).SerializeToString() + newer
    payload = b"\x1a" + bytes([len(known)]) + known + newer
    assert list(read_client_payload(payload)) == [Cancel("s")]


@pytest.mark.parametrize(
    "payload",
    [b"\xff", b"\x0a\x01\xff", FrameBatch(frames=[Frame()] * (FRAMES_MAX + 1)).SerializeToString()],
    ids=["no protobuf", "no UTF-8", "too many"],
)
def test_what_cannot_be_read_closes(payload: bytes) -> None:
    """4400."""
    with pytest.raises(ProtocolFault) as fault:
        list(read_client_payload(payload))
    assert fault.value.close_code is CloseCode.PROTOCOL_ERROR


@pytest.mark.parametrize("t", [None, 0, -5, 1.5, 2**63 - 1])
def test_a_time_comes_back_as_it_was(t: float | None) -> None:
    """An integer stays one."""
    [ping] = read_client_payload(client_payload([Ping(t)]))
    assert isinstance(ping, Ping)
    assert (ping.t, type(ping.t)) == (t, type(t))
