"""Channel and server options that both ends agree on (contract §7)."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio

from mesh.rpc.identity import MeshIdentity

__all__ = ["MESH_SECRET_KEY", "MESSAGE_BYTES_MAX", "Dial", "open_channel", "server_options"]

# A prompt may fill a 1 MiB client message and grow in translation; nothing inside may be narrower
# than the edge (CASES 39).
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
# Reconnect quickly: an instance that restarts is back within this.
RECONNECT_MIN_MS = 100
RECONNECT_MAX_MS = 1_000

MESH_SECRET_KEY = "x-seedance-mesh"  # noqa: S105 - the name of the metadata key

Options = list[tuple[str, int | str]]
# How a channel to `host:port` is opened: `open_channel`, perhaps with an identity.
Dial = Callable[[str], grpc.aio.Channel]


def _shared_options() -> Options:
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        # With the probe on, a saturated shared call hides seconds of queue in HTTP/2 buffers.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options() -> Options:
    """Options of every gRPC server: pings as often as our clients send them are welcome (CASES 38)."""
    return [
        *_shared_options(),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ("grpc.http2.max_ping_strikes", 0),
        # Two processes must not share a port by accident.
        ("grpc.so_reuseport", 0),
    ]


def open_channel(address: str, identity: MeshIdentity | None = None) -> grpc.aio.Channel:
    """A channel to `host:port`, with keepalive and quick reconnects; plain without an identity."""
    options: Options = [
        *_shared_options(),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MIN_MS),
        ("grpc.min_reconnect_backoff_ms", RECONNECT_MIN_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
        # Channels to one address must not share a broken connection's back-off.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options)
    if identity.name:
        options.append(("grpc.ssl_target_name_override", identity.name))
    return grpc.aio.secure_channel(address, identity.channel_credentials(), options=options)
