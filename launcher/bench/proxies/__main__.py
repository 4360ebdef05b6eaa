"""`make bench-litellm`: ours and LiteLLM's proxy in front of the same OpenAI-compatible server.

Ours is the whole mesh: gateway, store, metering, and an instance whose engine is `openai`, so that each
token goes through one process more than LiteLLM's. The clients speak to both alike, over SSE. Rounds take
turns: ours, LiteLLM's, none at all (for what the server itself takes).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
import uvloop

from launcher.bench.figures import Figure, cpu_s
from launcher.bench.hop import GATEWAY
from launcher.bench.mesh import running_mesh
from launcher.bench.proxies.events_client import Heard, first_token_s, keep_asking
from launcher.bench.proxies.fake_openai import MODEL, fake_openai
from launcher.blueprint import ProcessSpec, UpOptions
from launcher.ports import free_port, is_free

__all__ = ["main"]

CLIENTS, REQUESTS, ROUNDS = 16, 15, 3
START_WITHIN_S = 180.0
RATE_MIN, FIRST_MAX = 25.0, 1 / 20
MS_PER_S, US_PER_S = 1_000, 1_000_000
INSTANCE = "inference-0"
_CONFIGURATION = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "http://{upstream}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
"""
# Its price list out of the wheel instead of the network, no log of requests, and no key to look up.
_LITELLM_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}


@dataclass
class _Side:
    """A way to the server; `pids`: whose CPU time it costs."""

    name: str
    address: str
    pids: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    heard: Heard = field(default_factory=Heard)
    used_s: float = 0.0
    loaded_tokens: int = 0

    async def round(self, seconds: float) -> None:
        """One client, then many."""
        self.firsts.append(await first_token_s(self.address, REQUESTS, self.heard))
        had, used = self.heard.tokens, self._cpu_s()
        self.rates.append(await keep_asking(self.address, CLIENTS, seconds, self.heard))
        self.loaded_tokens += self.heard.tokens - had
        self.used_s += self._cpu_s() - used

    def _cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self.pids)

    @property
    def us_per_token(self) -> float:
        """CPU time of its processes."""
        return self.used_s / self.loaded_tokens * US_PER_S

    def line(self) -> str:
        """As a row of a Markdown table."""
        cpu = f"{self.us_per_token:.1f}" if self.pids else ""
        return (
            f"| {self.name} | {median(self.rates):,.0f} | {cpu} "
            f"| {median(self.firsts) * MS_PER_S:.1f} | {self.heard.whole:,} "
            f"| {len(self.heard.broken):,} |"
        )


@contextlib.asynccontextmanager
async def _ours(data: Path, upstream: str) -> AsyncIterator[_Side]:
    def adjust(spec: ProcessSpec) -> ProcessSpec:
        if spec.kind != "inference":
            return spec
        return replace(spec, argv=(*spec.argv, "--upstream-url", f"http://{upstream}/v1"))

    flags = ("--connections-per-address", "0")
    options = UpOptions(
        data=data, port=free_port(), gateways=1, instances=1, engine="openai", gateway_flags=flags
    )
    async with running_mesh(options, adjust=adjust) as mesh:
        await mesh.serving()
        pids = [pid for name in (GATEWAY, INSTANCE) if (pid := mesh.pid(name))]
        yield _Side("ours: gateway and instance", mesh.specs[GATEWAY].address, pids)


@contextlib.asynccontextmanager
async def _litellm(program: Path, data: Path, upstream: str) -> AsyncIterator[_Side]:
    configuration = data / "litellm.yaml"
    configuration.write_text(
        _CONFIGURATION.format(model=MODEL, upstream=upstream), encoding="utf-8"
    )
    port = free_port()
    argv = [str(program), "--config", str(configuration), "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--num_workers", "1"]
    environment = {**os.environ, **_LITELLM_ENVIRONMENT}
    log_file = data / "litellm.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while is_free(port):
                if process.poll() is not None:
                    raise RuntimeError(log_file.read_text(encoding="utf-8"))
                await asyncio.sleep(0.2)
        yield _Side("LiteLLM's proxy", f"127.0.0.1:{port}", [process.pid])
    finally:
        process.terminate()
        process.wait()


def _figures(ours: _Side, theirs: _Side, direct: _Side) -> list[Figure]:
    rate = median(ours.rates) / median(theirs.rates)
    cpu = theirs.us_per_token / ours.us_per_token
    own, other = (median(side.firsts) - median(direct.firsts) for side in (ours, theirs))
    return [
        Figure(
            f"tokens/s of LiteLLM's proxy, SSE, {CLIENTS} clients, the same upstream",
            f"≥ {RATE_MIN:.0f} ×",
            f"{rate:.1f} × ({median(ours.rates):,.0f} beside {median(theirs.rates):,.0f}); by CPU "
            f"time, gateway and instance together, {cpu:.1f} ×",
            rate >= RATE_MIN,
        ),
        Figure(
            "added first-token time, one client",
            f"≤ 1/{1 / FIRST_MAX:.0f} of LiteLLM's",
            f"1/{other / own:.1f} ({own * MS_PER_S:.1f} ms beside {other * MS_PER_S:.1f})",
            own <= other * FIRST_MAX,
        ),
    ]


async def _run(program: Path, data: Path, seconds: float) -> None:
    with fake_openai() as upstream:
        async with _ours(data, upstream) as ours, _litellm(program, data, upstream) as theirs:
            direct = _Side("none", upstream)
            for side in (ours, theirs, direct):
                await keep_asking(side.address, CLIENTS, 1.0, Heard())
            for _ in range(ROUNDS):
                for side in (ours, theirs, direct):
                    await side.round(seconds)
    print("| proxy | tokens/s | µs of CPU a token | first token ms | answers | broken |")
    print("| --- |" + " ---: |" * 5)
    for side in (ours, theirs, direct):
        print(side.line())
    print("\n| what | target | measured | |\n| --- | --- | --- | --- |")
    for figure in _figures(ours, theirs, direct):
        print(figure.row())


def main(
    litellm: Annotated[Path, typer.Option(exists=True, help="The program `litellm`.")],
    seconds: Annotated[float, typer.Option(min=1, help="Of each round.")] = 5.0,
) -> None:
    """Measure, and print two Markdown tables."""
    print(f"Load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="seedance-litellm-") as folder:
        uvloop.run(_run(litellm, Path(folder), seconds))


if __name__ == "__main__":
    typer.run(main)
