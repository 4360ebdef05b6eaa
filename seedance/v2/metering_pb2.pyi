from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InvoiceFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INVOICE_FORMAT_UNSPECIFIED: _ClassVar[InvoiceFormat]
    INVOICE_FORMAT_JSON: _ClassVar[InvoiceFormat]
    INVOICE_FORMAT_CSV: _ClassVar[InvoiceFormat]
    INVOICE_FORMAT_HTML: _ClassVar[InvoiceFormat]
INVOICE_FORMAT_UNSPECIFIED: InvoiceFormat
INVOICE_FORMAT_JSON: InvoiceFormat
INVOICE_FORMAT_CSV: InvoiceFormat
INVOICE_FORMAT_HTML: InvoiceFormat

class GetUsageRequest(_message.Message):
    __slots__ = ("tenant", "from_ms", "until_ms", "per_minute", "key", "ended_before_ms")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENDED_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    from_ms: int
    until_ms: int
    per_minute: bool
    key: str
    ended_before_ms: int
    def __init__(self, tenant: _Optional[str] = ..., from_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., per_minute: _Optional[bool] = ..., key: _Optional[str] = ..., ended_before_ms: _Optional[int] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("tenant", "total", "models", "minutes")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MINUTES_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    total: UsageSum
    models: _containers.RepeatedCompositeFieldContainer[UsageSum]
    minutes: _containers.RepeatedCompositeFieldContainer[MinuteSum]
    def __init__(self, tenant: _Optional[str] = ..., total: _Optional[_Union[UsageSum, _Mapping]] = ..., models: _Optional[_Iterable[_Union[UsageSum, _Mapping]]] = ..., minutes: _Optional[_Iterable[_Union[MinuteSum, _Mapping]]] = ...) -> None: ...

class MinuteSum(_message.Message):
    __slots__ = ("minute_ms", "sum")
    MINUTE_MS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    minute_ms: int
    sum: UsageSum
    def __init__(self, minute_ms: _Optional[int] = ..., sum: _Optional[_Union[UsageSum, _Mapping]] = ...) -> None: ...

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

class GetPlanRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class GetPlanResponse(_message.Message):
    __slots__ = ("found", "document")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    found: bool
    document: bytes
    def __init__(self, found: _Optional[bool] = ..., document: _Optional[bytes] = ...) -> None: ...

class ListInvoicesRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ListInvoicesResponse(_message.Message):
    __slots__ = ("invoices",)
    INVOICES_FIELD_NUMBER: _ClassVar[int]
    invoices: _containers.RepeatedCompositeFieldContainer[InvoiceHead]
    def __init__(self, invoices: _Optional[_Iterable[_Union[InvoiceHead, _Mapping]]] = ...) -> None: ...

class InvoiceHead(_message.Message):
    __slots__ = ("number", "month", "closed", "total", "currency")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MONTH_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    number: str
    month: str
    closed: bool
    total: str
    currency: str
    def __init__(self, number: _Optional[str] = ..., month: _Optional[str] = ..., closed: _Optional[bool] = ..., total: _Optional[str] = ..., currency: _Optional[str] = ...) -> None: ...

class GetInvoiceRequest(_message.Message):
    __slots__ = ("tenant", "month", "format")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MONTH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    month: str
    format: InvoiceFormat
    def __init__(self, tenant: _Optional[str] = ..., month: _Optional[str] = ..., format: _Optional[_Union[InvoiceFormat, str]] = ...) -> None: ...

class GetInvoiceResponse(_message.Message):
    __slots__ = ("document",)
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    document: bytes
    def __init__(self, document: _Optional[bytes] = ...) -> None: ...
