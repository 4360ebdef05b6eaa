"""Prometheus on a port of its own."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter

from launcher.ports import free_port
from mesh.telemetry.metrics import serve_metrics


def test_the_registry_is_answered_until_stopped() -> None:
    """And the port is free again afterwards."""
    registry, port = CollectorRegistry(), free_port()
    Counter("seedance_events", "Events.", registry=registry).inc()
    stop = serve_metrics(registry, "127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert b"seedance_events_total 1.0" in answer.read()
    stop()
    serve_metrics(registry, "127.0.0.1", port)()


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what to do, and the exit code is that of misuse."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            serve_metrics(CollectorRegistry(), "127.0.0.1", port)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"seedance: cannot listen on 127.0.0.1:{port}: is the port in use? "
        "Choose another with --metrics-port\n"
    )
