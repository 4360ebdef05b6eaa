from seedance.v2 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("instance", "leaving")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    leaving: bool
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., leaving: _Optional[bool] = ...) -> None: ...

class Instance(_message.Message):
    __slots__ = ("id", "address", "models", "instance_class", "weight", "draining", "load", "start_id", "load_age_ms", "context_length")
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
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., instance_class: _Optional[str] = ..., weight: _Optional[float] = ..., draining: _Optional[bool] = ..., load: _Optional[_Union[_inference_pb2.InstanceLoad, _Mapping]] = ..., start_id: _Optional[str] = ..., load_age_ms: _Optional[int] = ..., context_length: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("router_start_id", "revision", "instances", "lease_ms")
    ROUTER_START_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    router_start_id: str
    revision: int
    instances: _containers.RepeatedCompositeFieldContainer[Instance]
    lease_ms: int
    def __init__(self, router_start_id: _Optional[str] = ..., revision: _Optional[int] = ..., instances: _Optional[_Iterable[_Union[Instance, _Mapping]]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("user", "method", "model", "instance_class", "exclude")
    USER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_CLASS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    user: str
    method: str
    model: str
    instance_class: str
    exclude: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, user: _Optional[str] = ..., method: _Optional[str] = ..., model: _Optional[str] = ..., instance_class: _Optional[str] = ..., exclude: _Optional[_Iterable[str]] = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ...) -> None: ...
