from seedance.v2 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CanaryPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CANARY_PHASE_UNSPECIFIED: _ClassVar[CanaryPhase]
    CANARY_PHASE_IDLE: _ClassVar[CanaryPhase]
    CANARY_PHASE_RUNNING: _ClassVar[CanaryPhase]
    CANARY_PHASE_ROLLED_BACK: _ClassVar[CanaryPhase]
CANARY_PHASE_UNSPECIFIED: CanaryPhase
CANARY_PHASE_IDLE: CanaryPhase
CANARY_PHASE_RUNNING: CanaryPhase
CANARY_PHASE_ROLLED_BACK: CanaryPhase

class RegisterRequest(_message.Message):
    __slots__ = ("instance", "leaving")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    leaving: bool
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., leaving: _Optional[bool] = ...) -> None: ...

class Instance(_message.Message):
    __slots__ = ("id", "address", "models", "instance_class", "weight", "draining", "load", "start_id", "load_age_ms", "context_length", "canary", "report", "prefixes", "lapsed")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_CLASS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    LOAD_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    LAPSED_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    models: _containers.RepeatedScalarFieldContainer[str]
    instance_class: str
    weight: float
    draining: bool
    load: _inference_pb2.InstanceLoad
    start_id: str
    load_age_ms: int
    context_length: int
    canary: bool
    report: int
    prefixes: PrefixDigest
    lapsed: bool
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., instance_class: _Optional[str] = ..., weight: _Optional[float] = ..., draining: _Optional[bool] = ..., load: _Optional[_Union[_inference_pb2.InstanceLoad, _Mapping]] = ..., start_id: _Optional[str] = ..., load_age_ms: _Optional[int] = ..., context_length: _Optional[int] = ..., canary: _Optional[bool] = ..., report: _Optional[int] = ..., prefixes: _Optional[_Union[PrefixDigest, _Mapping]] = ..., lapsed: _Optional[bool] = ...) -> None: ...

class PrefixDigest(_message.Message):
    __slots__ = ("marks",)
    MARKS_FIELD_NUMBER: _ClassVar[int]
    marks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, marks: _Optional[_Iterable[int]] = ...) -> None: ...

class CanaryState(_message.Message):
    __slots__ = ("revision", "phase", "share", "reason")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    revision: int
    phase: CanaryPhase
    share: int
    reason: str
    def __init__(self, revision: _Optional[int] = ..., phase: _Optional[_Union[CanaryPhase, str]] = ..., share: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CanaryTally(_message.Message):
    __slots__ = ("ended", "failed", "first_tokens")
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ended: int
    failed: int
    first_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ended: _Optional[int] = ..., failed: _Optional[int] = ..., first_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class CanaryCounts(_message.Message):
    __slots__ = ("canary", "stable")
    CANARY_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    canary: CanaryTally
    stable: CanaryTally
    def __init__(self, canary: _Optional[_Union[CanaryTally, _Mapping]] = ..., stable: _Optional[_Union[CanaryTally, _Mapping]] = ...) -> None: ...

class ReportCanaryRequest(_message.Message):
    __slots__ = ("gateway", "state", "counts")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    state: CanaryState
    counts: CanaryCounts
    def __init__(self, gateway: _Optional[str] = ..., state: _Optional[_Union[CanaryState, _Mapping]] = ..., counts: _Optional[_Union[CanaryCounts, _Mapping]] = ...) -> None: ...

class ReportCanaryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ControlCanaryRequest(_message.Message):
    __slots__ = ("share", "stop")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    share: int
    stop: str
    def __init__(self, share: _Optional[int] = ..., stop: _Optional[str] = ...) -> None: ...

class ControlCanaryResponse(_message.Message):
    __slots__ = ("state", "counts", "instances")
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    state: CanaryState
    counts: CanaryCounts
    instances: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Union[CanaryState, _Mapping]] = ..., counts: _Optional[_Union[CanaryCounts, _Mapping]] = ..., instances: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("lease_ms", "router_start_id")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    ROUTER_START_ID_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    router_start_id: str
    def __init__(self, lease_ms: _Optional[int] = ..., router_start_id: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("watcher",)
    WATCHER_FIELD_NUMBER: _ClassVar[int]
    watcher: str
    def __init__(self, watcher: _Optional[str] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("router_start_id", "revision", "instances", "lease_ms", "canary")
    ROUTER_START_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    router_start_id: str
    revision: int
    instances: _containers.RepeatedCompositeFieldContainer[Instance]
    lease_ms: int
    canary: CanaryState
    def __init__(self, router_start_id: _Optional[str] = ..., revision: _Optional[int] = ..., instances: _Optional[_Iterable[_Union[Instance, _Mapping]]] = ..., lease_ms: _Optional[int] = ..., canary: _Optional[_Union[CanaryState, _Mapping]] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("user", "method", "model", "instance_class", "exclude", "canary")
    USER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_CLASS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    user: str
    method: str
    model: str
    instance_class: str
    exclude: _containers.RepeatedScalarFieldContainer[str]
    canary: bool
    def __init__(self, user: _Optional[str] = ..., method: _Optional[str] = ..., model: _Optional[str] = ..., instance_class: _Optional[str] = ..., exclude: _Optional[_Iterable[str]] = ..., canary: _Optional[bool] = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ...) -> None: ...
