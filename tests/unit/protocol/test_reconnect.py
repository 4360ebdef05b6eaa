"""When and where a client tries again (contract §3)."""

from __future__ import annotations

import random

import pytest

from seedance.protocol.reconnect import (
    HEARTBEATS,
    OPENS_AFTER,
    Backoff,
    Breaker,
    BreakerState,
    Reconnect,
    endpoint_at,
)

URL = "ws://localhost:8080/v1/chat?instance=high-perf"


def test_an_endpoint_keeps_path_and_query() -> None:
    """A gateway's base URL takes the user's path and query, below its own path if it has one."""
    assert endpoint_at(URL, "ws://b:1") == "ws://b:1/v1/chat?instance=high-perf"
    assert endpoint_at(URL, "wss://b/edge/") == "wss://b/edge/v1/chat?instance=high-perf"


def test_gateways_are_tried_in_turn() -> None:
    """The next try goes to the next gateway, the address given by the user being one of them."""
    reconnect = Reconnect(URL, lambda: 0.5, Backoff())
    reconnect.learn(["ws://a:1", "ws://b:2"])
    tried = []
    for _ in range(4):
        reconnect.next_delay_s()
        tried.append(reconnect.url.split("/")[2])
    assert tried == ["a:1", "b:2", "localhost:8080", "a:1"]
    # What it learns from the gateway it is at does not change where it is.
    reconnect.learn(["ws://b:2", "ws://a:1"])
    assert "a:1" in reconnect.url


def test_ones_own_machine_is_one_place() -> None:
    """A gateway that was reached as localhost is not tried a second time as 127.0.0.1."""
    reconnect = Reconnect(URL, lambda: 0.5, Backoff())
    reconnect.learn(["ws://127.0.0.1:8080", "ws://127.0.0.1:8081", "ws://[::1]:8080"])
    tried = []
    for _ in range(3):
        reconnect.next_delay_s()
        tried.append(reconnect.url.split("/")[2])
    assert tried == ["127.0.0.1:8081", "localhost:8080", "127.0.0.1:8081"]


def test_the_delay_doubles_to_its_bound_and_the_tries_end() -> None:
    """Half a second, doubled up to thirty, ten times; then None, and a new count."""
    reconnect = Reconnect(URL, lambda: 1.0, Backoff())
    reconnect.learn([])
    delays = [reconnect.next_delay_s() for _ in range(11)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30, None]
    assert reconnect.next_delay_s() == 0.5


def test_one_dead_gateway_is_tried_as_often() -> None:
    """A client that knows a single gateway, and never reached it, has its ten tries too."""
    reconnect = Reconnect(URL, lambda: 1.0, Backoff())
    for _ in range(10):
        reconnect.failed()
        assert reconnect.next_delay_s() is not None
        assert reconnect.url == URL
    assert reconnect.next_delay_s() is None


def test_only_a_life_of_five_seconds_shortens_the_delay() -> None:
    """CASES 114: text begins a new count of tries, not a shorter wait; living long enough does both."""
    reconnect = Reconnect(URL, lambda: 1.0, Backoff())
    reconnect.learn([])
    for _ in range(20):
        reconnect.lost(4.9)
        assert reconnect.next_delay_s() is not None
        reconnect.progressed()
    assert reconnect.next_delay_s() == 30
    reconnect.lost(5.0)
    assert reconnect.next_delay_s() == 0.5


def test_three_failed_connects_open_the_breaker() -> None:
    """A connection that stands begins a new count."""
    breaker = Breaker()
    for _ in range(OPENS_AFTER - 1):
        breaker.failed()
    breaker.connected()
    assert breaker.state is BreakerState.CLOSED
    for _ in range(OPENS_AFTER):
        breaker.failed()
    assert breaker.state is BreakerState.OPEN


def test_five_heartbeats_close_the_breaker() -> None:
    """Half-open, a connection proves itself by answers; one that is lost before proves nothing."""
    breaker = Breaker()
    for _ in range(OPENS_AFTER):
        breaker.failed()
    breaker.connected()
    for _ in range(HEARTBEATS - 1):
        assert not breaker.beat()
    breaker.lost()
    assert breaker.state is BreakerState.OPEN
    breaker.connected()
    assert [breaker.beat() for _ in range(HEARTBEATS)] == [False] * (HEARTBEATS - 1) + [True]
    assert breaker.state is BreakerState.CLOSED
    assert not breaker.beat()


@pytest.mark.parametrize("tries", [1, 4])
def test_a_thousand_clients_come_back_spread_out(tries: int) -> None:
    """CASES 114: of clients cut at once no tenth of an interval sees 3 times the mean."""
    rng = random.Random(7)
    tenths = [0] * 10
    for _ in range(1000):
        reconnect = Reconnect(URL, rng.random, Backoff())
        reconnect.learn([])
        for _ in range(tries):
            delay_s = reconnect.next_delay_s()
        assert delay_s is not None
        tenths[int(delay_s / (0.05 * 2 ** (tries - 1)))] += 1
    assert max(tenths) <= 3 * 100


@pytest.mark.parametrize(
    ("url", "known"),
    [("wss://a/v2/infer", ["wss://c"]), ("ws://a/v2/infer", ["ws://b", "wss://c"])],
)
def test_tls_is_not_given_up(url: str, known: list[str]) -> None:
    """A client that asked for TLS never takes its key to a gateway without."""
    reconnect = Reconnect(url, lambda: 0.0, Backoff())
    reconnect.learn(["ws://b", "wss://c", "http://d", "nonsense"])
    tried = set()
    for _ in range(6):
        reconnect.next_delay_s()
        tried.add(reconnect.url)
    assert tried == {url, *(f"{base}/v2/infer" for base in known)}
