"""Keeping this instance's lease at the router."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

import grpc
import grpc.aio

from mesh.rpc.channel import Dial, open_channel
from mesh.rpc.secret import secret_metadata
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import router_pb2, router_pb2_grpc

__all__ = ["Registration"]

# Until the router has said how long a lease is, and while it is away.
RETRY_S = 1.0
CALL_TIMEOUT_S = 2.0
RENEWALS_PER_LEASE = 3
RENEWAL_MIN_S = 0.05

_log = logging.getLogger(__name__)


class Registration:
    """Registers every third of the lease with a load report, for as long as `run` runs.

    `prefixes` are the marks (`mesh.prefixes`) of what the prefix cache holds.

    A router that is away stops nothing: gateways keep the membership they have, and the instance
    goes on trying.
    """

    def __init__(
        self,
        router: str,
        instance: router_pb2.Instance,
        load: Callable[[], pb.InstanceLoad],
        prefixes: Callable[[], Collection[int]] = tuple,
        dial: Dial = open_channel,
        secret: str = "",
    ) -> None:
        self._channel = dial(router)
        self._stub = router_pb2_grpc.RouterStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = secret_metadata(secret)
        self._instance = instance
        self._load = load
        self._prefixes = prefixes
        self._changed = asyncio.Event()
        self._router_away = False

    def drain(self) -> None:
        """Tell the router at once that this instance takes nothing new."""
        self._instance.draining = True
        self._changed.set()

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            wait_s = await self._register()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
                self._changed.clear()
            except TimeoutError:
                continue

    async def leave(self) -> None:
        """Take the instance out and close the channel."""
        await self._register(leaving=True)
        await self._channel.close()

    async def _register(self, *, leaving: bool = False) -> float:
        self._instance.load.CopyFrom(self._load())
        self._instance.report += 1
        self._instance.prefixes.CopyFrom(router_pb2.PrefixDigest(marks=self._prefixes()))
        request = router_pb2.RegisterRequest(instance=self._instance, leaving=leaving)
        try:
            answer = await self._stub.Register(
                request, timeout=CALL_TIMEOUT_S, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            if not self._router_away:
                _log.warning("the router does not answer (%s); going on without", error.code().name)
            self._router_away = True
            return RETRY_S
        self._router_away = False
        lease_ms: int = answer.lease_ms
        return max(lease_ms / 1e3 / RENEWALS_PER_LEASE, RENEWAL_MIN_S)
