"""Clients that do nothing wrong, while others do: each of their texts must come whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import openai

from seedance import SeedanceClient
from tests.support.scripts import SPLIT_WORDS, script_messages

__all__ = ["Bystanders"]

REPEAT = 5
PACE_MS = 20
TEXT = b"".join(SPLIT_WORDS).decode() * REPEAT
MESSAGES = script_messages(SPLIT_WORDS, dt_ms=PACE_MS, repeat=REPEAT)


class Bystanders:
    """One streams over WebSocket, one over SSE, again and again until the block ends."""

    def __init__(self, url: str) -> None:
        self.streams = 0
        self.faults: list[str] = []
        self._url = url
        self._openai = openai.OpenAI(base_url=f"{url}/v1", api_key="local", max_retries=0)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._again_and_again, args=(ask,), daemon=True)
            for ask in (self._over_websocket, self._over_sse)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)
        self._openai.close()

    def _again_and_again(self, ask: Callable[[], str]) -> None:
        while not self._stop.is_set():
            try:
                text = ask()
            except Exception as error:  # noqa: BLE001 - whatever it is: a bystander was hit
                self.faults.append(f"{ask.__name__}: {error!r}")
                return
            if text != TEXT:
                self.faults.append(f"{ask.__name__}: {len(text)} of {len(TEXT)} characters")
            self.streams += 1

    def _over_websocket(self) -> str:
        client = SeedanceClient(self._url.replace("http", "ws", 1) + "/v2/infer")
        try:
            return "".join(chunk.delta for chunk in client.chat(messages=MESSAGES))
        finally:
            client.close()

    def _over_sse(self) -> str:
        stream = self._openai.chat.completions.create(model="", messages=MESSAGES, stream=True)  # type: ignore[arg-type]
        return "".join(c.delta.content or "" for chunk in stream for c in chunk.choices)
