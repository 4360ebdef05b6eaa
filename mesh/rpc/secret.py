"""The mesh's secret on calls between services: shown by the caller, compared at the other end (§7)."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from mesh.rpc.channel import MESH_SECRET_KEY

__all__ = ["Metadata", "SecretGate", "secret_metadata"]

Metadata = tuple[tuple[str, str], ...]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
# Whoever may reach the port may ask how a service is, and which services there are.
_OPEN_TO_ALL = ("/grpc.health.", "/grpc.reflection.")
_MISSING = "the mesh's secret is missing or wrong: SEEDANCE_MESH_SECRET must be the same everywhere"


def secret_metadata(secret: str) -> Metadata:
    """What a member adds to its calls; nothing, if the mesh has no secret."""
    return ((MESH_SECRET_KEY, secret),) if secret else ()


class SecretGate(grpc.aio.ServerInterceptor):
    """Lets calls through that show the secret, and those that ask for health or reflection."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The call's own handler, or one that refuses it."""
        handler = await continuation(handler_call_details)
        if handler is None or self._passes(handler_call_details):
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_refuse)
        return grpc.unary_unary_rpc_method_handler(_refuse)

    def _passes(self, call: grpc.HandlerCallDetails) -> bool:
        if call.method.startswith(_OPEN_TO_ALL):
            return True
        shown = dict(call.invocation_metadata or ()).get(MESH_SECRET_KEY, "")
        shown_bytes = shown if isinstance(shown, bytes) else shown.encode()
        return hmac.compare_digest(shown_bytes, self._secret)


async def _refuse(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, _MISSING)
