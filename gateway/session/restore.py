"""A session's machine out of what a former owner left in the store (§4.5)."""

from __future__ import annotations

import json

from gateway.session.journal import Opening
from gateway.store.base import StoredSession, StoredStream
from seedance.protocol.frames import SEQUENCED, Accepted
from seedance.protocol.json_codec import decode_server
from seedance.protocol.log import Entry, FrameLog
from seedance.protocol.receipt import TextDigest
from seedance.protocol.session import SessionMachine, SessionRules
from seedance.protocol.stream import StreamMachine
from seedance.protocol.text import TextBuffer

__all__ = ["restore_machine"]


def restore_machine(
    stored: StoredSession, rules: SessionRules, now: float
) -> tuple[SessionMachine, dict[str, Opening]]:
    """The machine, and the openings of the streams that are live."""
    log = _log(stored, now)
    told = {entry.frame.id for entry in log if isinstance(entry.frame, Accepted)}
    live, openings, ended = {}, {}, {}
    for name, stream in stored.streams.items():
        if stream.ended is not None:
            ended[name] = json.loads(stream.ended)["fingerprint"]
        elif stream.opened:
            openings[name] = Opening.read(stream.opened, stream.instance)
            live[name] = _stream(stream, openings[name], told_accepted=name in told)
    machine = SessionMachine(stored.session, rules, now, log=log, live=live, ended=ended)
    return machine, openings


def _log(stored: StoredSession, now: float) -> FrameLog:
    entries = []
    for record in stored.entries:
        text = record.frame.decode()
        frame, _ = decode_server(text)
        if isinstance(frame, SEQUENCED):
            entries.append(Entry(frame, record.seq, text, now))
    return FrameLog(entries, stored.last_seq + 1)


def _stream(stored: StoredStream, opening: Opening, *, told_accepted: bool) -> StreamMachine:
    stream = StreamMachine(opening.wants, opening.fingerprint)
    digest = TextDigest(stored.text_state) if stored.text_state else None
    framed = stored.framed_bytes, stored.framed_tokens
    text = TextBuffer(stored.token_ids, *framed, digest, opening.prompt_tokens)
    # A client drops a second `accepted` silently (§4.5): tell it unless it surely was told.
    told_accepted = told_accepted or stored.framed_bytes > 0
    stream.restore(text, told_accepted=told_accepted, end=opening.end)
    return stream
