"""What of a gateway's frame a load tool needs, out of any subprotocol (§3, §5)."""

from __future__ import annotations

import msgspec

from seedance.protocol.frames import (
    Accepted,
    Checkpoint,
    Done,
    ErrorFrame,
    Flush,
    Ping,
    Resumed,
    ServerFrame,
    SessionFrame,
    Token,
)

__all__ = ["HeardFrame", "read_binary", "read_json"]


class HeardFrame(msgspec.Struct):
    """A frame by its names on the wire; what it has not got is empty."""

    type: str
    seq: int = 0
    id: str = ""
    delta: str = ""
    tokens: int = 1
    code: str = ""
    session: str = ""
    token: str = ""
    from_seq: int = 0
    sequence_id: int = 0
    t: float | None = None


# A tenth of what the SDK's strict reading costs: a load tool believes the gateway.
read_json = msgspec.json.Decoder(HeardFrame).decode


def read_binary(frame: ServerFrame, seq: int | None) -> HeardFrame:
    """The same of a frame that the binary codec has read."""
    heard = HeardFrame("other", seq or 0)
    match frame:
        case Token():
            heard = HeardFrame("token", seq or 0, frame.id, frame.delta, frame.tokens)
        case Accepted(id=stream) | Flush(id=stream):
            heard.id = stream
        case Done(id=stream):
            heard = HeardFrame("done", seq or 0, stream)
        case ErrorFrame(id=stream):
            heard = HeardFrame("error", seq or 0, stream or "", code=frame.code)
        case SessionFrame():
            heard = HeardFrame("session", session=frame.session, token=frame.token)
        case Resumed(from_seq=first, session=hello):
            heard = HeardFrame("resumed", session=hello.session, token=hello.token, from_seq=first)
        case Checkpoint(sequence_id=number):
            heard = HeardFrame("checkpoint", sequence_id=number)
        case Ping(t=t):
            heard = HeardFrame("ping", t=t)
    return heard
