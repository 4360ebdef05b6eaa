"""Server frames as batches (contract §5): the gateway writes them, a client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from google.protobuf.message import DecodeError

from seedance.protocol.differences import STREAMS_MAX, Chain, Streams
from seedance.protocol.envelope import corrupted
from seedance.protocol.frames import (
    SEQUENCED,
    Done,
    ErrorFrame,
    Flush,
    Ping,
    Pong,
    ServerFrame,
    Timing,
    Token,
    TokenLogprob,
)
from seedance.protocol.json_codec import encodable
from seedance.protocol.json_fields import parse_object
from seedance.protocol.json_server import server_body, server_frame
from seedance.protocol.message_body import body_of, fill
from seedance.v2.frames_pb2 import Frame, FrameBatch

__all__ = ["Numbered", "ServerBatchReader", "ServerBatchWriter", "put_time", "time_of"]

# A frame and its number, None for what has none.
Numbered = tuple[ServerFrame, int | None]

FRAMES_MAX = 256
# Parts leave room for what zstd adds to what it cannot compress.
PART_BYTES = 512 * 1024
# What a client puts together at most; the largest frame is a `done` with text and log-probabilities.
PARTS_BYTES_MAX = 8 * 1024 * 1024
_TIMINGS = tuple(Timing.__dataclass_fields__)
_US_PER_MS = 1000


def put_time(message: Any, t: Any) -> None:
    """Write the `t` of `ping` and `pong`, a number or None; an integer as one where it fits."""
    message.SetInParent()
    if isinstance(t, int) and -(2**63) <= t < 2**63:
        message.whole = t
    elif t is not None:
        message.real = t


def time_of(message: Any) -> dict[str, Any]:
    """The body of `ping` and `pong`."""
    which = message.WhichOneof("t")
    return {} if which is None else {"t": getattr(message, which)}


# ---------------------------------------------------------------- frames to payloads


class ServerBatchWriter:
    """Payloads of what is sent on one connection, in order."""

    def __init__(self) -> None:
        self._chain = Chain()

    def payloads(self, frames: Sequence[Numbered]) -> Iterator[bytes]:
        """The frames as one payload, or as few as there must be."""
        for run in self._runs(frames):
            batch = self._batch(run).SerializeToString()
            if len(batch) <= PART_BYTES:
                yield batch
                continue
            for at in range(0, len(batch), PART_BYTES):
                end = at + PART_BYTES
                yield FrameBatch(
                    part=batch[at:end], more_parts=end < len(batch)
                ).SerializeToString()

    def _runs(self, frames: Sequence[Numbered]) -> Iterator[list[Numbered]]:
        """Cut where numbers do not follow on: a frame that is sent again, or a full batch."""
        run: list[Numbered] = []
        expected = None
        for numbered in frames:
            seq = numbered[1]
            if len(run) == FRAMES_MAX or (seq is not None and expected not in (None, seq)):
                yield run
                run, expected = [], None
            run.append(numbered)
            expected = expected if seq is None else seq + 1
        if run:
            yield run

    def _batch(self, run: list[Numbered]) -> FrameBatch:
        batch = FrameBatch()
        self._base(batch, run)
        left = sum(type(frame) is Token for frame, _ in run)
        before = self._chain.token_stream
        streams: list[int] = []
        skips: list[int] = []
        extra: list[int] = []
        times: list[int] = []
        for frame, _ in run:
            if not isinstance(frame, Token):
                self._frame(batch, frame, left)
                continue
            left -= 1
            text = encodable(frame.delta)
            number = self._chain.token_stream = self._number(batch, frame.id)
            batch.delta.append(text)
            if frame.logprobs is not None:
                _put_logprobs(batch, len(times), frame)
            streams.append(number)
            size = len(text) if text.isascii() else len(text.encode())
            skips.append(self._skip(number, frame.offset, size))
            extra.append(frame.tokens - 1)
            times.append(frame.timestamp)
        if times:
            self._put_times(batch, times)
            if streams.count(before) != len(streams):
                batch.token_streams.extend(streams)
            if any(skips):
                batch.offset_skips.extend(skips)
            if any(extra):
                batch.extra_tokens.extend(extra)
        return batch

    def _base(self, batch: FrameBatch, run: list[Numbered]) -> None:
        numbers = [seq for _, seq in run if seq is not None]
        if numbers:
            if numbers[0] != self._chain.next_seq:
                batch.base_seq = numbers[0]
            self._chain.next_seq = numbers[-1] + 1

    def _number(self, batch: FrameBatch, stream_id: str) -> int:
        number = self._chain.streams.numbers.get(stream_id)
        if number is None:
            number = self._chain.streams.name(stream_id)
            batch.new_streams.append(encodable(stream_id))
        return number

    def _skip(self, number: int, offset: int, size: int) -> int:
        ends = self._chain.streams.text_end
        skip = offset - ends[number]
        ends[number] = offset + size
        return skip

    def _put_times(self, batch: FrameBatch, times: list[int]) -> None:
        first = times[0]
        change = self._chain.interval_change(first)
        if change is None:
            batch.base_timestamp_ms = first
        else:
            batch.interval_change_ms = change
        self._chain.begin(change, first)
        if times.count(first) != len(times):
            batch.elapsed_ms.append(0)
            batch.elapsed_ms.extend(b - a for a, b in pairwise(times))
            self._chain.timestamp = times[-1]

    def _frame(self, batch: FrameBatch, frame: ServerFrame, left: int) -> None:
        body = server_body(frame)
        message = batch.frames.add(tokens_after=left)
        kind = getattr(message, body["type"])
        if isinstance(frame, Ping | Pong):
            put_time(kind, frame.t)
            return
        if isinstance(frame, Flush):
            number = self._number(batch, frame.id)
            kind.offset_skip = self._skip(number, frame.offset, 0)
            kind.SetInParent()
            if number != self._chain.token_stream:
                message.stream = number
            return
        if isinstance(frame, Done):
            timing = body.pop("timing")
            kind.timing_us.extend(round(timing[name] * _US_PER_MS) for name in _TIMINGS)
            if frame.receipt is not None:
                body["receipt"] = json.dumps(frame.receipt)
            if frame.logprobs is not None:
                body["logprobs"] = {"entries": body["logprobs"]}
        if isinstance(frame, SEQUENCED) and frame.id is not None:
            message.stream = self._number(batch, frame.id)
            if isinstance(frame, Done | ErrorFrame):
                self._chain.streams.end(message.stream)
        fill(kind, _nested_session(body))


def _nested_session(body: dict[str, Any]) -> dict[str, Any]:
    # `resumed` has the fields of `session` beside its own; the message has them in one field.
    return {**body, "session": body} if body["type"] == "resumed" else body


def _put_logprobs(batch: FrameBatch, index: int, token: Token) -> None:
    entries = batch.logprobs.add(token=index).entries
    for entry in server_body(token)["logprobs"]:
        fill(entries.add(), entry)


# ---------------------------------------------------------------- payloads to frames


class ServerBatchReader:
    """Frames out of the payloads of one connection, in order."""

    def __init__(self) -> None:
        self._chain = Chain(Streams(kept=2 * STREAMS_MAX))
        self._parts = bytearray()

    def read(self, payload: bytes) -> list[Numbered]:
        """The frames that are whole with this payload.

        Raises `ProtocolFault` for what no server of this contract says.
        """
        batch = _parse(payload)
        if batch.part or batch.more_parts:
            if len(self._parts) + len(batch.part) > PARTS_BYTES_MAX:
                raise corrupted("a batch is larger than any frame")
            self._parts += batch.part
            if batch.more_parts:
                return []
            batch = _parse(bytes(self._parts))
            self._parts = bytearray()
        return self._frames(batch)

    def _frames(self, batch: FrameBatch) -> list[Numbered]:
        for stream_id in batch.new_streams:
            self._chain.streams.name(stream_id)
        if batch.base_seq:
            self._chain.next_seq = batch.base_seq
        tokens = self._tokens(batch)
        found: list[Numbered] = []
        left = len(batch.delta)
        for message in batch.frames:
            if message.tokens_after > left:
                raise corrupted("frames are out of order")
            found += (self._numbered(next(tokens)) for _ in range(left - message.tokens_after))
            left = message.tokens_after
            found.append(self._numbered(self._frame(message)))
        found += map(self._numbered, tokens)
        return found

    def _numbered(self, frame: ServerFrame) -> Numbered:
        if not isinstance(frame, SEQUENCED):
            return frame, None
        seq = self._chain.next_seq
        self._chain.next_seq += 1
        return frame, seq

    def _tokens(self, batch: FrameBatch) -> Iterator[Token]:
        count = len(batch.delta)
        if not count:
            return
        chain = self._chain
        change = None if batch.HasField("base_timestamp_ms") else batch.interval_change_ms
        timestamp = chain.begin(change, batch.base_timestamp_ms)
        elapsed = _column(batch.elapsed_ms, count)
        streams = _column(batch.token_streams, count, default=None)
        extra = _column(batch.extra_tokens, count)
        skips = _column(batch.offset_skips, count)
        logprobs = {item.token: item.entries for item in batch.logprobs}
        for index, delta in enumerate(batch.delta):
            number = chain.token_stream if streams[index] is None else streams[index]
            stream_id = chain.streams.id_of(number)
            offset = chain.streams.text_end[number] + skips[index]
            timestamp += elapsed[index]
            chain.streams.text_end[number] = offset + len(delta.encode())
            chain.token_stream, chain.timestamp = number, timestamp
            entries = logprobs.get(index)
            yield Token(
                stream_id,
                offset,
                delta,
                timestamp,
                extra[index] + 1,
                None if entries is None else tuple(_logprob(entry) for entry in entries),
            )

    def _frame(self, message: Frame) -> ServerFrame:
        kind = message.WhichOneof("kind")
        if kind is None:
            raise corrupted("not a frame that servers send")
        value = getattr(message, kind)
        body: dict[str, Any] = {"type": kind}
        if kind in {"ping", "pong"}:
            body |= time_of(value)
        elif kind == "flush":
            number = message.stream if message.HasField("stream") else self._chain.token_stream
            body["id"] = self._chain.streams.id_of(number)
            body["offset"] = self._chain.streams.text_end[number] + value.offset_skip
            self._chain.streams.text_end[number] = body["offset"]
        else:
            body |= _unpacked(kind, body_of(value))
            if message.HasField("stream"):
                body["id"] = self._chain.streams.id_of(message.stream)
                if kind in {"done", "error"}:
                    self._chain.streams.end(message.stream)
        return server_frame(body)[0]


def _parse(payload: bytes) -> FrameBatch:
    try:
        return FrameBatch.FromString(payload)
    except DecodeError:
        raise corrupted("a payload must be a FrameBatch") from None


def _column(values: Sequence[Any], count: int, default: int | None = 0) -> Sequence[Any]:
    if not values:
        return [default] * count
    if len(values) != count:
        raise corrupted("a column is as long as the others")
    return values


def _logprob(entry: Any) -> TokenLogprob:
    top = tuple(_logprob(alternative) for alternative in entry.top_logprobs)
    return TokenLogprob(entry.token, tuple(entry.bytes), entry.logprob, top)


def _unpacked(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body as JSON has it."""
    if kind == "resumed":
        return {**body, **body.get("session", {})}
    if kind == "done":
        times = body.pop("timing_us")
        body["timing"] = {name: us / _US_PER_MS for name, us in zip(_TIMINGS, times, strict=False)}
        if "receipt" in body:
            body["receipt"] = parse_object(body["receipt"])
        if "logprobs" in body:
            body["logprobs"] = body["logprobs"]["entries"]
    return body
