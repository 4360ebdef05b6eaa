"""Session writes to store commands and replies back: the arguments of `scripts/*.lua`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from importlib import resources

from gateway.store.base import (
    ENDS_KEPT_MAX,
    KEEP_S,
    OWNER_SILENCE_S,
    LogEntry,
    SessionWrite,
    StoredSession,
    StoredStream,
    StreamWrite,
)
from mesh.store_link import Argument

__all__ = [
    "SCRIPTS",
    "USAGE_EVENTS_MAX",
    "commit_arguments",
    "pack_ids",
    "read_claimed",
    "unpack_ids",
]

# Usage events wait in their stream while metering is away; about this many are kept.
USAGE_EVENTS_MAX = 1_000_000
# How long after its latest renewal a session's keys are renewed again.
TTL_RENEW_MS = 10_000

SCRIPTS = {
    name: (resources.files("gateway.store") / "scripts" / f"{name}.lua").read_text()
    for name in ("claim", "commit", "due", "watch")
}


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids, 4 bytes each, little-endian."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """The inverse of `pack_ids`."""
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def commit_arguments(
    writes: Sequence[SessionWrite], resume_ttl_s: float, gateway: str = ""
) -> list[Argument]:
    """`ARGV` of commit.lua."""
    keep_ms = round((resume_ttl_s + KEEP_S) * 1000)
    deadline_ms = round((resume_ttl_s + OWNER_SILENCE_S) * 1000)
    detached_ms = round(resume_ttl_s * 1000)
    arguments: list[Argument] = [keep_ms, TTL_RENEW_MS, ENDS_KEPT_MAX, USAGE_EVENTS_MAX, gateway]
    for write in writes:
        head = len(arguments)
        arguments += ("", write.created or b"")
        for bill in write.bills:
            arguments += (_raw(bill.id), bill.payload)
        arguments += [b"%d:%b" % (entry.seq, entry.frame) for entry in write.entries]
        for stream in write.streams:
            arguments += _stream_arguments(stream)
        mode = "close" if write.closed else "rewrite" if write.rewrite else "write"
        arguments[head] = (
            f"{mode} {write.epoch} {detached_ms if write.detached else deadline_ms} {write.acked} "
            f"{len(arguments) - head - 1} {len(write.bills)} {len(write.entries)} {len(write.streams)}"
        )
    return arguments


def _stream_arguments(stream: StreamWrite) -> tuple[Argument, ...]:
    name = _raw(stream.id)
    if stream.ended is not None:
        return (name, "e", stream.ended)
    # The counters stand in one field of the hash, and the text's hash beside them.
    framed = f"{stream.framed_bytes} {stream.framed_tokens} {stream.text_state.hex()}".rstrip()
    ids = pack_ids(stream.token_ids)
    if stream.opened is None and stream.instance is None:
        return (name, "r " + framed, ids)
    return (name, "o " + framed, ids, stream.opened or b"", stream.instance or "")


def _raw(name: str) -> bytes:
    # A client's id may hold what has no encoding (CASES 20).
    return name.encode(errors="surrogatepass")


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _entry(item: bytes) -> LogEntry:
    seq, _, frame = item.partition(b":")
    return LogEntry(int(seq), frame)


def read_claimed(
    session: str, epoch: int, fields: list[bytes], log: list[bytes], tokens: list[bytes]
) -> StoredSession:
    """The session in a `claimed` reply of claim.lua."""
    known = dict(_pairs(fields))
    streams: dict[str, StoredStream] = {}
    for field, value in known.items():
        if field.startswith(b"e:"):
            ended_id = field[2:].decode(errors="surrogatepass")
            streams[ended_id] = StoredStream(ended_id, b"", "", (), 0, 0, value)
    for raw_id, packed in _pairs(tokens):
        stream_id = raw_id.decode(errors="surrogatepass")
        framed_bytes, framed_tokens, *state = known[b"f:" + raw_id].split()
        streams[stream_id] = StoredStream(
            id=stream_id,
            opened=known[b"o:" + raw_id],
            instance=known.get(b"i:" + raw_id, b"").decode(),
            token_ids=unpack_ids(packed),
            framed_bytes=int(framed_bytes),
            framed_tokens=int(framed_tokens),
            text_state=bytes.fromhex(state[0].decode()) if state else b"",
        )
    return StoredSession(
        session=session,
        epoch=epoch,
        created=known[b"created"],
        last_seq=int(known[b"last_seq"]),
        acked=int(known[b"acked"]),
        entries=tuple(_entry(item) for item in log),
        streams=streams,
        former=known.get(b"gateway", b"").decode(),
        since=int(known.get(b"since", 0)),
    )
