"""A frame's protobuf message from its JSON body and back: they have the same field names (§3, §5).

So both forms mean the same by construction, and one decoder judges both. What the names do not say
(a stream's number, a packed list) is said where the frame is put together.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from google.protobuf.message import Message

from seedance.protocol.json_codec import encodable

__all__ = ["body_of", "fill"]


def fill(message: Message, body: Mapping[str, Any]) -> None:
    """Set the fields of `message` that `body` has; what `message` has no field for is left out."""
    message.SetInParent()
    for name, value in body.items():
        if name in message.DESCRIPTOR.fields_by_name:
            _put(message, name, value)


def _put(message: Message, name: str, value: Any) -> None:
    target = getattr(message, name)
    if isinstance(target, Message):
        fill(target, value)
    elif isinstance(target, MutableMapping):
        target.update(value)
    elif isinstance(target, MutableSequence):
        _extend(target, value)
    elif isinstance(target, bytes):
        setattr(message, name, bytes(value))
    else:
        setattr(message, name, encodable(value) if isinstance(value, str) else value)


def _extend(target: Any, values: Sequence[Any]) -> None:
    if values and isinstance(values[0], Mapping):
        for value in values:
            fill(target.add(), value)
    else:
        target.extend(encodable(value) if isinstance(value, str) else value for value in values)


def body_of(message: Message) -> dict[str, Any]:
    """The JSON body of a message, without the fields that can be absent and are."""
    return {
        field.name: _value(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(value: Any) -> Any:
    if isinstance(value, Message):
        return body_of(value)
    if isinstance(value, MutableMapping):
        # A JSON object has text for keys.
        return {str(key): item for key, item in value.items()}
    if isinstance(value, MutableSequence):
        return [_value(item) for item in value]
    return list(value) if isinstance(value, bytes) else value
