"""A session store that can be away, empty, or slow to the point of standing still."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.store.base import StoreUnavailableError
from gateway.store.memory import MemoryStore

__all__ = ["FlakyStore"]


class FlakyStore:
    """`SessionStore` around a memory store. `held` cleared: commits wait."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.away = False
        self.held = asyncio.Event()
        self.held.set()
        self.commits = 0
        self.marks = 0

    def now_ms(self) -> int:
        """Its clock."""
        return self.inner.now_ms()

    def __getattr__(self, name: str) -> Any:
        """Every method of the store, unless it is away."""
        method = getattr(self.inner, name)

        async def call(*args: Any, **more: Any) -> Any:
            if self.away:
                raise StoreUnavailableError
            self.marks += name == "generation_mark"
            if name == "commit":
                self.commits += 1
                await self.held.wait()
            return await method(*args, **more)

        return call
