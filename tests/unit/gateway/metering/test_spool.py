"""The spool: events on disk, whatever happens to the process that wrote them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from gateway.metering.spool import Spool, SpoolFullError
from gateway.store.base import UsageEvent


def event(name: str) -> UsageEvent:
    return UsageEvent(name, b'{"id":"%b"}' % name.encode())


def dead(spool: Spool) -> None:
    """Release the locks, as the system does for a process that is killed."""
    for segment in spool._segments.values():
        os.close(segment.fd)


def names_left(folder: Path) -> list[str]:
    spool = Spool(folder, "next")
    left = [e.id for _, events in spool.left_behind() for e in events]
    spool.close()
    return left


def test_what_a_dead_process_wrote_is_found(tmp_path: Path) -> None:
    """Without a sync or an end in good order; a living process's segments are not touched."""
    spool = Spool(tmp_path, "one")
    spool.append([event("a"), event("b")])
    assert names_left(tmp_path) == []
    dead(spool)
    assert names_left(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("torn", [1, 7, 8, 12])
def test_a_torn_tail_costs_the_torn_event_only(
    tmp_path: Path, torn: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A write that a power cut stopped is recognized by length and checksum, and said."""
    spool = Spool(tmp_path, "one")
    spool.append([event("a")])
    whole = spool.size
    spool.append([event("b")])
    (path,) = tmp_path.iterdir()
    os.truncate(path, whole + torn)
    dead(spool)
    with caplog.at_level(logging.WARNING):
        assert names_left(tmp_path) == ["a"]
    assert f"ends in {torn} bytes of no event" in caplog.text


def test_a_changed_byte_is_no_event(tmp_path: Path) -> None:
    """Nothing is billed of what the checksum does not vouch for."""
    spool = Spool(tmp_path, "one")
    spool.append([event("a"), event("b")])
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"x" + data[-1:])
    dead(spool)
    assert names_left(tmp_path) == ["a"]


def test_segments_go_when_all_their_events_are_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk holds what is not settled, and little more."""
    monkeypatch.setattr("gateway.metering.spool.SEGMENT_BYTES_MAX", 40)
    spool = Spool(tmp_path, "one")
    numbers = [spool.append([event(name)]) for name in "abc"]
    assert numbers == [0, 0, 1]
    spool.settle(0)
    assert len(list(tmp_path.iterdir())) == 2
    spool.settle(0)
    assert len(list(tmp_path.iterdir())) == 1
    spool.settle(1)
    assert spool.size == 0
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_the_spool_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over its greatest size it says so, and takes more when there is room again."""
    monkeypatch.setattr("gateway.metering.spool.SPOOL_BYTES_MAX", 40)
    spool = Spool(tmp_path, "one")
    spool.append([event("a"), event("b")])
    with pytest.raises(SpoolFullError):
        spool.append([event("c")])
    spool.settle(0)
    spool.settle(0)
    spool.append([event("c")])
    spool.close()


def test_a_disk_that_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a record is cut off before anything follows; trying for long opens no more files."""
    spool = Spool(tmp_path, "one")
    spool.append([event("a")])
    real = os.write

    def failing(fd: int, data: memoryview) -> int:
        real(fd, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gateway.metering.spool.os.write", failing)
    for _ in range(3):
        with pytest.raises(SpoolFullError):
            spool.append([event("b")])
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    spool.append([event("c")])
    dead(spool)
    assert names_left(tmp_path) == ["a", "c"]


def test_a_disk_that_takes_no_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that cannot be begun is a full spool, and one that cannot be deleted is no fault."""
    monkeypatch.setattr("gateway.metering.spool.SEGMENT_BYTES_MAX", 20)
    spool = Spool(tmp_path, "one")
    spool.append([event("a")])

    def failing(*_: object, **__: object) -> int:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr("gateway.metering.spool.os.open", failing)
        with pytest.raises(SpoolFullError):
            spool.append([event("b")])
    assert spool.append([event("b")]) != 0
    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", failing)
        spool.settle(0)
    spool.close()


def test_gateways_that_start_together_on_one_folder(tmp_path: Path) -> None:
    """A segment that another one takes up and deletes meanwhile is passed by; new ones are locked from the first."""
    for name in ("one", "two"):
        spool = Spool(tmp_path, name)
        spool.append([event(name)])
        dead(spool)
    first, second = Spool(tmp_path, "first"), Spool(tmp_path, "second")
    looking = first.left_behind()
    path, _ = next(looking)
    for taken, _ in second.left_behind():
        if taken != path:
            second.forget(taken)
    assert list(looking) == []
    first.close()
    second.close()


def test_what_was_never_named_is_cleared_away(tmp_path: Path) -> None:
    """A gateway that was killed while it began a segment leaves an empty file; one that is beginning is let alone."""
    for name, age_s in (("old", 3600), ("new", 1)):
        path = tmp_path / f"usage-{name}-0.new"
        path.touch()
        at = path.stat().st_mtime - age_s
        os.utime(path, (at, at))
    spool = Spool(tmp_path, "one")
    assert sorted(p.name for p in tmp_path.glob("*.new")) == ["usage-new-0.new"]
    spool.close()
