from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FrameBatch(_message.Message):
    __slots__ = ("delta", "interval_change_ms", "frames", "token_streams", "base_seq", "base_timestamp_ms", "new_streams", "elapsed_ms", "extra_tokens", "offset_skips", "logprobs", "part", "more_parts")
    class TokenLogprobs(_message.Message):
        __slots__ = ("token", "entries")
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        ENTRIES_FIELD_NUMBER: _ClassVar[int]
        token: int
        entries: _containers.RepeatedCompositeFieldContainer[Frame.Logprob]
        def __init__(self, token: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Frame.Logprob, _Mapping]]] = ...) -> None: ...
    DELTA_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_CHANGE_MS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_STREAMS_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQ_FIELD_NUMBER: _ClassVar[int]
    BASE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    NEW_STREAMS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_SKIPS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    MORE_PARTS_FIELD_NUMBER: _ClassVar[int]
    delta: _containers.RepeatedScalarFieldContainer[str]
    interval_change_ms: int
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    token_streams: _containers.RepeatedScalarFieldContainer[int]
    base_seq: int
    base_timestamp_ms: int
    new_streams: _containers.RepeatedScalarFieldContainer[str]
    elapsed_ms: _containers.RepeatedScalarFieldContainer[int]
    extra_tokens: _containers.RepeatedScalarFieldContainer[int]
    offset_skips: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[FrameBatch.TokenLogprobs]
    part: bytes
    more_parts: bool
    def __init__(self, delta: _Optional[_Iterable[str]] = ..., interval_change_ms: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., token_streams: _Optional[_Iterable[int]] = ..., base_seq: _Optional[int] = ..., base_timestamp_ms: _Optional[int] = ..., new_streams: _Optional[_Iterable[str]] = ..., elapsed_ms: _Optional[_Iterable[int]] = ..., extra_tokens: _Optional[_Iterable[int]] = ..., offset_skips: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[FrameBatch.TokenLogprobs, _Mapping]]] = ..., part: _Optional[bytes] = ..., more_parts: _Optional[bool] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("tokens_after", "stream", "flush", "ack", "ping", "pong", "accepted", "done", "error", "checkpoint", "pressure", "generate", "cancel", "resume", "close", "session", "resumed", "goaway")
    class Generate(_message.Message):
        __slots__ = ("id", "model", "messages", "prompt", "stream", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "stop", "ignore_eos", "logprobs", "priority", "deadline_ms", "expected_tokens", "max_latency_ms", "on_disconnect", "receipt", "traceparent")
        class LogitBiasEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: int
            value: float
            def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
        ID_FIELD_NUMBER: _ClassVar[int]
        MODEL_FIELD_NUMBER: _ClassVar[int]
        MESSAGES_FIELD_NUMBER: _ClassVar[int]
        PROMPT_FIELD_NUMBER: _ClassVar[int]
        STREAM_FIELD_NUMBER: _ClassVar[int]
        MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
        MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
        TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
        TOP_P_FIELD_NUMBER: _ClassVar[int]
        TOP_K_FIELD_NUMBER: _ClassVar[int]
        MIN_P_FIELD_NUMBER: _ClassVar[int]
        PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
        FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
        REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
        LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        STOP_FIELD_NUMBER: _ClassVar[int]
        IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
        LOGPROBS_FIELD_NUMBER: _ClassVar[int]
        PRIORITY_FIELD_NUMBER: _ClassVar[int]
        DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
        EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
        MAX_LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
        ON_DISCONNECT_FIELD_NUMBER: _ClassVar[int]
        RECEIPT_FIELD_NUMBER: _ClassVar[int]
        TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
        id: str
        model: str
        messages: _containers.RepeatedCompositeFieldContainer[Frame.Message]
        prompt: str
        stream: bool
        max_tokens: int
        min_tokens: int
        temperature: float
        top_p: float
        top_k: int
        min_p: float
        presence_penalty: float
        frequency_penalty: float
        repetition_penalty: float
        logit_bias: _containers.ScalarMap[int, float]
        seed: int
        stop: _containers.RepeatedScalarFieldContainer[str]
        ignore_eos: bool
        logprobs: int
        priority: int
        deadline_ms: int
        expected_tokens: int
        max_latency_ms: int
        on_disconnect: str
        receipt: bool
        traceparent: str
        def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Frame.Message, _Mapping]]] = ..., prompt: _Optional[str] = ..., stream: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[int] = ..., priority: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., expected_tokens: _Optional[int] = ..., max_latency_ms: _Optional[int] = ..., on_disconnect: _Optional[str] = ..., receipt: _Optional[bool] = ..., traceparent: _Optional[str] = ...) -> None: ...
    class Message(_message.Message):
        __slots__ = ("role", "content")
        ROLE_FIELD_NUMBER: _ClassVar[int]
        CONTENT_FIELD_NUMBER: _ClassVar[int]
        role: str
        content: str
        def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...
    class Ack(_message.Message):
        __slots__ = ("seq", "sack")
        SEQ_FIELD_NUMBER: _ClassVar[int]
        SACK_FIELD_NUMBER: _ClassVar[int]
        seq: int
        sack: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, seq: _Optional[int] = ..., sack: _Optional[_Iterable[int]] = ...) -> None: ...
    class Cancel(_message.Message):
        __slots__ = ("id",)
        ID_FIELD_NUMBER: _ClassVar[int]
        id: str
        def __init__(self, id: _Optional[str] = ...) -> None: ...
    class Resume(_message.Message):
        __slots__ = ("session", "token", "last_seq", "offsets")
        class OffsetsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: int
            def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
        SESSION_FIELD_NUMBER: _ClassVar[int]
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        session: str
        token: str
        last_seq: int
        offsets: _containers.ScalarMap[str, int]
        def __init__(self, session: _Optional[str] = ..., token: _Optional[str] = ..., last_seq: _Optional[int] = ..., offsets: _Optional[_Mapping[str, int]] = ...) -> None: ...
    class Close(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Time(_message.Message):
        __slots__ = ("whole", "real")
        WHOLE_FIELD_NUMBER: _ClassVar[int]
        REAL_FIELD_NUMBER: _ClassVar[int]
        whole: int
        real: float
        def __init__(self, whole: _Optional[int] = ..., real: _Optional[float] = ...) -> None: ...
    class Session(_message.Message):
        __slots__ = ("session", "token", "epoch", "tenant", "heartbeat", "window", "resume_ttl", "mode", "server", "gateways")
        SESSION_FIELD_NUMBER: _ClassVar[int]
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        TENANT_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
        WINDOW_FIELD_NUMBER: _ClassVar[int]
        RESUME_TTL_FIELD_NUMBER: _ClassVar[int]
        MODE_FIELD_NUMBER: _ClassVar[int]
        SERVER_FIELD_NUMBER: _ClassVar[int]
        GATEWAYS_FIELD_NUMBER: _ClassVar[int]
        session: str
        token: str
        epoch: int
        tenant: str
        heartbeat: Frame.Heartbeat
        window: Frame.Window
        resume_ttl: float
        mode: str
        server: str
        gateways: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, session: _Optional[str] = ..., token: _Optional[str] = ..., epoch: _Optional[int] = ..., tenant: _Optional[str] = ..., heartbeat: _Optional[_Union[Frame.Heartbeat, _Mapping]] = ..., window: _Optional[_Union[Frame.Window, _Mapping]] = ..., resume_ttl: _Optional[float] = ..., mode: _Optional[str] = ..., server: _Optional[str] = ..., gateways: _Optional[_Iterable[str]] = ...) -> None: ...
    class Heartbeat(_message.Message):
        __slots__ = ("connection", "session", "stream")
        CONNECTION_FIELD_NUMBER: _ClassVar[int]
        SESSION_FIELD_NUMBER: _ClassVar[int]
        STREAM_FIELD_NUMBER: _ClassVar[int]
        connection: float
        session: float
        stream: float
        def __init__(self, connection: _Optional[float] = ..., session: _Optional[float] = ..., stream: _Optional[float] = ...) -> None: ...
    class Window(_message.Message):
        __slots__ = ("initial", "min", "max")
        INITIAL_FIELD_NUMBER: _ClassVar[int]
        MIN_FIELD_NUMBER: _ClassVar[int]
        MAX_FIELD_NUMBER: _ClassVar[int]
        initial: int
        min: int
        max: int
        def __init__(self, initial: _Optional[int] = ..., min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...
    class Resumed(_message.Message):
        __slots__ = ("from_seq", "session")
        FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
        SESSION_FIELD_NUMBER: _ClassVar[int]
        from_seq: int
        session: Frame.Session
        def __init__(self, from_seq: _Optional[int] = ..., session: _Optional[_Union[Frame.Session, _Mapping]] = ...) -> None: ...
    class Accepted(_message.Message):
        __slots__ = ("instance", "adopted_batch_size", "token_quota", "traceparent")
        INSTANCE_FIELD_NUMBER: _ClassVar[int]
        ADOPTED_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
        TOKEN_QUOTA_FIELD_NUMBER: _ClassVar[int]
        TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
        instance: str
        adopted_batch_size: int
        token_quota: int
        traceparent: str
        def __init__(self, instance: _Optional[str] = ..., adopted_batch_size: _Optional[int] = ..., token_quota: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...
    class Flush(_message.Message):
        __slots__ = ("offset_skip",)
        OFFSET_SKIP_FIELD_NUMBER: _ClassVar[int]
        offset_skip: int
        def __init__(self, offset_skip: _Optional[int] = ...) -> None: ...
    class Done(_message.Message):
        __slots__ = ("finish_reason", "usage", "timing_us", "text", "receipt", "logprobs")
        FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
        USAGE_FIELD_NUMBER: _ClassVar[int]
        TIMING_US_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        RECEIPT_FIELD_NUMBER: _ClassVar[int]
        LOGPROBS_FIELD_NUMBER: _ClassVar[int]
        finish_reason: str
        usage: Frame.Usage
        timing_us: _containers.RepeatedScalarFieldContainer[int]
        text: str
        receipt: str
        logprobs: Frame.Logprobs
        def __init__(self, finish_reason: _Optional[str] = ..., usage: _Optional[_Union[Frame.Usage, _Mapping]] = ..., timing_us: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., receipt: _Optional[str] = ..., logprobs: _Optional[_Union[Frame.Logprobs, _Mapping]] = ...) -> None: ...
    class Logprobs(_message.Message):
        __slots__ = ("entries",)
        ENTRIES_FIELD_NUMBER: _ClassVar[int]
        entries: _containers.RepeatedCompositeFieldContainer[Frame.Logprob]
        def __init__(self, entries: _Optional[_Iterable[_Union[Frame.Logprob, _Mapping]]] = ...) -> None: ...
    class Logprob(_message.Message):
        __slots__ = ("token", "bytes", "logprob", "top_logprobs")
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        LOGPROB_FIELD_NUMBER: _ClassVar[int]
        TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
        token: str
        bytes: bytes
        logprob: float
        top_logprobs: _containers.RepeatedCompositeFieldContainer[Frame.Logprob]
        def __init__(self, token: _Optional[str] = ..., bytes: _Optional[bytes] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[Frame.Logprob, _Mapping]]] = ...) -> None: ...
    class Usage(_message.Message):
        __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens")
        PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
        COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
        prompt_tokens: int
        cached_tokens: int
        completion_tokens: int
        def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...
    class Error(_message.Message):
        __slots__ = ("code", "message", "retryable", "retry_after_ms", "usage", "field")
        CODE_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        RETRYABLE_FIELD_NUMBER: _ClassVar[int]
        RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
        USAGE_FIELD_NUMBER: _ClassVar[int]
        FIELD_FIELD_NUMBER: _ClassVar[int]
        code: str
        message: str
        retryable: bool
        retry_after_ms: int
        usage: Frame.Usage
        field: str
        def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ..., usage: _Optional[_Union[Frame.Usage, _Mapping]] = ..., field: _Optional[str] = ...) -> None: ...
    class Checkpoint(_message.Message):
        __slots__ = ("sequence_id", "timestamp", "ack_level")
        SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        ACK_LEVEL_FIELD_NUMBER: _ClassVar[int]
        sequence_id: int
        timestamp: int
        ack_level: str
        def __init__(self, sequence_id: _Optional[int] = ..., timestamp: _Optional[int] = ..., ack_level: _Optional[str] = ...) -> None: ...
    class Pressure(_message.Message):
        __slots__ = ("level", "reason")
        LEVEL_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        level: str
        reason: str
        def __init__(self, level: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    class GoAway(_message.Message):
        __slots__ = ("reason", "reconnect_ms")
        REASON_FIELD_NUMBER: _ClassVar[int]
        RECONNECT_MS_FIELD_NUMBER: _ClassVar[int]
        reason: str
        reconnect_ms: int
        def __init__(self, reason: _Optional[str] = ..., reconnect_ms: _Optional[int] = ...) -> None: ...
    TOKENS_AFTER_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    GOAWAY_FIELD_NUMBER: _ClassVar[int]
    tokens_after: int
    stream: int
    flush: Frame.Flush
    ack: Frame.Ack
    ping: Frame.Time
    pong: Frame.Time
    accepted: Frame.Accepted
    done: Frame.Done
    error: Frame.Error
    checkpoint: Frame.Checkpoint
    pressure: Frame.Pressure
    generate: Frame.Generate
    cancel: Frame.Cancel
    resume: Frame.Resume
    close: Frame.Close
    session: Frame.Session
    resumed: Frame.Resumed
    goaway: Frame.GoAway
    def __init__(self, tokens_after: _Optional[int] = ..., stream: _Optional[int] = ..., flush: _Optional[_Union[Frame.Flush, _Mapping]] = ..., ack: _Optional[_Union[Frame.Ack, _Mapping]] = ..., ping: _Optional[_Union[Frame.Time, _Mapping]] = ..., pong: _Optional[_Union[Frame.Time, _Mapping]] = ..., accepted: _Optional[_Union[Frame.Accepted, _Mapping]] = ..., done: _Optional[_Union[Frame.Done, _Mapping]] = ..., error: _Optional[_Union[Frame.Error, _Mapping]] = ..., checkpoint: _Optional[_Union[Frame.Checkpoint, _Mapping]] = ..., pressure: _Optional[_Union[Frame.Pressure, _Mapping]] = ..., generate: _Optional[_Union[Frame.Generate, _Mapping]] = ..., cancel: _Optional[_Union[Frame.Cancel, _Mapping]] = ..., resume: _Optional[_Union[Frame.Resume, _Mapping]] = ..., close: _Optional[_Union[Frame.Close, _Mapping]] = ..., session: _Optional[_Union[Frame.Session, _Mapping]] = ..., resumed: _Optional[_Union[Frame.Resumed, _Mapping]] = ..., goaway: _Optional[_Union[Frame.GoAway, _Mapping]] = ...) -> None: ...
