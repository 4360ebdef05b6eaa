"""`seedance canary`: how the canary stands, what share of the keys it gets, and stopping it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
from rich.console import Console
from rich.table import Table

from launcher.meshfile import read_mesh
from mesh.canary import CanaryPhase, Counts, Tally, step_ends_s
from mesh.rpc.channel import open_channel
from mesh.rpc.convert import canary_from_pb, counts_from_pb
from mesh.rpc.identity import MeshIdentity
from mesh.rpc.secret import secret_metadata
from mesh.settings import exit_with
from seedance.v2 import router_pb2, router_pb2_grpc

__all__ = ["p99_ms", "router_address", "run_canary"]

CALL_TIMEOUT_S = 5.0

_MEANING = {
    CanaryPhase.IDLE: "only requests with `X-Canary: true`",
    CanaryPhase.RUNNING: "a share of the keys, and requests with `X-Canary: true`",
    CanaryPhase.ROLLED_BACK: "nobody",
}


def router_address(given: str, data: Path) -> str:
    """The router that was named, else that of the mesh which runs on `data`."""
    if given:
        return given
    found = [process.address for process in read_mesh(data) if process.kind == "router"]
    if not found:
        exit_with(f"no mesh runs on {data}; name its router with --router HOST:PORT")
    return found[0]


def run_canary(
    router: str,
    request: router_pb2.ControlCanaryRequest,
    identity: MeshIdentity | None,
    secret: str,
) -> None:
    """Ask the router, by the mesh's certificate and secret where it has them, and print how things stand then."""
    try:
        answer = asyncio.run(_ask(router, request, identity, secret))
    except grpc.aio.AioRpcError as error:
        exit_with(f"the router at {router} does not do that: {error.details()}")
    _print(answer)


async def _ask(
    router: str,
    request: router_pb2.ControlCanaryRequest,
    identity: MeshIdentity | None,
    secret: str,
) -> router_pb2.ControlCanaryResponse:
    async with open_channel(router, identity) as channel:
        stub = router_pb2_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        answer: router_pb2.ControlCanaryResponse = await stub.ControlCanary(
            request, timeout=CALL_TIMEOUT_S, metadata=secret_metadata(secret)
        )
        return answer


def p99_ms(tally: Tally) -> float | None:
    """The first-token time that 99 % do not exceed, within a step of 9 %; None: none was seen."""
    total = below = sum(tally.first_tokens)
    for step in reversed(range(len(tally.first_tokens))):
        below -= tally.first_tokens[step]
        if total and below < 0.99 * total:
            return 1e3 * step_ends_s(step)
    return None


def _print(answer: router_pb2.ControlCanaryResponse) -> None:
    state, counts = canary_from_pb(answer.state), counts_from_pb(answer.counts)
    print(f"phase      {state.phase.value}")
    print(f"share      {state.share / 100:g} %")
    if state.reason:
        print(f"reason     {state.reason}")
    print(f"goes there {_MEANING[state.phase]}")
    print(f"instances  {', '.join(answer.instances) or 'none is a canary'}")
    Console(highlight=False).print(_table(counts))


def _table(counts: Counts) -> Table:
    table = Table("since the last change", "ended", "failed", "first token p99", box=None)
    for name, tally in (("canary", counts.canary), ("others", counts.stable)):
        p99 = p99_ms(tally)
        shown = "-" if p99 is None else f"{p99:.0f} ms"
        table.add_row(name, str(tally.ended), str(tally.failed), shown)
    return table
