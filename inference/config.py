"""What an instance can be told: flags, or `SEEDANCE_…` in the environment."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from inference.engine.limits import EngineLimits
from mesh.settings import ServiceSettings

__all__ = ["InferenceSettings"]

# A script costs nothing to compute: its batch is as large as the streams that are due.
# Of an upstream's streams as many are open at once as such a server usually runs in a batch.
BATCH = {"script": 4096, "openai": 256}
SCRIPT_STEP_TOKENS = 2**22


def _weights(text: str) -> dict[str, float]:
    weights = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        tenant, _, weight = item.rpartition("=")
        try:
            weights[tenant] = float(weight)
        except ValueError:
            tenant = ""
        if not tenant or not 0 < weights[tenant] < math.inf:
            raise ValueError(f"tenant_weights: `{item}` is not `tenant=weight`, weight above 0")
    return weights


class InferenceSettings(ServiceSettings):
    """Settings of one inference instance."""

    port: int = Field(50051, ge=0, le=65535, description="gRPC port; 0: any free one.")
    instance_id: str = Field(
        "inference-0",
        min_length=1,
        max_length=64,
        description="Unique in the mesh and stable over restarts.",
    )
    instance_class: str = Field("standard", description="Class that clients can ask for.")
    weight: float = Field(1.0, gt=0, description="Share of requests relative to other instances.")
    canary: bool = Field(
        False, description="It runs the version being tried: only canary traffic goes to it."
    )
    router: str = Field("", description="host:port of the router; empty: register nowhere.")
    advertise: str = Field(
        "", description="host:port by which others reach this instance; empty: host and port."
    )
    engine: Literal["native", "openai", "script"] = Field(
        "native",
        description="native: a model; openai: somebody else's server; script: played lists.",
    )
    upstream_url: str = Field("", description="Of the openai engine: server and `/v1`.")
    upstream_key_env: str = Field("", description="Variable that holds its key.")
    upstream_model: str = Field("", description="Its name there; empty: the first.")
    upstream_first_byte_s: float = Field(60.0, gt=0, description="Longest wait for an answer.")
    upstream_idle_s: float = Field(30.0, gt=0, description="Longest silence within one.")
    model: Path | None = Field(
        None, description="Folder in Hugging Face's layout, or GGUF file, of the model to serve."
    )
    model_name: str = Field("", description="Name to serve it under; empty: the file's own name.")
    aliases: str = Field("", description="Other names it answers to, separated by commas.")
    context_length: int | None = Field(
        None, ge=16, description="Longest prompt and answer together; empty: the model's own."
    )
    dtype: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="How weights are held: auto, fp32, bf16."
    )
    kv_cache_dtype: Literal["auto", "fp32", "fp16", "bf16"] = Field(
        "auto",
        description="How keys and values are held: auto, fp32, fp16, bf16.",
    )
    quantize: Literal["auto", "none", "int8", "int4"] = Field(
        "auto",
        description="How weights with more bits are made smaller: none, int8, int4 (half of int8's "
        "memory, for large models: a small one loses much), auto (int8 for the native step, else none).",
    )
    threads: int = Field(0, ge=0, description="Compute threads; 0: as the machine allows.")
    intake_threads: int = Field(
        2, ge=1, le=64, description="Threads that render templates and tokenize."
    )
    cpu_backend: Literal["auto", "native", "torch"] = Field(
        "auto",
        description="What computes on a CPU: auto, native (built once by a C++ compiler), torch.",
    )
    native_library: Path | None = Field(
        None, description="The native step built ahead (`python -m inference.native.build DIR`)."
    )
    torch_compile: bool = Field(
        False,
        description="On a GPU, let torch.compile fuse what it can; it takes a while at the start.",
    )
    torch_compile_fallback: bool = Field(
        True, description="When torch.compile fails, compute without it; else the start fails."
    )
    block_size: int = Field(64, ge=1, le=1024, description="Tokens in a KV block.")
    kv_blocks: int | None = Field(
        None, ge=1, description="KV blocks; empty: what kv_cache_gib holds."
    )
    kv_cache_gib: float = Field(1.0, gt=0, description="Memory for KV blocks, in GiB.")
    kv_offload_gib: float = Field(
        0.0,
        ge=0,
        description="Host memory for KV blocks that were overwritten, in GiB; 0: they are gone. For "
        "GPUs: without one the same memory does more as kv_cache_gib.",
    )
    public_prefix_file: Path | None = Field(
        None,
        description="File with a system prompt that is no secret: its KV blocks are shared by all "
        "tenants whose requests begin with it; empty: tenants share nothing.",
    )
    prefix_cache: bool = Field(
        True, description="Keep KV blocks for later requests of the tenant that begin alike."
    )
    batch_max: int | None = Field(
        None,
        ge=1,
        description="Most sequences decoding in a step; empty: the engine's default.",
        json_schema_extra={"flag": "--max-batch-size"},
    )
    step_tokens_max: int | None = Field(
        None, ge=1, description="Most tokens computed in a step; empty: the engine's default."
    )
    itl_target_ms: float = Field(
        45.0,
        gt=0,
        description="Time between two tokens that running streams are promised; a new prompt's "
        "tokens are computed in chunks that keep it.",
    )
    prefill_chunk_busy_max: int | None = Field(
        None,
        ge=1,
        description="Most prompt tokens in a step while others decode; empty: what itl_target_ms "
        "allows.",
    )
    queue_max: int = Field(
        1024,
        ge=1,
        description="Requests that wait before more are refused.",
        json_schema_extra={"flag": "--max-queue"},
    )
    queue_ttl_s: float = Field(
        60.0, gt=0, description="How long a request may wait before it is refused after all."
    )
    concurrent_max: int | None = Field(
        None,
        ge=1,
        description="Requests that wait, run or pause before more are refused; empty: any number.",
        json_schema_extra={"flag": "--max-concurrent-requests"},
    )
    tenant_weights: str = Field(
        "",
        description="Tenants' shares of the engine, such as `gold=4,free=0.5`; others have 1.",
    )
    attach_ttl_s: float = Field(
        10.0, ge=0, description="How long a generation without a call keeps its blocks."
    )
    transcript_ttl_s: float = Field(
        180.0, ge=0, description="How long its transcript is kept: resume_ttl and a minute."
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port for Prometheus; empty: no metrics endpoint."
    )
    trace_output: Path | None = Field(
        None, description="File for a Chrome trace of the engine's steps; empty: none is written."
    )

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        if self.attach_ttl_s > self.transcript_ttl_s:
            raise ValueError("attach_ttl_s must not be above transcript_ttl_s")
        if (self.engine == "openai") != bool(self.upstream_url):
            raise ValueError("upstream_url goes with --engine openai, and the one needs the other")
        if self.upstream_key_env and not self.upstream_key:
            raise ValueError(f"upstream_key_env: {self.upstream_key_env} is not in the environment")
        if self.public_prefix_file is not None and self.engine != "native":
            raise ValueError(
                "public_prefix_file needs --engine native: a model that is served here"
            )
        self.limits()
        return self

    @property
    def alias_names(self) -> tuple[str, ...]:
        """The aliases as a list."""
        return tuple(name.strip() for name in self.aliases.split(",") if name.strip())

    @property
    def upstream_key(self) -> str:
        """The upstream's key, from the variable that the operator named; never a setting itself."""
        return os.environ.get(self.upstream_key_env, "") if self.upstream_key_env else ""

    def limits(self) -> EngineLimits:
        """The engine's bounds."""
        # Neither computes anything here.
        script = self.engine != "native"
        default = EngineLimits()
        return EngineLimits(
            batch_max=self.batch_max or BATCH.get(self.engine, default.batch_max),
            step_tokens_max=self.step_tokens_max
            or (SCRIPT_STEP_TOKENS if script else default.step_tokens_max),
            itl_target_ms=self.itl_target_ms,
            prefill_chunk_busy_max=self.prefill_chunk_busy_max
            or (SCRIPT_STEP_TOKENS if script else None),
            queue_max=self.queue_max,
            queue_ttl_s=self.queue_ttl_s,
            concurrent_max=self.concurrent_max,
            tenant_weights=_weights(self.tenant_weights),
            attach_ttl_s=self.attach_ttl_s,
            transcript_ttl_s=self.transcript_ttl_s,
            prefix_cache=self.prefix_cache,
        )
