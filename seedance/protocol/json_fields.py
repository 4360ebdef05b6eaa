"""Typed fields out of decoded JSON, where every refusal names the field's path (contract §3).

A reader takes `(path, value)` and gives the checked value or raises `bad_request`. Ranges that
belong to a request are not judged here but by `check_request`, once for every way into the mesh.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from seedance.protocol.errors import CloseCode, ProtocolFault
from seedance.protocol.request import bad_field

__all__ = [
    "INTEGER_MAX",
    "Reader",
    "Repeated",
    "choice",
    "finite",
    "flag",
    "integer",
    "integer_from",
    "items",
    "number",
    "object_of",
    "parse_object",
    "read",
    "record",
    "required",
    "text",
]

INTEGER_MAX = 2**63 - 1
# Longer literals are refused unread: turning digits into a number takes quadratic time.
_INTEGER_DIGITS_MAX = 20
# A key of the peer's own making is cut to this many characters before an answer names it.
_KEY_SHOWN_MAX = 64

# `(path, value)` to the checked value.
Reader = Callable[[str, Any], Any]


class Repeated(dict[str, Any]):
    """An object in which a key stood more than once; `key` is the first such."""

    key = ""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) == len(pairs):
        return body
    counts = Counter(key for key, _ in pairs)
    repeated = Repeated(body)
    repeated.key = next(key for key, count in counts.items() if count > 1)
    return repeated


def _integer_literal(digits: str) -> float:
    # Infinity, as a float literal too large becomes by itself: no reader lets it pass.
    return int(digits) if len(digits) <= _INTEGER_DIGITS_MAX else math.inf


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_integer_literal)


def parse_object(message: str) -> dict[str, Any]:
    """The JSON object that a text message is.

    NaN and infinities get through here, to be refused by the reader of their field, by name.
    Raises `ProtocolFault` (4400) for anything but one JSON object.
    """
    try:
        body = _DECODER.decode(message)
    except (ValueError, RecursionError):
        raise ProtocolFault(CloseCode.PROTOCOL_ERROR, "a message must be JSON") from None
    if not isinstance(body, dict):
        raise ProtocolFault(CloseCode.PROTOCOL_ERROR, "a message must be a JSON object")
    return body


def _member(path: str, key: str) -> str:
    key = key[:_KEY_SHOWN_MAX]
    return f"{path}.{key}" if path else key


def required(body: Mapping[str, Any], name: str, reader: Reader, prefix: str = "") -> Any:
    """The field `name`, which may not be left out; `prefix` is the path of `body` with its dot."""
    if name not in body:
        raise bad_field(prefix + name, "given")
    return reader(prefix + name, body[name])


def read(body: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Those fields of `readers` that `body` has, read."""
    return {name: reader(name, body[name]) for name, reader in readers.items() if name in body}


def text(path: str, value: Any) -> str:
    """A string that every encoder after this one can encode (CASES 20)."""
    if not isinstance(value, str):
        raise bad_field(path, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad_field(path, "valid Unicode without lone surrogates") from None
    return value


def flag(path: str, value: Any) -> bool:
    """`true` or `false`."""
    if not isinstance(value, bool):
        raise bad_field(path, "true or false")
    return value


def finite(path: str, value: Any) -> float:
    """Any number of JSON, to be sent back as it is; `true` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise bad_field(path, "a finite number")
    return value


def number(path: str, value: Any) -> float:
    """A finite number; `true` is none."""
    # Past 64 bits an integer may not fit a float any more, and nothing here needs one.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -INTEGER_MAX <= value <= INTEGER_MAX
    ):
        raise bad_field(path, "a finite number")
    return value


def integer(path: str, value: Any) -> int:
    """An integer of at most 64 bits, written without fraction or exponent."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > INTEGER_MAX:
        raise bad_field(path, "an integer of at most 64 bits")
    return value


def integer_from(low: int) -> Reader:
    """A reader of integers not under `low`."""

    def reader(path: str, value: Any) -> int:
        if integer(path, value) < low:
            raise bad_field(path, f"an integer from {low}")
        return int(value)

    return reader


def choice(*allowed: str) -> Reader:
    """A reader of one of a few words."""

    def reader(path: str, value: Any) -> str:
        if text(path, value) not in allowed:
            raise bad_field(path, "one of " + ", ".join(allowed))
        return str(value)

    return reader


def items(reader: Reader) -> Reader:
    """A reader of lists whose items `reader` reads."""

    def list_reader(path: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise bad_field(path, "a list")
        return tuple(reader(f"{path}[{index}]", item) for index, item in enumerate(value))

    return list_reader


def record(path: str, value: Any) -> dict[str, Any]:
    """An object, each key once."""
    if not isinstance(value, dict):
        raise bad_field(path, "an object")
    if isinstance(value, Repeated):
        raise bad_field(_member(path, value.key), "given once")
    return value


def object_of(reader: Reader) -> Reader:
    """A reader of objects whose values `reader` reads, whatever the keys."""

    def object_reader(path: str, value: Any) -> dict[str, Any]:
        return {
            text(path, key): reader(_member(path, key), item)
            for key, item in record(path, value).items()
        }

    return object_reader
