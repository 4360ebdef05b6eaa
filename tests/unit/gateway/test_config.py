"""A gateway's settings and how they must fit together."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.config import GatewaySettings


def test_defaults_are_the_contracts() -> None:
    """Heartbeats and times as the contract has them (§2)."""
    settings = GatewaySettings()
    assert settings.heartbeat_connection_s == 30
    assert settings.heartbeat_session_s == 15
    assert settings.heartbeat_stream_s == 8
    assert settings.resume_ttl_s == 120
    assert settings.gateway_urls == ("ws://127.0.0.1:8080",)
    assert settings.server_name == "gateway-8080"


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_connection_s": 24},
        {"heartbeat_session_s": 21},
        {"heartbeat_stream_s": 2},
        {"anonymous_tenant": "local", "host": "0.0.0.0"},
        {"gateways": "http://a"},
        {"workers": 2},
        {"redis": "http://a"},
        {"store_partitions": 1, "redis": "redis+cluster://a"},
        {"tls_cert": "a.pem"},
        {"trusted_proxies": "127.0.0.1, everybody"},
        {"mtls_ca": "a.pem"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_does_not_fit_is_refused_at_start(wrong: dict[str, object]) -> None:
    """An open door to the world, or a time out of its range, never comes up."""
    with pytest.raises(ValidationError):
        GatewaySettings(**wrong)  # type: ignore[arg-type]


def test_lists_are_written_with_commas() -> None:
    """Blanks around them do not count."""
    settings = GatewaySettings(gateways="ws://a:1, wss://b", allowed_origins=" https://x ")
    assert settings.gateway_urls == ("ws://a:1", "wss://b")
    assert settings.origins == ("https://x",)


def test_a_worker_has_a_name_of_its_own() -> None:
    """Workers share a port, not an id; with a store there may be many."""
    worker = GatewaySettings(workers=2, worker=1, redis="redis://h:6379/0", gateway_id="edge")
    assert worker.server_name == "edge-1"
    assert GatewaySettings(redis="redis://h:6379/0", workers=2).server_name == "gateway-8080"


def test_ports_beside_the_shared_one() -> None:
    """Each worker has a port for Prometheus; HAProxy hears one answer."""
    ports = {"metrics_port": 9000, "agent_port": 9100, "workers": 2, "redis": "redis://h:1/0"}
    workers = [GatewaySettings(worker=number, **ports) for number in (-1, 0, 1)]
    assert [one.ports_beside for one in workers] == [(9000, 9100), (9000, 9100), (9001, 0)]
    assert GatewaySettings(worker=1).ports_beside == (0, 0)
