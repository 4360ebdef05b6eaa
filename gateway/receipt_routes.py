"""`GET /v1/receipts/key`: what a receipt is checked with.

Apart from `gateway.receipts`, which the command of a mesh needs without a web framework.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from gateway.receipts import ReceiptSigner
from seedance.receipt import KEY_PATH

__all__ = ["receipt_routes"]


def receipt_routes(signer: ReceiptSigner | None) -> APIRouter:
    """`GET /v1/receipts/key`: the public keys, the one that signs first. Public, as keys are."""
    router = APIRouter()
    listed = {"object": "list", "data": signer.public_keys if signer else []}
    body = msgspec.json.encode(listed)

    @router.get(KEY_PATH)
    async def keys() -> Response:
        return Response(body, media_type="application/json")

    return router
