"""Everything a gateway can be told."""

from __future__ import annotations

import ipaddress
import re

from pydantic import Field, SecretStr, model_validator

from gateway.budgets.model import read_budgets
from mesh.settings import ServiceSettings
from mesh.store import PARTITIONS_MAX, REDIS_URL_PATTERN, Partitions, partitions_of

__all__ = ["GatewaySettings"]


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


class GatewaySettings(ServiceSettings):
    """Settings of one gateway process; lists are written with commas."""

    port: int = Field(8080, ge=0, le=65535, description="Port of HTTP and WebSocket; 0: any.")
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that share the port, one for each core; they need a store.",
    )
    worker: int = Field(
        -1,
        ge=-1,
        description="Which of the workers this process is; given by the one that starts them.",
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="A port of its own for Prometheus, worker n on the n-th after it; 0: `/metrics` alone.",
    )
    gateways: str = Field(
        "", description="Public WebSocket base URLs of all gateways; empty: this one alone."
    )
    gateway_id: str = Field("", description="What `session.server` says; empty: `gateway-PORT`.")

    router: str = Field("", description="The router, `host:port`; empty: only `instances`.")
    instances: str = Field("", description="Instances to use without a router, `host:port` each.")
    upstream_calls: int = Field(
        1, ge=1, le=16, description="Shared calls that this gateway holds to each instance."
    )

    redis: str = Field(
        "",
        description="`redis://…`, `redis+cluster://…` or `unix:///path`; empty: sessions live in this process only.",
    )
    store_partitions: int = Field(
        0,
        ge=0,
        le=PARTITIONS_MAX,
        description="Parts that the store is divided into, each on one node of a cluster; 0: 1, of a cluster 16.",
    )
    commit_interval_ms: float = Field(
        20, ge=1, le=1000, description="Time between two commits to the session store."
    )
    text_commit_interval_ms: float = Field(
        300,
        ge=1,
        le=1000,
        description="How long text of running streams, and what was acknowledged, waits for its commit.",
    )
    coalesce_ms: float = Field(
        0,
        ge=0,
        le=20,
        description="Text that comes within so long is one frame per stream; 0: within a turn of the loop.",
    )
    resume_ttl_s: float = Field(
        120, ge=1, le=86_400, description="How long a session lives without a connection."
    )

    heartbeat_connection_s: float = Field(
        30, ge=25, le=45, description="Silence before the server pings; 15 s more end it (§2)."
    )
    heartbeat_session_s: float = Field(
        15, ge=10, le=20, description="Silence that ends a windowed client's connection (§2)."
    )
    heartbeat_stream_s: float = Field(
        8, ge=3, le=12, description="Time without a moving `ack` after which a stream pauses (§2)."
    )
    connections_max: int = Field(
        10_000, ge=1, description="WebSockets at once; one more is closed with 4429."
    )
    connections_per_address: int = Field(
        1_000,
        ge=0,
        description="WebSockets of one address (IPv6: of one /64) at once, and as many other connections; 0: any number.",
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses and networks whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed.",
    )
    tls_cert: str = Field(
        "",
        description="Certificate chain shown to clients, a PEM file; read again when it changes. Empty: no TLS.",
    )
    tls_key: str = Field("", description="The key of `tls_cert`, a PEM file.")
    agent_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port of the answer to HAProxy's `agent-check`, of workers the first's; 0: none.",
    )

    usage_spool: str = Field(
        "",
        max_length=4096,
        description="Folder for usage events until the ledger has them; empty: memory only.",
    )
    metering: str = Field("", description="Metering's query service, `host:port`; empty: none.")
    keys: SecretStr = Field(
        SecretStr(""), description="API keys: `tenant:SHA-256 of the key in hex` each."
    )
    receipt_key: str = Field(
        "",
        description="Ed25519 key file (PEM) that signs receipts; more, after commas: older keys, still served.",
    )
    budgets: str = Field(
        "",
        description="`TENANT[/KEY]=AMOUNT tokens|money/month|day|ever [soft AMOUNT]` each (docs/billing.md).",
    )
    tenants_file: str = Field(
        "",
        description="Tenants, a YAML file with their keys and limits; read again when it changes.",
    )
    openings_max: int = Field(
        256,
        ge=1,
        description="Requests at the instances without a first token; more wait here, in fair turns.",
    )
    jwks_file: str = Field(
        "", description="Keys of signed tokens, a JWKS file; read again when it changes."
    )
    jwt_tenant_claim: str = Field("tenant", description="The claim that names the tenant.")
    jwt_audience: str = Field("", description="What `aud` must hold; empty: anything.")
    jwt_issuer: str = Field("", description="What `iss` must be; empty: anybody.")
    anonymous_tenant: str = Field(
        "",
        description="Tenant of callers without a key, or with its name for one; empty: a key is needed.",
    )
    published_host: str = Field(
        "", description="Host address that a container engine publishes the port on; empty: `host`."
    )
    allowed_origins: str = Field(
        "", description="Origins a browser may come from; empty: the hosts of all gateways."
    )
    ticket_ttl_s: float = Field(30, ge=1, le=300, description="How long a ticket may be used.")

    @model_validator(mode="after")
    def _relations(self) -> GatewaySettings:
        reachable_at = self.published_host or self.host
        if self.anonymous_tenant and reachable_at not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError("anonymous_tenant is for local use: bind host 127.0.0.1, or set keys")
        if self.heartbeat_session_s >= self.heartbeat_connection_s:
            raise ValueError("heartbeat_session_s must be below heartbeat_connection_s")
        if self.redis and not re.match(REDIS_URL_PATTERN, self.redis):
            raise ValueError(
                "redis must begin with redis://, rediss://, redis+cluster://, rediss+cluster:// or unix://"
            )
        partitions_of(self.redis, self.store_partitions)
        if self.workers > 1 and not self.redis:
            raise ValueError(
                "workers: more than one need a store to share: add --redis redis://HOST:6379/0"
            )
        read_budgets(self.budgets)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together")
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError(f"trusted_proxies: {proxy} is no address or network") from None
        for url in self.gateway_urls:
            if not url.startswith(("ws://", "wss://")):
                raise ValueError(f"gateways: {url} must begin with ws:// or wss://")
        return self

    @property
    def gateway_urls(self) -> tuple[str, ...]:
        """Public base URLs of all gateways."""
        scheme = "wss" if self.tls_cert else "ws"
        return _items(self.gateways) or (f"{scheme}://{self.host}:{self.port}",)

    @property
    def partitions(self) -> Partitions:
        """How the store is divided."""
        return partitions_of(self.redis, self.store_partitions)

    @property
    def proxies(self) -> tuple[str, ...]:
        """Addresses and networks of proxies that are believed."""
        return _items(self.trusted_proxies)

    @property
    def instance_addresses(self) -> tuple[str, ...]:
        """Instances to use without a router."""
        return _items(self.instances)

    @property
    def receipt_key_files(self) -> tuple[str, ...]:
        """Key files: the one that signs, then older ones."""
        return _items(self.receipt_key)

    @property
    def origins(self) -> tuple[str, ...]:
        """Allowed origins beside the hosts of all gateways."""
        return _items(self.allowed_origins)

    @property
    def ports_beside(self) -> tuple[int, int]:
        """Where this process answers Prometheus, and HAProxy's agent check; 0: nowhere.

        Workers see an equal share of everything each, so the first one's load stands for all.
        """
        number = max(self.worker, 0)
        metrics = self.metrics_port + number if self.metrics_port else 0
        return metrics, 0 if number else self.agent_port

    @property
    def server_name(self) -> str:
        """This gateway's public name; a worker's has its number."""
        name = self.gateway_id or f"gateway-{self.port}"
        return name if self.worker < 0 else f"{name}-{self.worker}"
