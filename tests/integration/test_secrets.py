"""Every way a key can come in, right or wrong, and nowhere that it comes out (CASES 82, 108)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.collector import Collector, collector
from tests.support.scripts import script_messages
from tests.support.service_process import ServiceProcess, running_service
from tests.support.valkey import TestStore
from tests.support.waiting import wait_until

MARK = "sk-XYZ"
RIGHT, WRONG = f"{MARK}-right", f"{MARK}-wrong"
MESH_SECRET = f"{MARK}-mesh"
JSON_ITEM = "seedance.v2.json"


def _item(key: str) -> str:
    return "seedance.auth." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _basic(key: str) -> str:
    return base64.b64encode(f"user:{key}".encode()).decode()


def _signed(secret: str) -> str:
    """A JSON Web Token of tenant acme."""
    claims = {"tenant": "acme", "sub": "ann", "exp": 4_000_000_000}
    return jwt.encode(claims, secret, "HS256", headers={"kid": "k"})


SIGNING = f"{MARK}-signing-secret-of-32-bytes-or-more"
SIGNED, FORGED = _signed(SIGNING), _signed(f"{MARK}-another-secret-of-32-bytes-or-more")
NEEDLES = [MARK, *(_item(k).removeprefix("seedance.auth.") for k in (RIGHT, WRONG))]
NEEDLES += [_basic(RIGHT), hashlib.sha256(RIGHT.encode()).hexdigest()]
NEEDLES += [SIGNED, FORGED, _item(SIGNED).removeprefix("seedance.auth.")]


@pytest.fixture
def kept() -> Iterator[Collector]:
    with collector() as running:
        yield running


class Answers:
    """Everything that a client was told; what is secret to it alone is kept apart."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.told: list[str] = []
        self.own: list[str] = []

    async def http(self, client: httpx.AsyncClient, method: str, path: str, **more: Any) -> int:
        reply = await client.request(method, f"http://{self.base}{path}", **more)
        if path == "/v2/tickets" and reply.status_code == 200:
            self.own.append(reply.json()["ticket"])
        else:
            self.told.append(f"{reply.status_code} {dict(reply.headers)} {reply.text}")
        return reply.status_code

    async def socket(self, query: str, *frames: object, **more: Any) -> None:
        """Open a WebSocket, send the frames, and read until it says no more."""
        url = f"ws://{self.base}/v2/infer{query}"
        try:
            async with connect(url, proxy=None, compression=None, **more) as socket:
                for frame in frames:
                    await socket.send(json.dumps(frame))
                async for message in socket:
                    if self._take(json.loads(message)) == "done":
                        await socket.send(json.dumps({"type": "close"}))
                self.told.append(socket.close_reason or "")
        except InvalidStatus as refused:
            self.told.append(f"{refused.response.headers} {refused.response.body!r}")
        except ConnectionClosed as closed:
            self.told.append(str(closed))

    def _take(self, frame: dict[str, Any]) -> str:
        token = frame.pop("token", None)
        if token:
            self.own.append(token)
        if frame["type"] != "token":  # the text is what was asked for
            self.told.append(json.dumps(frame))
        return frame["type"]


def _headers() -> list[dict[str, str]]:
    """Keys in headers, where they belong and where people put them."""
    authorizations = [f"Bearer {RIGHT}", f"Bearer {WRONG}", f"bearer  {WRONG} {WRONG}", WRONG]
    authorizations += [f"Basic {_basic(RIGHT)}", f"Token {RIGHT}", f"Bearer {WRONG},{RIGHT}"]
    authorizations += [f"Bearer {SIGNED}", f"Bearer {FORGED}", f"Bearer {SIGNED}x"]
    others = [
        {"X-Api-Key": WRONG},
        {"Cookie": f"key={WRONG}"},
        {"Origin": f"https://{WRONG}.example"},
    ]
    return [*({"Authorization": value} for value in authorizations), *others]


async def _over_http(answers: Answers) -> None:
    bad = {"model": "script", "messages": [{"role": f"{MARK}-role", "content": f"{MARK}-said"}]}
    bearer = {"Authorization": f"Bearer {RIGHT}"}
    async with httpx.AsyncClient(timeout=10) as client:
        for headers in _headers():
            for method, path in (
                ("GET", "/v1/models"),
                ("POST", "/v1/chat/completions"),
                ("POST", "/v2/tickets"),
                ("GET", "/v1/usage"),
            ):
                await answers.http(client, method, path, headers=headers, json=bad)
        for path in (
            *(f"/v1/models?{name}={WRONG}" for name in ("token", "key", "api_key", "access_token")),
            *(f"/{WRONG}", f"/v2/infer/{WRONG}", f"/{WRONG}/v1/chat/completions"),
        ):
            await answers.http(client, "GET", path, headers=bearer)
        said = script_messages([b"hello"])
        for wrong in ({"temperature": MARK}, {"stop": [MARK] * 99}, {MARK: MARK, "n": MARK}):
            body = {"model": "script", "messages": said} | wrong
            path = "/v1/chat/completions"
            assert await answers.http(client, "POST", path, headers=bearer, json=body) == 400
        await answers.http(
            client, "POST", "/v1/chat/completions", headers=bearer, content=b'{"' + MARK.encode()
        )


async def _over_websocket(answers: Answers) -> None:
    chat = {"type": "generate", "id": "a", "messages": script_messages([b"hello"])}
    faults = [
        chat | {"id": "b", "temperature": MARK},
        {"type": MARK},
        {"type": "cancel", "id": "z", "api_key": WRONG},
        {"type": "ack", "seq": MARK},
    ]
    for headers in _headers():
        await answers.socket("", chat, subprotocols=[JSON_ITEM], additional_headers=headers)
    for key in (RIGHT, WRONG, SIGNED, FORGED):
        await answers.socket("", chat, *faults, subprotocols=[JSON_ITEM, _item(key)])
    await answers.socket("", chat, subprotocols=[_item(RIGHT)])
    for ticket in (*answers.own[:1], WRONG):
        await answers.socket(f"?ticket={ticket}", chat, subprotocols=[JSON_ITEM])
    for name in ("token", "key", "api_key"):
        await answers.socket(f"?{name}={RIGHT}", chat)
    resume = {"type": "resume", "session": "s" * 22, "token": WRONG, "last_seq": 0, "offsets": {}}
    await answers.socket("", resume, subprotocols=[JSON_ITEM, _item(RIGHT)])


def _flags(kept: Collector) -> list[str]:
    return ["--log-level", "debug", "--otlp-endpoint", kept.endpoint, "--drain-grace-s", "1"]


def _jwks(folder: Path) -> str:
    key = base64.urlsafe_b64encode(SIGNING.encode()).decode().rstrip("=")
    path = folder / "jwks.json"
    path.write_text(json.dumps({"keys": [{"kty": "oct", "kid": "k", "alg": "HS256", "k": key}]}))
    return str(path)


async def _exported(service: ServiceProcess) -> None:
    assert await service.stop() == 0


async def test_no_key_comes_out_anywhere(
    tmp_path: Path, kept: Collector, valkey: TestStore
) -> None:
    """Logs at `debug`, spans, errors, headers, close reasons and metrics: no key, ticket, token or prompt."""
    digest = hashlib.sha256(RIGHT.encode()).hexdigest()
    env = {"SEEDANCE_MESH_SECRET": MESH_SECRET}
    logs = [tmp_path / name for name in ("gateway.log", "inference.log")]
    async with (
        running_service(
            "inference", "--engine", "script", *_flags(kept), env=env, log=logs[1]
        ) as instance,
        running_service(
            *("gateway", "--instances", instance.address, "--redis", valkey.url, *_flags(kept)),
            *("--jwks-file", _jwks(tmp_path)),
            env=env | {"SEEDANCE_KEYS": f"acme:{digest}"},
            log=logs[0],
        ) as gateway,
    ):
        answers = Answers(gateway.address)
        async with asyncio.timeout(50):
            await _over_http(answers)
            await _over_websocket(answers)
        async with httpx.AsyncClient() as client:
            await answers.http(client, "GET", "/metrics")
        for service in (gateway, instance):
            await _exported(service)
    await wait_until(lambda: {span.hop for span in kept.spans} >= {"gateway", "inference"})
    assert answers.own, "no ticket and no token was given"
    # By header, item and ticket, with a key and with a signed token.
    assert sum('"done"' in told for told in answers.told) >= 5
    wrote = "\n".join(path.read_text() for path in logs)
    assert "DEBUG" in wrote, "nothing was logged at debug"
    for needle in (*NEEDLES, *answers.own):
        assert needle not in wrote, _near(wrote, needle)
        assert needle not in str(kept.spans)
    told = "\n".join(answers.told)
    for needle in NEEDLES:
        assert needle not in told, _near(told, needle)


def _near(text: str, needle: str) -> str:
    at = text.index(needle)
    return text[max(0, at - 200) : at + 200]
