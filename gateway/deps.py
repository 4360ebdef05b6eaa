"""What the parts of a gateway are given: made once at start, or by a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.config import GatewaySettings
from gateway.session.usage import UsageOutbox
from gateway.store.base import SessionStore
from gateway.upstream.base import Upstream
from mesh.clock import Clock
from mesh.telemetry.metrics import GatewayMetrics
from mesh.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from gateway.auth import Authenticator
    from gateway.session.registry import SessionRegistry

__all__ = ["GatewayDeps"]


@dataclass(frozen=True, slots=True)
class GatewayDeps:
    """One gateway's collaborators.

    `usage` takes usage events without waiting and writes them to the store in batches;
    `registry` has the live sessions of this process. Both follow from the others: use `make`.
    """

    settings: GatewaySettings
    clock: Clock
    store: SessionStore
    upstream: Upstream
    tracing: Tracing
    metrics: GatewayMetrics
    authenticator: Authenticator
    usage: UsageOutbox
    registry: SessionRegistry = field(init=False)

    @classmethod
    def make(
        cls,
        settings: GatewaySettings,
        clock: Clock,
        store: SessionStore,
        upstream: Upstream,
        tracing: Tracing,
        authenticator: Authenticator,
    ) -> GatewayDeps:
        """The collaborators with an outbox and a registry of their own."""
        from gateway.session.registry import SessionRegistry

        deps = cls(
            settings,
            clock,
            store,
            upstream,
            tracing,
            GatewayMetrics(),
            authenticator,
            UsageOutbox(store),
        )
        # The registry's sessions use everything else, so it comes last.
        object.__setattr__(deps, "registry", SessionRegistry(deps))
        return deps
