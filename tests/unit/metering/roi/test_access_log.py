"""Access logs are read exactly, and what is no line of one is counted."""

from __future__ import annotations

import re

import pytest

from metering.roi.access_log import LINE_LENGTH_MAX, Access, LogReader
from tests.support.access_lines import json_line, nginx_line

MIDNIGHT_MS = 1_793_491_200_000


def read(*lines: bytes, pattern: str = "", **names: str) -> tuple[list[Access], LogReader]:
    reader = LogReader(re.compile(pattern) if pattern else None, names)
    return list(reader.read(lines, "a.log")), reader


def test_json_line() -> None:
    """Every field, under its own name or the log's."""
    line = json_line(
        t="2026-11-01T08:00:00.5+08:00",
        time=None,
        rtt_ms="12.345",
        prompt_tokens=7,
        cached_tokens=2,
        completion_tokens=5,
    )
    (access,), _ = read(line, time="t")
    assert access == Access(MIDNIGHT_MS + 500, 200, 10, 1_000, 12_345, 7, 2, 5)


@pytest.mark.parametrize(
    ("time", "ms"),
    [
        (1780586634.1, 1_780_586_634_100),
        ("1780586634.1", 1_780_586_634_100),
        (1780586634, 1_780_586_634_000),
        (1780586634100, 1_780_586_634_100),
        ("2026-11-01", MIDNIGHT_MS),
        ("2026-11-01T00:00:00Z", MIDNIGHT_MS),
    ],
)
def test_moments_are_exact(time: object, ms: int) -> None:
    """CASES 94: an epoch with a fraction is the decimal that stands there, not a binary float."""
    (access,), _ = read(json_line(time=time))
    assert access.ended_ms == ms


@pytest.mark.parametrize(("more", "ms"), [("", None), (" 0.250", 250)])
def test_nginx_line(more: str, ms: int | None) -> None:
    """The combined format, with nginx's request time after it or without."""
    (access,), _ = read(nginx_line(more))
    assert (access.ended_ms, access.status, access.bytes) == (MIDNIGHT_MS, 200, 512)
    assert access.duration_ms == ms
    assert access.completion_tokens is None


def test_pattern_of_ones_own() -> None:
    """Groups are named as the fields are."""
    (access,), _ = read(
        b"429 took=0.5 at 12\n", pattern=r"(?P<status>\d+) took=(?P<seconds>\S+) at (?P<time>\d+)"
    )
    assert (access.status, access.duration_ms, access.ended_ms) == (429, 500, 12_000)


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"{\n",
        b"\xff\n",
        b"{" + b'"a":' + b"[" * 20_000 + b"\n",
        json_line(time="soon"),
        json_line(time=None),
        json_line(status="ok"),
        json_line(seconds=-1),
        json_line(bytes="1e9"),
        json_line(seconds=float("nan")),
        b'{"time": 1, "status": 200}' + b" " * LINE_LENGTH_MAX,
    ],
)
def test_line_that_is_none(line: bytes) -> None:
    """It is counted and named by file and number, and the others are read."""
    accesses, reader = read(json_line(), line, b"\n", json_line(), line)
    assert len(accesses) == 2
    assert (reader.bad_lines, reader.first_bad) == (2, "a.log:2")
