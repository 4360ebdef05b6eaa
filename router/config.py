"""The router's settings."""

from __future__ import annotations

from pydantic import Field

from mesh.settings import InnerSettings

__all__ = ["RouterSettings"]


class RouterSettings(InnerSettings):
    """What the router can be told."""

    port: int = Field(7070, ge=0, le=65535, description="gRPC port; 0: any free one.")
    lease_ms: int = Field(
        3_000,
        ge=100,
        le=60_000,
        description="How long an instance stays a member after its latest report, in ms.",
    )
    instances_max: int = Field(1_024, ge=1, description="Most instances that may register.")
    watchers_max: int = Field(256, ge=1, description="Most `Watch` calls at once.")
