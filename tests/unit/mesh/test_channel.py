"""What both ends of a gRPC connection agree on."""

from __future__ import annotations

from mesh.rpc.channel import KEEPALIVE_MS, server_options


def test_servers_welcome_pings_at_the_pace_of_our_clients() -> None:
    """CASES 38: through a silent prefill, with or without calls, no ping is a strike."""
    server = dict(server_options())
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < KEEPALIVE_MS
    assert server["grpc.http2.min_recv_ping_interval_without_data_ms"] < KEEPALIVE_MS
    assert server["grpc.keepalive_permit_without_calls"] == 1
    # 0 is no limit, of pings without data and of strikes.
    assert server["grpc.http2.max_pings_without_data"] == 0
    assert server["grpc.http2.max_ping_strikes"] == 0
