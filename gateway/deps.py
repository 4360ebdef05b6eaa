"""What the parts of a gateway are given: made once at start, or by a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.affinity import AffinityTokens
from gateway.auth import Authenticator
from gateway.budgets.desk import BudgetDesk
from gateway.config import GatewaySettings
from gateway.handshakes import Handshakes
from gateway.metering.meter import UsageMeter
from gateway.receipts import ReceiptSigner
from gateway.store.base import SessionStore
from gateway.tenants.desk import Tenants
from gateway.upstream.backoff import RetryBudget
from gateway.upstream.base import Upstream
from mesh.clock import Clock
from mesh.telemetry.metrics import GatewayMetrics
from mesh.telemetry.tracing import Tracing

__all__ = ["GatewayDeps"]


@dataclass(frozen=True, slots=True)
class GatewayDeps:
    """One gateway's collaborators; `usage` takes events without waiting, and writes them in batches.

    `tenants` as made by default know no limits.
    """

    settings: GatewaySettings
    clock: Clock
    store: SessionStore
    upstream: Upstream
    tracing: Tracing
    metrics: GatewayMetrics
    authenticator: Authenticator
    usage: UsageMeter
    tenants: Tenants = field(default_factory=Tenants)
    retries: RetryBudget = field(default_factory=RetryBudget)
    receipts: ReceiptSigner | None = None
    budgets: BudgetDesk | None = None
    handshakes: Handshakes = field(default_factory=Handshakes)
    affinity: AffinityTokens = field(default_factory=AffinityTokens)
