"""Which parts of the mesh make up for each other, and are kept from failing together."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

__all__ = ["Apart", "Part"]


class Part(Enum):
    """What is not there, or not reached."""

    STORE = "store"
    GATEWAY = "gateway"
    INSTANCE = "instance"
    ROUTER = "router"


# What is kept apart in a gentle run, since the one is what makes up for the other (the design, §3): a
# session lives on in its gateway or in the store, a stream on an instance or the next one, and a
# gateway that has just started knows only what a router tells it.
_RELIES_ON = {
    Part.STORE: {Part.GATEWAY},
    Part.GATEWAY: {Part.STORE, Part.ROUTER},
    Part.INSTANCE: {Part.INSTANCE},
    Part.ROUTER: {Part.GATEWAY},
}
# How long after its return a part is not relied on: owners write anew and are believed again;
# clients have come back; calls stand and are known to be broken; instances have registered.
_SETTLE_S = {Part.STORE: 7.0, Part.GATEWAY: 7.0, Part.INSTANCE: 4.0, Part.ROUTER: 12.0}


class Apart:
    """What is broken now, and what ever was. `gentle`: what makes up for each other is kept apart."""

    def __init__(self, *, gentle: bool) -> None:
        self.gentle = gentle
        self.happened: set[Part] = set()
        self._now_broken: Counter[Part] = Counter()
        self._settled_at: dict[Part, float] = defaultdict(float)

    @property
    def may_lose_sessions(self) -> bool:
        """Whether a gateway and the store may have been gone together."""
        return not self.gentle and {Part.STORE, Part.GATEWAY} <= self.happened

    @contextmanager
    def broken(self, *parts: Part | None) -> Iterator[bool]:
        """While these are; False: in a gentle run they had better not, now."""
        broken = {part for part in parts if part is not None}
        may = not self.gentle or all(map(self._spare, broken))
        if may:
            self.happened |= broken
            self._now_broken.update(broken)
        yield may
        if may:
            self._now_broken.subtract(broken)
            now = asyncio.get_running_loop().time()
            self._settled_at |= {part: now + _SETTLE_S[part] for part in broken}

    def _spare(self, part: Part) -> bool:
        now = asyncio.get_running_loop().time()
        return not any(
            self._now_broken[other] or now < self._settled_at[other] for other in _RELIES_ON[part]
        )
