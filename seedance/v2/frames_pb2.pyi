from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FrameBatch(_message.Message):
    __slots__ = ("base_seq", "base_timestamp_ms", "frames")
    BASE_SEQ_FIELD_NUMBER: _ClassVar[int]
    BASE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    base_seq: int
    base_timestamp_ms: int
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, base_seq: _Optional[int] = ..., base_timestamp_ms: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("token", "json", "sequenced")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    SEQUENCED_FIELD_NUMBER: _ClassVar[int]
    token: TokenDelta
    json: bytes
    sequenced: bool
    def __init__(self, token: _Optional[_Union[TokenDelta, _Mapping]] = ..., json: _Optional[bytes] = ..., sequenced: _Optional[bool] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("stream", "id", "delta", "offset_skip", "timestamp_delta", "extra_tokens")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_SKIP_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_DELTA_FIELD_NUMBER: _ClassVar[int]
    EXTRA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    stream: int
    id: str
    delta: str
    offset_skip: int
    timestamp_delta: int
    extra_tokens: int
    def __init__(self, stream: _Optional[int] = ..., id: _Optional[str] = ..., delta: _Optional[str] = ..., offset_skip: _Optional[int] = ..., timestamp_delta: _Optional[int] = ..., extra_tokens: _Optional[int] = ...) -> None: ...
