"""The bench of TCP's options, over loopback and short."""

from __future__ import annotations

import pytest

from launcher.bench.tcp import Load, Options, lateness


@pytest.mark.parametrize("options", [Options(nagle=True), Options(send_buffer=16_384)])
def test_every_frame_arrives_and_is_timed(options: Options) -> None:
    """Whatever the options, no frame is lost and none arrives before it left."""
    p50, p99 = lateness(0.0, Load(streams=4, rate=200, seconds=0.1), options)
    assert 0 <= p50 <= p99
