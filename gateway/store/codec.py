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
)

__all__ = [
    "SCRIPTS",
    "Argument",
    "commit_arguments",
    "pack_ids",
    "read_claimed",
    "session_key",
    "unpack_ids",
]

Argument = bytes | str | int

# How long after its latest renewal a session's keys are renewed again.
TTL_RENEW_MS = 10_000

SCRIPTS = {
    name: (resources.files("gateway.store") / "scripts" / f"{name}.lua").read_text()
    for name in ("claim", "commit", "due", "watch")
}


def session_key(session: str) -> str:
    """The session's hash; the braces keep all its keys on one node of a cluster."""
    return f"seedance:{{{session}}}"


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids, 4 bytes each, little-endian."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """The inverse of `pack_ids`."""
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def commit_arguments(write: SessionWrite, resume_ttl_s: float) -> list[Argument]:
    """`ARGV` of commit.lua."""
    mode = "close" if write.closed else "rewrite" if write.rewrite else "write"
    silence_s = 0.0 if write.detached else OWNER_SILENCE_S
    arguments: list[Argument] = [
        mode,
        write.epoch,
        round((resume_ttl_s + KEEP_S) * 1000),
        round((resume_ttl_s + silence_s) * 1000),
        TTL_RENEW_MS,
        ENDS_KEPT_MAX,
        write.created or b"",
        write.acked,
        len(write.entries),
    ]
    for entry in write.entries:
        arguments += (entry.seq, entry.frame)
    arguments.append(len(write.streams))
    for stream in write.streams:
        arguments += (
            stream.id.encode(errors="surrogatepass"),
            stream.opened or b"",
            stream.instance or "",
            pack_ids(stream.token_ids),
            stream.framed_bytes,
            # The counters stand in one field of the hash, and the text's hash beside them.
            f"{stream.framed_tokens} {stream.text_state.hex()}".rstrip(),
            stream.ended or b"",
        )
    return arguments


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
    )
