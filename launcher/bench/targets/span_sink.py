"""The cheapest collector: takes whatever spans are exported to it, and looks at none.

python -m launcher.bench.targets.span_sink says its port on the first line, and serves until ended.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import grpc

from launcher.bench.beside import beside

__all__ = ["main", "span_sink"]

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class _TakesAll(grpc.GenericRpcHandler):
    """An empty answer to every export."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Take what is exported; nothing else is served."""
        if handler_call_details.method != EXPORT:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")


def span_sink() -> AbstractContextManager[str]:
    """A collector in a process of its own; its `host:port`."""
    return beside("launcher.bench.targets.span_sink")


def main() -> None:
    """Serve until ended."""
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((_TakesAll(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
