"""Where a session goes on after `resume` (§4.5): what is replayed, and whose text cannot be exact."""

from __future__ import annotations

from collections.abc import Mapping

from seedance.protocol.errors import CloseCode, ErrorCode, SeedanceError
from seedance.protocol.frames import Resume, Token
from seedance.protocol.log import FrameLog
from seedance.protocol.stream import StreamMachine
from seedance.protocol.text import TextGapError

__all__ = ["ResumeFault", "check_resume", "gap", "place_streams", "unknown_session"]

# What a client may claim to have after a change of gateways. Whatever is numbered from there on in
# a session's life is exact as a double, in clients and in the store's scripts (14 digits).
SEQ_MAX = 2**46


class ResumeFault(Exception):  # noqa: N818 - it is the client's word that is at fault
    """The session cannot go on from there: the error for the client, and how the connection ends."""

    def __init__(self, error: SeedanceError, close_code: CloseCode) -> None:
        super().__init__(error.message)
        self.error = error
        self.close_code = close_code


def unknown_session() -> ResumeFault:
    """It never was, is over, or is somebody else's: which of them is nobody's business."""
    gone = SeedanceError(ErrorCode.SESSION_EXPIRED, "no such session: open a new one")
    return ResumeFault(gone, CloseCode.SESSION_UNKNOWN)


def gap(message: str, field: str) -> SeedanceError:
    """The `resume_gap` that names a field of `resume`."""
    return SeedanceError(ErrorCode.RESUME_GAP, message, field=field)


def check_resume(resume: Resume, log: FrameLog, *, restored: bool) -> None:
    """Whether `last_seq` is a place to go on from. Raises `ResumeFault`.

    `restored`: the log may be behind what the client has, since it comes from the store or another
    gateway may have gone on with the session: then a higher number is the truth.
    """
    highest = SEQ_MAX if restored else log.last_seq
    if resume.last_seq > highest:
        raise ResumeFault(
            SeedanceError(
                ErrorCode.BAD_REQUEST,
                f"`last_seq` must be at most {highest}, the last number sent",
                field="last_seq",
            ),
            CloseCode.PROTOCOL_ERROR,
        )
    if resume.last_seq + 1 < log.base:
        raise ResumeFault(
            gap(f"frames below {log.base} were acknowledged and are gone", "last_seq"),
            CloseCode.SESSION_UNKNOWN,
        )


def _offset_after(last_seq: int, log: FrameLog, stream: StreamMachine) -> int:
    """How much text a client has that processed everything up to `last_seq`."""
    for entry in log:
        frame = entry.frame
        if entry.seq > last_seq and isinstance(frame, Token) and frame.id == stream.id:
            return frame.offset
    return stream.text.framed_bytes


def place_streams(
    resume: Resume, log: FrameLog, streams: Mapping[str, StreamMachine]
) -> dict[str, SeedanceError]:
    """Tell each live stream what the client has of it; returns those that cannot go on exactly."""
    faults = {}
    for name, stream in streams.items():
        has = resume.offsets.get(name)
        expected = _offset_after(resume.last_seq, log, stream)
        if has is None or has == expected:
            continue
        ahead = has > expected == stream.text.framed_bytes
        try:
            if has >= 0 and not ahead:
                raise TextGapError  # noqa: TRY301 - both ways of not fitting have one answer
            stream.client_has(has)
        except TextGapError:
            faults[name] = gap(f"`offsets.{name}` does not lie where `last_seq` is", "offsets")
    return faults
