"""Access logs, line by line: JSON objects, nginx's combined format, or a pattern of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

__all__ = ["COMBINED", "FIELDS", "LINE_LENGTH_MAX", "Access", "LogReader"]

LINE_LENGTH_MAX = 64 * 1024
# What a line can tell. `time` and `status` it must.
FIELDS = (
    *("time", "status", "bytes", "seconds", "rtt_ms"),
    *("prompt_tokens", "cached_tokens", "completion_tokens"),
)
# Combined, with `$request_time` after it when there is one.
COMBINED = re.compile(
    r'\S+ \S+ \S+ \[(?P<time>[^\]]+)\] "(?:[^"\\]|\\.)*" (?P<status>\d{3}) (?P<bytes>\d+|-)'
    r'(?: "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*")?(?: (?P<seconds>\d+(?:\.\d+)?))?\s*'
)
_COMBINED_TIME = "%d/%b/%Y:%H:%M:%S %z"
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,12})?")
_THOUSAND = Decimal(1000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Access:
    """One request: when it ended, what it took. None: the line does not say."""

    ended_ms: int
    status: int
    bytes: int | None
    duration_ms: int | None
    rtt_us: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


class LogReader:
    """Reads lines and counts those that it does not understand.

    `pattern` has groups named as `FIELDS`; without one, lines that begin with `{` are JSON and
    others combined. `names`: a field's key in JSON where it is called otherwise.
    """

    def __init__(self, pattern: re.Pattern[str] | None, names: Mapping[str, str]) -> None:
        self._pattern = pattern
        self._names = {field: names.get(field, field) for field in FIELDS}
        self.bad_lines = 0
        self.first_bad = ""

    def read(self, lines: Iterable[bytes], name: str) -> Iterator[Access]:
        """The requests of one file, called `name`."""
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield self._access(line)
            except (ValueError, ArithmeticError, RecursionError):
                self.bad_lines += 1
                self.first_bad = self.first_bad or f"{name}:{number}"

    def _access(self, line: bytes) -> Access:
        if len(line) > LINE_LENGTH_MAX:
            raise ValueError("too long")
        told = self._told(line.decode())
        seconds, rtt_ms = (_number(told.get(name)) for name in ("seconds", "rtt_ms"))
        counts = [
            _count(told.get(n)) for n in ("prompt_tokens", "cached_tokens", "completion_tokens")
        ]
        return Access(
            _moment_ms(told["time"]),
            int(_number(told["status"]) or 0),
            _count(told.get("bytes")),
            None if seconds is None else round(seconds * _THOUSAND),
            None if rtt_ms is None else round(rtt_ms * _THOUSAND),
            *counts,
        )

    def _told(self, line: str) -> dict[str, str]:
        if self._pattern is None and line.startswith("{"):
            # Numbers stay the letters that they are: 1780586634.1 is no binary float.
            read = json.loads(line, parse_float=str, parse_int=str)
            keys = {f: key for f, key in self._names.items() if read.get(key) is not None}
            told = {field: str(read[key]) for field, key in keys.items()}
        else:
            found = (self._pattern or COMBINED).fullmatch(line.rstrip("\r\n"))
            if found is None:
                raise ValueError("no such line")
            told = {field: text for field, text in found.groupdict().items() if text is not None}
        if not {"time", "status"} <= told.keys():
            raise ValueError("no time or no status")
        return told


def _number(text: str | None) -> Decimal | None:
    if text is None or text == "-":
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    return Decimal(text)


def _count(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _moment_ms(text: str) -> int:
    """Epoch seconds (or milliseconds, from 10^11 on), ISO 8601, or nginx's local time."""
    if _NUMBER.fullmatch(text):
        number = Decimal(text)
        return round(number if number >= 10**11 else number * _THOUSAND)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.strptime(text, _COMBINED_TIME)  # noqa: DTZ007 - %z is in it
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
