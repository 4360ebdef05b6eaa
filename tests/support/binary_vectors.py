"""Golden binary messages (tests/vectors/binary.json), for an encoder or decoder in any language.

Each direction is one connection from its beginning: `ticks` are the frames that leave together, as
JSON texts, `proto` the bytes of their messages, `zstd` those of the compressed subprotocol (what
another encoder compresses to may differ; what it means may not).
`python -m tests.support.binary_vectors` writes the file anew.
"""

from __future__ import annotations

import json
from typing import Any

from seedance.protocol.binary_codec import ClientEncoder, ServerEncoder
from seedance.protocol.envelope import seal
from seedance.protocol.json_codec import decode_client, decode_server
from seedance.v2.frames_pb2 import Frame, FrameBatch
from tests.support.conversation import VECTORS

__all__ = ["BINARY_VECTORS", "encoded_client", "encoded_server"]

BINARY_VECTORS = VECTORS / "binary.json"


def encoded_server(ticks: list[list[str]], *, compressed: bool) -> list[str]:
    """The messages of a gateway, in hexadecimal."""
    encoder = ServerEncoder(compressed=compressed)
    frames = [[decode_server(text) for text in tick] for tick in ticks]
    return [message.hex() for tick in frames for message in encoder.encode(tick)]


def encoded_client(ticks: list[list[str]], *, compressed: bool) -> list[str]:
    """The messages of a client, in hexadecimal."""
    encoder = ClientEncoder(compressed=compressed)
    return [encoder.encode([decode_client(text) for text in tick]).hex() for tick in ticks]


def _token(seq: int, stream_id: str, offset: int, delta: str, timestamp: int, **more: Any) -> str:
    body = {"type": "token", "seq": seq, "id": stream_id, "offset": offset, "delta": delta}
    return json.dumps({**body, "timestamp": timestamp, **more}, ensure_ascii=False)


def _server_ticks() -> list[list[str]]:
    golden = json.loads((VECTORS / "frames.json").read_text())["server"]
    at = 1_786_580_000_000
    steady = [
        [_token(101, "s", 0, "量子", at)],
        [_token(102, "s", 6, " bits", at + 10)],
        [_token(103, "s", 11, " are", at + 20)],
        [
            _token(104, "s", 15, ".\n\n", at + 31),
            '{"type":"flush","seq":105,"id":"s","offset":18}',
            _token(106, "other", 40, "resumed at 40", at + 31),
            _token(107, "s", 18, "x", at + 33, tokens=3),
        ],
        # Sent again, then on.
        [_token(101, "s", 0, "量子", at)],
        [_token(108, "s", 19, "y", at + 40)],
    ]
    return [[text] for text in golden] + steady


def _refused() -> list[dict[str, str]]:
    def row(why: str, field: str, frame: Frame) -> dict[str, str]:
        message = seal(FrameBatch(frames=[frame]).SerializeToString())
        return {"why": why, "field": field, "message": message.hex()}

    return [
        row("an unknown kind of frame", "type", Frame()),
        row("a server's frame", "type", Frame(goaway=Frame.GoAway())),
        row("no number", "seq", Frame(ack=Frame.Ack())),
        row("half a range", "sack[0]", Frame(ack=Frame.Ack(seq=1, sack=[2]))),
        row("out of range", "top_p", Frame(generate=Frame.Generate(prompt="x", top_p=2))),
    ]


def _write() -> None:
    frames = json.loads((VECTORS / "frames.json").read_text())
    server, client = _server_ticks(), [[text] for text in frames["client"]]
    faults = {
        "magic": b"\xca\xfe\xba\xbf\0\0\0\0",
        "first byte": b"{",
        "a length over 1 MiB": b"\xca\xfe\xba\xbe\0\x10\0\1",
        "no protobuf": seal(b"\xff"),
        "text that is not UTF-8": seal(b"\x0a\x01\xff"),
    }
    vectors = {
        "about": "Golden binary messages; tests/vectors/README.md says how to use them.",
        "server": {
            "ticks": server,
            "proto": encoded_server(server, compressed=False),
            "zstd": encoded_server(server, compressed=True),
        },
        "client": {
            "ticks": client,
            "proto": encoded_client(client, compressed=False),
            "zstd": encoded_client(client, compressed=True),
        },
        "refused": _refused(),
        "fault": [{"why": why, "message": data.hex()} for why, data in faults.items()],
    }
    BINARY_VECTORS.write_text(json.dumps(vectors, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    _write()
