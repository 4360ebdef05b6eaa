"""Metering's settings."""

from __future__ import annotations

from pydantic import Field, model_validator

from mesh.settings import InnerSettings
from mesh.store import PARTITIONS_MAX, REDIS_URL_PATTERN, Partitions, partitions_of

__all__ = ["MeteringSettings"]


class MeteringSettings(InnerSettings):
    """What metering can be told."""

    port: int = Field(7090, ge=0, le=65535, description="gRPC port; 0: any free one.")
    metrics_port: int = Field(0, ge=0, le=65535, description="Prometheus port; 0: none.")
    redis: str = Field(
        "redis://127.0.0.1:6379",
        pattern=REDIS_URL_PATTERN,
        repr=False,
        description="Where the usage stream is: `redis://…`, `redis+cluster://…` or `unix:///path`.",
    )
    store_partitions: int = Field(
        0,
        ge=0,
        le=PARTITIONS_MAX,
        description="Parts that the store is divided into, as the gateways are told; 0: as its kind needs.",
    )
    ledger: str = Field(
        "sqlite:///ledger.db",
        repr=False,
        description="The ledger's SQLAlchemy URL: sqlite:///PATH, or postgresql+psycopg://…",
    )
    plans: str = Field(
        "",
        max_length=4096,
        description="Price plans, a YAML file; read again when it changes. Empty: no prices.",
    )
    consumer: str = Field(
        "metering-0",
        min_length=1,
        max_length=64,
        description="This process's name in the consumer group; each process has its own.",
    )

    @model_validator(mode="after")
    def _check(self) -> MeteringSettings:
        partitions_of(self.redis, self.store_partitions)
        return self

    @property
    def partitions(self) -> Partitions:
        """How the store is divided."""
        return partitions_of(self.redis, self.store_partitions)
