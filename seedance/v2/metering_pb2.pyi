from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetUsageRequest(_message.Message):
    __slots__ = ("tenant", "from_ms", "until_ms")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    from_ms: int
    until_ms: int
    def __init__(self, tenant: _Optional[str] = ..., from_ms: _Optional[int] = ..., until_ms: _Optional[int] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("tenant", "total", "models")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    total: UsageSum
    models: _containers.RepeatedCompositeFieldContainer[UsageSum]
    def __init__(self, tenant: _Optional[str] = ..., total: _Optional[_Union[UsageSum, _Mapping]] = ..., models: _Optional[_Iterable[_Union[UsageSum, _Mapping]]] = ...) -> None: ...

class UsageSum(_message.Message):
    __slots__ = ("model", "requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    def __init__(self, model: _Optional[str] = ..., requests: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...
