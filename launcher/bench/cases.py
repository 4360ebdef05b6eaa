"""The cases: each is one station on the way of a token."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import partial
from itertools import count as counter

from inference.engine.engine import Engine
from inference.engine.limits import EngineLimits
from inference.engine.messages import Open, StreamKey
from inference.engine.timing import Marks
from inference.script import ScriptPreparer, ScriptRunner, script_info
from launcher.bench.gateway_path import PathCase
from launcher.bench.measure import Case
from mesh.clock import SystemClock
from mesh.membership import Instance
from router.policy.affinity import affinity_hash
from router.policy.scoring import Table
from seedance.protocol.binary_codec import (
    ClientDecoder,
    ClientEncoder,
    ServerDecoder,
    ServerEncoder,
)
from seedance.protocol.delivery import SessionRules
from seedance.protocol.effects import Send
from seedance.protocol.events import FromInstance, LinkUp, Pump, UpstreamAccepted, UpstreamTokens
from seedance.protocol.frames import Ack, Generate, SessionFrame, Token
from seedance.protocol.json_codec import decode_client, decode_server, encode_server
from seedance.protocol.request import ChatMessage, GenerateRequest
from seedance.protocol.session import SessionMachine

__all__ = ["CASES"]

TOKEN_TEXT = b" quantum"
STREAMS = 64
INSTANCES = 64
ACK_EVERY = 8


def _encode(count: int) -> None:
    for seq in range(count):
        encode_server(Token("s1", seq * 8, " quantum", 1_760_000_000_000), seq + 1)


def _decode_ack(count: int) -> None:
    for _ in range(count):
        decode_client('{"type":"ack","seq":4711}')


def _binary_frames(count: int) -> Iterator[list[tuple[Token, int]]]:
    for seq in range(count):
        timestamp = 1_760_000_000_000 + 6 * seq
        yield [(Token("s1", seq * 8, " quantum", timestamp), seq + 1)]


def _encode_binary(count: int, *, compressed: bool) -> None:
    """One token an envelope, as a single chat has it."""
    encoder = ServerEncoder(compressed=compressed)
    for tick in _binary_frames(count):
        encoder.encode(tick)


def _round_trip_binary(count: int, *, compressed: bool) -> None:
    encoder, decoder = ServerEncoder(compressed=compressed), ServerDecoder(compressed=compressed)
    for tick in _binary_frames(count):
        for message in encoder.encode(tick):
            list(decoder.feed(message))


def _round_trip_json(count: int) -> None:
    for [(frame, seq)] in _binary_frames(count):
        decode_server(encode_server(frame, seq))


def _decode_binary_ack(count: int) -> None:
    message = ClientEncoder(compressed=False).encode([Ack(4711)])
    decoder = ClientDecoder(compressed=False)
    for _ in range(count):
        for frames in decoder.feed(message):
            list(frames)


def _session(count: int) -> None:
    """One stream through the session machine: a token in, a numbered frame out, acks now and then."""
    machine = SessionMachine("s", SessionRules(), 0.0)
    hello = SessionFrame("s", "t", 1, "local", "token", "g", (), 120)
    machine.step(LinkUp(hello, windowed=True), 0.0)
    request = GenerateRequest(messages=(ChatMessage("user", "x"),))
    machine.step(Generate("s1", request), 0.0)
    accepted = UpstreamAccepted("i", "m", 1, count, 1, 0)
    machine.step(FromInstance("s1", accepted), 0.0)
    last = 0
    for index in range(count):
        offset = index * len(TOKEN_TEXT)
        tokens = UpstreamTokens((index,), index, TOKEN_TEXT, offset, 0)
        machine.step(FromInstance("s1", tokens), 0.0)
        for effect in machine.step(Pump(), 0.0):
            if isinstance(effect, Send) and effect.seq is not None:
                last = effect.seq
        if index % ACK_EVERY == 0:
            machine.step(Ack(last + 1), 0.0)


def _engine(count: int) -> None:
    """The script engine without threads: schedule, sample, detokenize, emit for 64 streams."""
    tokens = [base64.b64encode(TOKEN_TEXT).decode()]
    content = json.dumps({"tokens_b64": tokens, "dt_ms": 0, "repeat": max(1, count // STREAMS)})
    request = GenerateRequest(messages=(ChatMessage("user", content),))
    clock = SystemClock()
    engine = Engine(ScriptRunner(script_info()), EngineLimits(), clock)
    now = clock.monotonic()
    preparer = ScriptPreparer()
    numbers = counter(1)
    for _ in range(STREAMS):
        number = next(numbers)
        engine.apply(
            [
                Open(
                    stream=StreamKey(1, number),
                    generation=f"g{number}",
                    request=request,
                    prepared=preparer.prepare(request),
                    marks=Marks(now, now, now),
                )
            ]
        )
    while engine.step() is not None:
        pass
    assert engine.token_count >= count - STREAMS  # noqa: S101 - a bench that measures nothing says so


_TABLE = Table(
    Instance(id=f"inference-{i}", address="127.0.0.1:1", models=("m",)) for i in range(INSTANCES)
)


def _choose(count: int) -> None:
    for index in range(count):
        _TABLE.choose(affinity_hash(f"user-{index}", "Generate"))


def _path(name: str, streams: int, tokens: int, messages: int = 1) -> Case:
    path = PathCase(streams, tokens, messages)
    count = 16 * streams * tokens * messages
    return Case(name, "token", count, path.run, path.prepare, path.finish)


CASES = (
    Case("encode a token frame", "frame", 50_000, _encode),
    Case("decode an ack", "frame", 50_000, _decode_ack),
    Case("encode a token frame, proto", "frame", 20_000, partial(_encode_binary, compressed=False)),
    Case(
        "encode a token frame, proto.zstd",
        "frame",
        20_000,
        partial(_encode_binary, compressed=True),
    ),
    Case("encode and decode a token frame, json", "frame", 20_000, _round_trip_json),
    Case(
        "encode and decode a token frame, proto",
        "frame",
        20_000,
        partial(_round_trip_binary, compressed=False),
    ),
    Case(
        "encode and decode a token frame, proto.zstd",
        "frame",
        20_000,
        partial(_round_trip_binary, compressed=True),
    ),
    Case("decode an ack, proto", "frame", 20_000, _decode_binary_ack),
    Case("session machine, token in to numbered frame out", "token", 20_000, _session),
    _path("gateway, 64 streams, a token a frame", 64, 1),
    _path("gateway, 512 streams, a token a frame", 512, 1),
    _path("gateway, 64 streams, 16 tokens a message", 64, 16),
    _path("gateway, 64 streams, 16 messages a frame", 64, 1, 16),
    _path("gateway, 512 streams, 4 messages a frame", 512, 1, 4),
    Case("engine policy, 64 streams", "token", 20_000, _engine),
    Case("choose among 64 instances", "choice", 500, _choose),
)
