"""What the session log costs a gateway: its CPU per token with commits, without, and the difference.

Three gateways on the same instances, taken in turn for a few seconds each: one commits every
20 ms, as it does by default; one once a second, which writes a fiftieth as often; one keeps its
sessions in memory alone, and talks to no store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from launcher.bench.figures import Figure, cpu_s
from launcher.bench.mesh import RunningMesh, running_mesh
from launcher.bench.reader import Reader, open_readers, script_messages
from launcher.blueprint import ProcessSpec, UpOptions
from launcher.ports import free_port

__all__ = ["checkpoint_cost"]

READERS, DT_MS = 128, 15.0
TURN_S, WARM_S = 5.0, 1.5
COST_MAX_US = 2.0
US_PER_S = 1_000_000
# The later flag counts.
_WAYS: dict[str, tuple[str, ...]] = {
    "gateway-0": (),
    "gateway-1": ("--commit-interval-ms", "1000"),
    "gateway-2": ("--redis", ""),
}


def _told(spec: ProcessSpec) -> ProcessSpec:
    return replace(spec, argv=(*spec.argv, *_WAYS.get(spec.name, ())))


async def _turn(mesh: RunningMesh, name: str, spent: dict[str, list[float]]) -> None:
    """Tokens and CPU seconds of one gateway while its readers read."""
    pid = mesh.pid(name)
    assert pid is not None  # noqa: S101 - nobody kills it here
    readers: list[Reader] = await open_readers(mesh.specs[name].address, READERS)
    for reader in readers:
        reader.ask(script_messages([b" quantum"], dt_ms=DT_MS, repeat=100_000))
    await asyncio.sleep(WARM_S)
    used, tokens = cpu_s(pid), sum(reader.tokens for reader in readers)
    await asyncio.sleep(TURN_S)
    spent[name][0] += cpu_s(pid) - used
    spent[name][1] += sum(reader.tokens for reader in readers) - tokens
    for reader in readers:
        reader.write({"type": "close"})
    await asyncio.sleep(WARM_S)
    for reader in readers:
        reader.cut()


async def checkpoint_cost(data: Path, tokens: int, step: Callable[[], None]) -> list[Figure]:
    """Turn by turn until each gateway has carried so many tokens."""
    options = UpOptions(
        data=data,
        port=free_port(),
        gateways=len(_WAYS),
        instances=1,
        engine="script",
        inference_flags=("--batch-max", "512", "--step-tokens-max", "4096"),
    )
    spent = {name: [0.0, 0.0] for name in _WAYS}
    async with running_mesh(options, adjust=_told) as mesh:
        while min(count for _, count in spent.values()) < tokens:
            for name in _WAYS:
                await _turn(mesh, name, spent)
            step()
    each = {name: seconds / count * US_PER_S for name, (seconds, count) in spent.items()}
    cost = each["gateway-0"] - min(each["gateway-1"], each["gateway-2"])
    said = (
        f"{cost:.2f} µs: {each['gateway-0']:.1f} µs a token, {each['gateway-1']:.1f} with a commit a "
        f"second, {each['gateway-2']:.1f} without a store "
        f"({tokens:,} tokens each, {READERS} streams × {1000 / DT_MS:.0f}/s)"
    )
    return [Figure("gateway CPU of checkpointing per token", "≤ 2 µs", said, cost <= COST_MAX_US)]
