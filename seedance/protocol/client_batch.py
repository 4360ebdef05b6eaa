"""Client frames as batches (contract §5): a client writes them, the gateway reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from google.protobuf.message import DecodeError

from seedance.protocol.envelope import corrupted
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import Ack, ClientFrame, Ping, Pong
from seedance.protocol.json_codec import client_body, client_frame
from seedance.protocol.json_fields import INTEGER_MAX
from seedance.protocol.message_body import body_of, fill
from seedance.protocol.server_batch import put_time, time_of
from seedance.v2.frames_pb2 import Frame, FrameBatch

__all__ = ["FRAMES_MAX", "client_payload", "read_client_payload"]

# So many in a client's batch; a session has 64 streams, and 1,024 requests wait in a client.
FRAMES_MAX = 1024


def client_payload(frames: Sequence[ClientFrame]) -> bytes:
    """The payload that holds these frames."""
    batch = FrameBatch()
    for frame in frames:
        body = client_body(frame)
        kind = getattr(batch.frames.add(), body.get("type", "generate"))
        match frame:
            case Ack(seq, sack):
                kind.seq = seq
                kind.sack.extend(number for pair in sack for number in pair)
            case Ping(t) | Pong(t):
                put_time(kind, t)
            case _:
                if "logit_bias" in body:
                    body["logit_bias"] = {
                        int(key): bias for key, bias in body["logit_bias"].items()
                    }
                fill(kind, body)
    return batch.SerializeToString(deterministic=True)


def read_client_payload(payload: bytes) -> Iterator[ClientFrame | SeedanceError]:
    """The frames of a payload, and in the place of one that is wrong its `bad_request`.

    Raises `ProtocolFault` (4400) for what is no batch of at most `FRAMES_MAX` frames.
    """
    try:
        batch = FrameBatch.FromString(payload)
    except DecodeError:
        raise corrupted("a payload must be a FrameBatch") from None
    if len(batch.frames) > FRAMES_MAX:
        raise corrupted(f"a client's batch has at most {FRAMES_MAX} frames")
    bodies = [{"type": "token"}] if batch.delta else []
    for body in chain(bodies, map(_body, batch.frames)):
        try:
            yield body if isinstance(body, Ack) else client_frame(body)
        except SeedanceError as refusal:
            yield refusal


def _ack_body(message: Any) -> dict[str, Any]:
    body = body_of(message)
    flat = body.pop("sack")
    return body | ({"sack": [flat[at : at + 2] for at in range(0, len(flat), 2)]} if flat else {})


_BODIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "ack": _ack_body,
    "ping": time_of,
    "pong": time_of,
}


def _body(message: Frame) -> dict[str, Any] | Ack:
    """The JSON body of a frame; one that the schema does not know has an unknown `type`."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return {"type": ""}
    value = getattr(message, kind)
    if kind == "ack" and not value.sack and 0 < value.seq <= INTEGER_MAX:
        # The one frame that clients send all the time needs no judge.
        return Ack(value.seq)
    read: Callable[[Any], dict[str, Any]] = _BODIES.get(kind, body_of)
    return {"type": kind, **read(value)}
