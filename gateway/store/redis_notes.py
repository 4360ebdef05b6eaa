"""Values under names, in Redis or Valkey: what gateways have to agree on beside sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mesh.store_link import Command, Reply

__all__ = ["RedisNotes"]


def _note_key(name: str) -> str:
    return f"seedance:note:{name}"


class RedisNotes(ABC):
    """The notes of a `SessionStore`; `_run` is the store's way to its server."""

    @abstractmethod
    async def _run(self, commands: Sequence[Command]) -> list[Reply]:
        """Send all commands and give their replies. Raises `StoreUnavailableError`."""

    async def note(self, name: str, value: bytes, ttl_s: float) -> bytes:
        """Keep a value unless there is one; see the base."""
        key = _note_key(name)
        _, found = await self._run(
            [("SET", key, value, "NX", "PX", round(ttl_s * 1000)), ("GET", key)]
        )
        return value if found is None else bytes(found)

    async def put_note(self, name: str, value: bytes, ttl_s: float) -> None:
        """Keep a value; see the base."""
        await self._run([("SET", _note_key(name), value, "PX", round(ttl_s * 1000))])

    async def find_note(self, name: str) -> bytes | None:
        """What stands there; see the base."""
        (value,) = await self._run([("GET", _note_key(name))])
        return value if isinstance(value, bytes) else None

    async def drop_note(self, name: str) -> None:
        """Forget; see the base."""
        await self._run([("DEL", _note_key(name))])
