"""A file of settings is followed; a bad one changes nothing and is told once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from mesh.document import DocumentError
from mesh.watched_file import WatchedFile

LOG = logging.getLogger("test")


def number(text: bytes, name: str) -> int:
    if not text.isdigit():
        raise DocumentError(f"{name}:1: no number; write one")
    return int(text)


def test_a_changed_file_is_read_again_and_a_bad_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was read last and was good is in force, whatever happens to the file."""
    path = tmp_path / "n"
    path.write_text("1")
    file = WatchedFile(path, number, 8, LOG, "number")
    assert (file.value, file.refresh()) == (1, False)
    path.write_text("22")
    assert (file.refresh(), file.value) == (True, 22)
    path.write_text("three")
    assert [file.refresh(), file.refresh(), file.value] == [False, False, 22]
    (record,) = caplog.records
    assert record.getMessage() == "the number stays as it was: n:1: no number; write one"
    path.unlink()
    assert not file.refresh()
    assert file.value == 22


def test_a_file_that_is_moved_into_place_is_seen(tmp_path: Path) -> None:
    """Editors and deployments replace a file: same length, same second, another file."""
    path, fresh = tmp_path / "n", tmp_path / "fresh"
    path.write_text("1")
    file = WatchedFile(path, number, 8, LOG, "number")
    fresh.write_text("2")
    os.utime(path, ns=(5, 5))
    file.refresh()
    os.utime(fresh, ns=(5, 5))
    fresh.replace(path)
    assert file.refresh()
    assert file.value == 2


def test_the_first_reading_must_succeed(tmp_path: Path) -> None:
    """A process does not start on settings that it cannot read, and says why without a path."""
    with pytest.raises(DocumentError, match=r"^n: cannot be read \(No such file"):
        WatchedFile(tmp_path / "n", number, 8, LOG, "number")


def test_no_more_than_the_bound_is_read(tmp_path: Path) -> None:
    """Of a file without end one byte more than allowed is looked at."""
    path = tmp_path / "n"
    path.write_text("9" * 100)
    assert WatchedFile(path, number, 3, LOG, "number").value == 9999
