"""The gateway's routes, and nothing but wiring."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from fastapi import FastAPI, WebSocket
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.connections import Connections
from gateway.deps import GatewayDeps
from gateway.http_errors import REQUEST_ID_HEADER, error_response, request_id
from gateway.openai.document import openapi_document
from gateway.openai.routes import openai_routes
from gateway.receipt_routes import receipt_routes
from gateway.session.registry import SessionRegistry
from gateway.ticket_routes import ticket_routes
from gateway.websocket import serve_websocket
from mesh.telemetry.metrics import CONTENT_TYPE, Folded, render
from seedance.protocol.errors import ErrorCode, SeedanceError

__all__ = ["build_app"]

STATIC = Path(__file__).with_name("static")
WEBSOCKET_PATHS = frozenset({"/v2/infer", "/v1/chat"})


class _Gateway(FastAPI):
    """Its WebSockets go past routes and middlewares, which have nothing for them and cost a third of a handshake."""

    def __init__(self, infer: Callable[[WebSocket], Awaitable[None]]) -> None:
        super().__init__(title="Seedance gateway", docs_url=None, redoc_url=None, openapi_url=None)
        self._infer = infer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "websocket" and scope["path"] in WEBSOCKET_PATHS:
            await self._infer(WebSocket(scope, receive, send))
        else:
            await super().__call__(scope, receive, send)


def build_app(deps: GatewayDeps, registry: SessionRegistry, connections: Connections) -> FastAPI:
    """The application. Whoever serves it runs `registry` and drains `connections`."""

    async def infer(websocket: WebSocket) -> None:
        await serve_websocket(websocket, deps, registry, connections)

    app = _Gateway(infer)
    app.add_exception_handler(HTTPException, _refuse)
    app.include_router(ticket_routes(deps))
    app.include_router(openai_routes(deps))
    app.include_router(receipt_routes(deps.receipts))
    _health(app, deps, registry, connections)
    _document(app)
    _page(app)
    return app


async def _refuse(request: Request, fault: Exception) -> Response:
    """No such path, or not by this method: in the shape of every other error."""
    status = fault.status_code if isinstance(fault, HTTPException) else 500
    # The path is not repeated: people put keys there too (CASES 108).
    allowed = fault.headers if isinstance(fault, HTTPException) else None
    here = f"only {allowed['Allow']} is answered here" if allowed else "there is nothing here"
    message = f"{here}; GET /openapi.json lists every path"
    headers = {REQUEST_ID_HEADER: request_id(request.headers), **(allowed or {})}
    return error_response(SeedanceError(ErrorCode.BAD_REQUEST, message), headers, status=status)


def _health(
    app: FastAPI, deps: GatewayDeps, registry: SessionRegistry, connections: Connections
) -> None:
    Folded(
        deps.metrics.registry,
        gauges={
            "seedance_gateway_connections": ("WebSockets open now.", lambda: len(connections)),
            "seedance_gateway_sessions": ("Sessions owned now.", lambda: len(registry)),
            "seedance_gateway_usage_waiting": (
                "Usage events that the ledger is not known to have.",
                lambda: len(deps.usage),
            ),
            "seedance_gateway_share": (
                "Percent of its usual share that this gateway tells load balancers it can take.",
                lambda: deps.handshakes.share(deps.clock.monotonic()),
            ),
        },
    )

    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        if connections.draining or not deps.upstream.ready():
            reason = "draining" if connections.draining else "no instance can take a stream"
            return JSONResponse(
                {"status": "not ready", "reason": reason},
                status_code=503,
                headers={"Retry-After": "1"},
            )
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(render(deps.metrics.registry), media_type=CONTENT_TYPE)


def _document(app: FastAPI) -> None:
    body = msgspec.json.encode(openapi_document())

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return Response(body, media_type="application/json")


def _page(app: FastAPI) -> None:
    if not (STATIC / "index.html").is_file():
        return

    @app.get("/")
    async def page() -> Response:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
