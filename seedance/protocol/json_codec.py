"""The JSON frames of the contract, §3: text in, frame out, and back. Strict on what clients send.

Both directions are here for both ends: a server decodes client frames and encodes its own, an SDK
and a test the other way round. A server's decoding refuses everything that is not exactly right;
a client's forgives what a newer server may add.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, assert_never

from seedance.protocol import json_fields as fields
from seedance.protocol.errors import ProtocolFault, SeedanceError
from seedance.protocol.frames import (
    Ack,
    Cancel,
    ClientFrame,
    Close,
    Generate,
    Ping,
    Pong,
    Resume,
    ServerFrame,
    Token,
)
from seedance.protocol.json_server import server_body, server_frame
from seedance.protocol.request import (
    LIMITS,
    ChatMessage,
    GenerateRequest,
    Sampling,
    bad_field,
    check_in_one_frame,
    check_request,
)

__all__ = [
    "ProtocolFault",
    "client_body",
    "client_frame",
    "decode_client",
    "decode_server",
    "encodable",
    "encode_client",
    "encode_server",
    "encode_token",
    "generate_of",
    "plain_ack",
]

# A receive window of at most 128 frames has at most as many holes as this.
_SACK_RANGES_MAX = 64
# What a `resume` may tell of: the streams that a session has at once, and the ends that it remembers.
_OFFSETS_MAX = 64 + 1024
_SESSION_TOKEN_LENGTH_MAX = 256
_TOKEN_ID_KEY = re.compile(r"0|[1-9][0-9]{0,9}")
# What an acknowledgement nearly always looks like.
_PLAIN_ACK_MAX = 50
_PLAIN_ACK = re.compile(rb'\{"type": ?"ack", ?"seq": ?([1-9][0-9]{0,17})\}')
_SURROGATE = re.compile("[\ud800-\udfff]")

_COUNT = fields.integer_from(0)
_SEQ = fields.integer_from(1)


# ---------------------------------------------------------------- readers of one field


def _stream_id(path: str, value: Any) -> str:
    stream_id = fields.text(path, value)
    # It becomes part of names elsewhere, also in a ledger, and no database's text holds a NUL.
    if not 1 <= len(stream_id) <= LIMITS.id_length_max or "\0" in stream_id:
        raise bad_field(path, f"a string of 1 to {LIMITS.id_length_max} characters without NUL")
    return stream_id


def _credential(path: str, value: Any) -> str:
    credential = fields.text(path, value)
    if not 1 <= len(credential) <= _SESSION_TOKEN_LENGTH_MAX:
        raise bad_field(path, f"a string of 1 to {_SESSION_TOKEN_LENGTH_MAX} characters")
    return credential


def _part(path: str, value: Any) -> str:
    part = fields.record(path, value)
    fields.required(part, "type", fields.choice("text"), f"{path}.")
    return str(fields.required(part, "text", fields.text, f"{path}."))


def _content(path: str, value: Any) -> str:
    if isinstance(value, str):
        return fields.text(path, value)
    if not isinstance(value, list | tuple) or not value:
        raise bad_field(path, "a string or a list of text parts")
    return "".join(fields.items(_part)(path, value))


def _message(path: str, value: Any) -> ChatMessage:
    message = fields.record(path, value)
    return ChatMessage(
        role=fields.required(message, "role", fields.text, f"{path}."),
        content=fields.required(message, "content", _content, f"{path}."),
    )


def _stop(path: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (fields.text(path, value),)
    if not isinstance(value, list | tuple):
        raise bad_field(path, "a string or a list of strings")
    return tuple(fields.items(fields.text)(path, value))


def _logit_bias(path: str, value: Any) -> dict[int, float]:
    biases = fields.object_of(fields.number)(path, value)
    for key in biases:
        if not _TOKEN_ID_KEY.fullmatch(key):
            raise bad_field(path, "an object whose keys are token ids")
    return {int(key): bias for key, bias in biases.items()}


def _sack_range(path: str, value: Any) -> tuple[int, int]:
    pair = fields.items(_SEQ)(path, value)
    if len(pair) != 2 or pair[0] > pair[1]:  # noqa: PLR2004 - a pair
        raise bad_field(path, "[from, to], from not above to")
    return pair[0], pair[1]


def _sack(path: str, value: Any) -> tuple[tuple[int, int], ...]:
    # Before they are read: a message of nothing but ranges would take a third of a second.
    if isinstance(value, list) and len(value) > _SACK_RANGES_MAX:
        raise bad_field(path, f"at most {_SACK_RANGES_MAX} ranges")
    ranges: tuple[tuple[int, int], ...] = fields.items(_sack_range)(path, value)
    return ranges


def _offsets(path: str, value: Any) -> dict[str, int]:
    # Each that the session does not know is answered; no honest client knows of more.
    offsets: dict[str, int] = fields.object_of(fields.integer_from(-1))(path, value)
    if len(offsets) > _OFFSETS_MAX or any(len(name) > LIMITS.id_length_max for name in offsets):
        ids = f"at most {_OFFSETS_MAX} ids of at most {LIMITS.id_length_max} characters"
        raise bad_field(path, f"an object whose keys are {ids}")
    return offsets


# ---------------------------------------------------------------- what clients send

_SAMPLING: dict[str, fields.Reader] = {
    "temperature": fields.number,
    "top_p": fields.number,
    "top_k": fields.integer,
    "min_p": fields.number,
    "presence_penalty": fields.number,
    "frequency_penalty": fields.number,
    "repetition_penalty": fields.number,
    "logit_bias": _logit_bias,
    "seed": fields.integer,
    "logprobs": fields.integer,
}
_REQUEST: dict[str, fields.Reader] = {
    "model": fields.text,
    "messages": fields.items(_message),
    "prompt": fields.text,
    "max_tokens": fields.integer,
    "min_tokens": fields.integer,
    "stop": _stop,
    "ignore_eos": fields.flag,
    "priority": fields.integer,
    "deadline_ms": fields.integer,
    "expected_tokens": fields.integer,
    "max_latency_ms": fields.integer,
}
_DELIVERY: dict[str, fields.Reader] = {
    "stream": fields.flag,
    "on_disconnect": fields.choice("keep", "cancel"),
    "receipt": fields.flag,
    "traceparent": fields.text,
}


def generate_of(body: dict[str, Any]) -> Generate:
    """The `generate` frame of a JSON object (§3), checked in full; without `type` it is bare.

    Raises `SeedanceError` (`bad_request`) with the field's path, and the stream's id if it has one.
    """
    stream_id = _stream_id("id", body["id"]) if "id" in body else None
    try:
        fields.record("", body)
        sampling = Sampling(**fields.read(body, _SAMPLING))
        request = GenerateRequest(sampling=sampling, **fields.read(body, _REQUEST))
        check_request(request)
        delivery = fields.read(body, _DELIVERY)
        if not delivery.get("stream", True):
            check_in_one_frame(request, max(request.max_tokens or 0, request.min_tokens))
    except SeedanceError as refusal:
        refusal.stream_id = stream_id
        refusal.of_generate = True
        raise
    return Generate(id=stream_id, request=request, bare="type" not in body, **delivery)


def _resume(body: dict[str, Any]) -> Resume:
    return Resume(
        session=fields.required(body, "session", _credential),
        token=fields.required(body, "token", _credential),
        last_seq=fields.required(body, "last_seq", _COUNT),
        offsets=fields.required(body, "offsets", _offsets),
    )


def _ack(body: dict[str, Any]) -> Ack:
    return Ack(
        seq=fields.required(body, "seq", _SEQ),
        sack=_sack("sack", body["sack"]) if "sack" in body else (),
    )


def _time(body: dict[str, Any]) -> float | int | None:
    return fields.finite("t", body["t"]) if "t" in body else None


_CLIENT_FRAMES: dict[str, Callable[[dict[str, Any]], ClientFrame]] = {
    "generate": generate_of,
    "ack": _ack,
    "cancel": lambda body: Cancel(fields.required(body, "id", _stream_id)),
    "resume": _resume,
    "ping": lambda body: Ping(_time(body)),
    "pong": lambda body: Pong(_time(body)),
    "close": lambda _: Close(),
}


def decode_client(message: str) -> ClientFrame:
    """The frame that a client's text message is (§3).

    Raises `ProtocolFault` (close 4400) for what is no JSON object, `SeedanceError` (`bad_request`)
    for everything else: `field` names the path at fault, `stream_id` the stream, where it could be
    read. Fields that the contract does not know are ignored, whatever they hold.
    """
    if len(message) <= _PLAIN_ACK_MAX and (seq := plain_ack(message.encode(errors="replace"))):
        return Ack(seq)
    return client_frame(fields.parse_object(message))


def plain_ack(message: bytes) -> int | None:
    """The `seq` of an acknowledgement in its usual form; None: the text message is to be parsed.

    The one frame that clients send all the time, at a sixth of the time of a whole parse.
    """
    found = _PLAIN_ACK.fullmatch(message)
    return int(found[1]) if found else None


def client_frame(body: dict[str, Any]) -> ClientFrame:
    """The frame that a client's JSON object is; raises as `decode_client` does."""
    if "type" not in body and ("messages" in body or "prompt" in body):
        return generate_of(body)
    decode = _CLIENT_FRAMES.get(fields.required(body, "type", fields.text))
    if decode is None:
        raise bad_field("type", "one of " + ", ".join(_CLIENT_FRAMES))
    return decode(body)


def _generate_body(frame: Generate) -> dict[str, Any]:
    body: dict[str, Any] = {} if frame.bare else {"type": "generate"}
    if frame.id is not None:
        body["id"] = frame.id
    request, sampling = frame.request, frame.request.sampling
    if request.messages:
        body["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    for source, default, names in (
        (request, GenerateRequest(), _REQUEST.keys() - {"messages"}),
        (sampling, Sampling(), _SAMPLING.keys()),
        (frame, Generate(None, request), _DELIVERY.keys()),
    ):
        for name in sorted(names):
            value = getattr(source, name)
            if value != getattr(default, name):
                body[name] = value
    if sampling.logit_bias:
        body["logit_bias"] = {str(key): bias for key, bias in sampling.logit_bias.items()}
    return body


def client_body(frame: ClientFrame) -> dict[str, Any]:
    """The JSON object of a client frame; what equals its default is left out."""
    body: dict[str, Any]
    match frame:
        case Ack(seq, sack):
            body = {"type": "ack", "seq": seq} | ({"sack": sack} if sack else {})
        case Generate():
            body = _generate_body(frame)
        case Cancel(stream_id):
            body = {"type": "cancel", "id": stream_id}
        case Resume(session, token, last_seq, offsets):
            body = {
                "type": "resume",
                "session": session,
                "token": token,
                "last_seq": last_seq,
                "offsets": offsets,
            }
        case Ping(t):
            body = {"type": "ping"} | ({} if t is None else {"t": t})
        case Pong(t):
            body = {"type": "pong"} | ({} if t is None else {"t": t})
        case Close():
            body = {"type": "close"}
        case _:
            assert_never(frame)
    return body


def _dump(body: dict[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_client(frame: ClientFrame) -> str:
    """A client frame as its text message; what equals its default is left out."""
    return _dump(client_body(frame))


# ---------------------------------------------------------------- what servers send


def encodable(message: str) -> str:
    """The text with every lone surrogate replaced by U+FFFD."""
    # Text of ours is valid; text that came through (a model's name in a refusal) need not be.
    return message if message.isascii() else _SURROGATE.sub("\ufffd", message)


def encode_server(frame: ServerFrame, seq: int | None = None) -> str:
    """A server frame as its text message; `seq` for the sequenced ones. Always valid Unicode."""
    if type(frame) is Token and frame.logprobs is None and seq is not None:
        return encodable(encode_token(frame, seq))
    return encodable(_dump(server_body(frame, seq)))


def encode_token(frame: Token, seq: int) -> str:
    """A token frame without log-probabilities, put together by hand: five times as fast as a dict.

    Its text and id are valid Unicode: the one was UTF-8, the other was read from a client's JSON.
    """
    many = "" if frame.tokens == 1 else f',"tokens":{frame.tokens}'
    return (
        f'{{"type":"token","seq":{seq},"id":{encode_basestring(frame.id)},'
        f'"offset":{frame.offset},"delta":{encode_basestring(frame.delta)},'
        f'"timestamp":{frame.timestamp}{many}}}'
    )


def decode_server(message: str) -> tuple[ServerFrame, int | None]:
    """The frame that a server's text message is, and its `seq` if it is a sequenced one.

    Raises `ProtocolFault` for what no server of this contract says.
    """
    return server_frame(fields.parse_object(message))
