"""`client.verify`: receipts against the keys that the client was given, or that its gateway names."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from typing import Any, Protocol

from seedance.client.stream import Completion
from seedance.protocol.receipt import ReceiptError

__all__ = ["ReceiptDesk"]


class _Keys(Protocol):
    """`seedance.receipt.ReceiptKeys`: loaded only where receipts are checked, for it needs `cryptography`."""

    def __contains__(self, key: object) -> bool: ...

    def check(self, receipt: Mapping[str, Any], *, text: str | None = None) -> None: ...


class ReceiptDesk:
    """Knows the mesh's keys: those given, else those that the first of `endpoints` to answer names."""

    def __init__(
        self,
        endpoints: Callable[[], Sequence[str]],
        keys: Sequence[str] | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._tls = tls
        self._given = keys
        self._keys: _Keys | None = None

    async def verify(self, receipt: Completion | Mapping[str, Any], text: str | None) -> None:
        """Return when it holds; see `AsyncSeedanceClient.verify`."""
        if not isinstance(receipt, Completion):
            await self._check(receipt, text)
            return
        if receipt.receipt is None:
            raise ReceiptError("the completion has none: ask with `receipt=True`")
        await self._check(receipt.receipt, receipt.text if text is None else text)
        usage = asdict(receipt.usage) | {"total_tokens": receipt.usage.total_tokens}
        if receipt.receipt.get("id") != receipt.id or receipt.receipt.get("usage") != usage:
            raise ReceiptError("it is the receipt of another stream or usage")

    async def _check(self, receipt: Mapping[str, Any], text: str | None) -> None:
        keys = self._keys
        if keys is None or (self._given is None and receipt.get("key") not in keys):
            self._keys = keys = await self._ask_for_keys()
        keys.check(receipt, text=text)

    async def _ask_for_keys(self) -> _Keys:
        if self._given is not None:
            checking = import_module("seedance.receipt")
            given: _Keys = checking.ReceiptKeys(self._given)
            return given
        *others, last = self._endpoints()
        for endpoint in others:
            with suppress(OSError):  # one may have died: each knows the keys of all
                return await self._fetch(endpoint)
        return await self._fetch(last)

    async def _fetch(self, endpoint: str) -> _Keys:
        checking = import_module("seedance.receipt")
        asked: _Keys = await asyncio.to_thread(checking.fetch_keys, endpoint, self._tls)
        return asked
