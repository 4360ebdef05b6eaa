"""Usage events on disk until metering's ledger has them: what is written survives the process.

A folder of segments, appended to and never changed, each locked by the gateway that writes it. A
record is its length and CRC-32 (little-endian), then an event's JSON. A segment goes when all its
events are in the ledger; one whose gateway is gone is taken up by the next that starts on the folder.

`append` hands records to the operating system, so that a killed gateway loses none of them;
`sync` puts them on the disk, so that a power cut loses none that are older than the last one.
Synchronous: called in a thread, by one caller at a time.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.store.base import UsageEvent

__all__ = ["SPOOL_BYTES_MAX", "Spool", "SpoolFullError"]

log = logging.getLogger("gateway")

SEGMENT_BYTES_MAX = 4 * 1024 * 1024
# A million events and more; over it events are in memory only.
SPOOL_BYTES_MAX = 512 * 1024 * 1024
# A segment has its name long before it is so old, however slow the disk is.
UNNAMED_MAX_S = 60.0
RECORD_BYTES_MAX = 1024 * 1024
_HEAD = struct.Struct("<II")
_PATTERN = "usage-*.spool"


class SpoolFullError(Exception):
    """The spool has its greatest size, or the disk takes no more."""


@dataclass(slots=True)
class _Segment:
    path: Path
    fd: int
    size: int = 0
    events: int = 0
    settled: int = 0


class Spool:
    """The segments of one gateway in `folder`. Raises `OSError` when the folder cannot be used."""

    def __init__(self, folder: Path, gateway: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.gateway = gateway
        self._numbers = itertools.count()
        self._segments: dict[int, _Segment] = {}
        self._current = self._begin()
        self._clear_unnamed()
        self._dirty = False
        self._torn = False

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments.values())

    def append(self, events: Sequence[UsageEvent]) -> int:
        """Write events; returns the number of their segment. Raises `SpoolFullError`."""
        data = b"".join(
            _HEAD.pack(len(e.payload), zlib.crc32(e.payload)) + e.payload for e in events
        )
        if self.size + len(data) > SPOOL_BYTES_MAX:
            raise SpoolFullError
        try:
            segment = self._with_room_for(len(data))
            _write(segment.fd, data)
        except OSError as error:
            self._torn = True
            raise SpoolFullError from error
        segment.size += len(data)
        segment.events += len(events)
        self._dirty = True
        return self._current

    def _with_room_for(self, length: int) -> _Segment:
        segment = self._segments[self._current]
        if self._torn:
            # What was written of a record that failed is a torn tail; nothing may follow that.
            os.ftruncate(segment.fd, segment.size)
            self._torn = False
        if segment.size and segment.size + length > SEGMENT_BYTES_MAX:
            self.sync()
            self._current = self._begin()
            segment = self._segments[self._current]
        return segment

    def sync(self) -> None:
        """Put on the disk what was appended. A disk that fails is told of, and changes nothing."""
        if self._dirty:
            self._dirty = False
            try:
                os.fdatasync(self._segments[self._current].fd)
            except OSError as error:
                log.warning("the usage spool is not on the disk: %s", error.strerror)

    def settle(self, number: int) -> None:
        """One more event of the segment is in the ledger. A disk that fails is told of, no more."""
        segment = self._segments[number]
        segment.settled += 1
        if segment.settled < segment.events:
            return
        try:
            if number == self._current:
                os.ftruncate(segment.fd, 0)
                segment.size = segment.events = segment.settled = 0
            else:
                self._drop(number)
        except OSError as error:
            log.warning("the usage spool keeps what the ledger has: %s", error.strerror)

    def left_behind(self) -> Iterator[tuple[Path, list[UsageEvent]]]:
        """Segments of gateways that are gone, and their events; `forget` each when they are kept anew."""
        mine = {segment.path for segment in self._segments.values()}
        for path in sorted(self._folder.glob(_PATTERN)):
            if path in mine:
                continue
            # Another gateway on this folder may have taken it up, and deleted it, meanwhile.
            with suppress(FileNotFoundError), path.open("rb") as file:
                if _lock(file.fileno()):
                    yield path, list(_read(path, file.read()))

    def forget(self, path: Path) -> None:
        """Delete a segment that was left behind."""
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go: what is not in the ledger stays for the next gateway on this folder."""
        self.sync()
        for number, segment in list(self._segments.items()):
            if segment.settled == segment.events:
                self._drop(number)
            else:
                os.close(segment.fd)
        self._segments.clear()

    def _begin(self) -> int:
        number = next(self._numbers)
        path = self._folder / f"usage-{self.gateway}-{number}.spool"
        unseen = path.with_suffix(".new")
        fd = os.open(unseen, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # Locked before it has its name: who finds one without a lock takes it for a dead gateway's.
        _lock(fd)
        unseen.rename(path)
        self._segments[number] = _Segment(path, fd)
        return number

    def _clear_unnamed(self) -> None:
        """Delete what gateways left that were killed before a segment had its name: nothing is in it."""
        now = self._segments[self._current].path.stat().st_mtime
        for path in self._folder.glob("usage-*.new"):
            with suppress(
                OSError
            ):  # its gateway lives and has named it meanwhile, or another one was here
                if now - path.stat().st_mtime > UNNAMED_MAX_S:
                    path.unlink()

    def _drop(self, number: int) -> None:
        segment = self._segments.pop(number)
        try:
            segment.path.unlink(missing_ok=True)
        finally:
            os.close(segment.fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read(path: Path, data: bytes) -> Iterator[UsageEvent]:
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + _HEAD.size + length]
        if length > RECORD_BYTES_MAX or len(payload) < length or zlib.crc32(payload) != checksum:
            break
        yield UsageEvent(json.loads(payload)["id"], payload)
        at += _HEAD.size + length
    if at < len(data):
        log.warning("the usage spool %s ends in %d bytes of no event", path.name, len(data) - at)
