"""What a run does: whom it asks, how, how often and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from launcher.loadtest.arrivals import Arrivals

__all__ = ["Face", "Load", "Target", "target_of"]

_PORTS = {"ws": 80, "http": 80, "wss": 443, "https": 443, "grpc": 50051}
_OPENAI_PATH, _SOCKET_PATH = "/v1/chat/completions", "/v2/infer"


class Face(StrEnum):
    """Which way into a server."""

    WEBSOCKET = "websocket"
    SSE = "sse"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how it is spoken to. `subprotocol`: empty for a simple WebSocket client (§1).

    `address`: what `host` was resolved to, once for all connections.
    """

    face: Face
    host: str
    port: int
    path: str
    tls: bool = False
    subprotocol: str = ""
    model: str = ""
    keys: tuple[str, ...] = ()
    address: str = ""

    @property
    def name(self) -> str:
        """What tables call it."""
        spoken = self.subprotocol.removeprefix("seedance.v2.") or "simple client"
        how = f"websocket, {spoken}" if self.face is Face.WEBSOCKET else self.face.value
        return f"{self.host}:{self.port} ({how})"


@dataclass(frozen=True, slots=True)
class Load:
    """The same for every target of a run; times in seconds, `rate` in requests per second.

    `streams` is how many requests a connection carries at once. `slow_share` of the connections
    read a little and then pause. At `storm_at_s` after the start (0: never) `storm_share` of the
    connections are cut in one moment.
    """

    connections: int = 16
    streams: int = 1
    connect_rate: float = 500.0
    arrivals: Arrivals = Arrivals.CLOSED
    rate: float = 10.0
    burst_every_s: float = 5.0
    duration_s: int = 10
    drain_s: float = 30.0
    max_tokens: int = 64
    temperature: float = 0.0
    users: int = 100
    zipf: float = 1.0
    slow_share: float = 0.0
    slow_pause_s: float = 0.5
    storm_at_s: float = 0.0
    storm_share: float = 1.0
    seed: int = 1


def target_of(
    url: str, *, subprotocol: str = "", model: str = "", keys: tuple[str, ...] = ()
) -> Target:
    """The target that a URL names: its scheme says the face. Raises `ValueError`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = parts.scheme
    if scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url}: write ws://HOST:PORT, http://HOST:PORT or grpc://HOST:PORT")
    port = parts.port or _PORTS[scheme]
    given = parts.path.rstrip("/")
    if scheme == "grpc":
        face, path = Face.GRPC, ""
    elif scheme in {"ws", "wss"}:
        face, path = Face.WEBSOCKET, given or _SOCKET_PATH
    else:
        face, path = Face.SSE, _completions(given)
    tls = scheme in {"wss", "https"}
    spoken = subprotocol if face is Face.WEBSOCKET else ""
    return Target(face, parts.hostname, port, path, tls, spoken, model, keys)


def _completions(path: str) -> str:
    """OpenAI's endpoint; a base URL such as `https://host/v1` is completed, as its SDKs do."""
    if path.endswith("/completions"):
        return path
    return f"{path}/chat/completions" if path.endswith("/v1") else path + _OPENAI_PATH
