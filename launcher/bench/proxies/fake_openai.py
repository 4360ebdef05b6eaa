"""An OpenAI-compatible server that costs next to nothing: the same answer to everything, at once.

python -m launcher.bench.proxies.fake_openai says its port on the first line, and serves until ended.
An event a token, as real servers have it, made ahead; as many as the reader takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import AbstractContextManager

import uvloop

from launcher.bench.beside import beside

__all__ = ["ANSWER_TOKENS", "MODEL", "fake_openai"]

MODEL, ANSWER_TOKENS = "fake", 256
HEADERS_BYTES_MAX = 65_536
# Events written before the others have their turn.
_AT_ONCE = 16
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _event(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return _chunk(json.dumps({**_COMMON, "choices": [choice]}).encode())


_COMMON = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1_760_000_000,
    "model": MODEL,
}
_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": ANSWER_TOKENS,
    "total_tokens": 9 + ANSWER_TOKENS,
}
# No two alike: a proxy may take what repeats itself for a model gone astray.
_TOKENS = [_event({"content": f" quantum{number}"}) for number in range(ANSWER_TOKENS)]
_END = (
    _event({}, "stop")
    + _chunk(json.dumps({**_COMMON, "choices": [], "usage": _USAGE}).encode())
    + _chunk(b"[DONE]")
    + b"0\r\n\r\n"
)
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get"):
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n" % len(_MODELS)
            )
            writer.write(_MODELS)
            return
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        writer.write(_HEAD + _event({"role": "assistant", "content": ""}))
        for first in range(0, ANSWER_TOKENS, _AT_ONCE):
            for token in _TOKENS[first : first + _AT_ONCE]:
                writer.write(token)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(_END)
        await writer.drain()


async def _run() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=HEADERS_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def fake_openai() -> AbstractContextManager[str]:
    """One in a process of its own; its `host:port`."""
    return beside("launcher.bench.proxies.fake_openai")


if __name__ == "__main__":
    uvloop.run(_run())
