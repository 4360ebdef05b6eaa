"""`make bench-tenants`: weights under saturation, and whether one tenant's noise reaches another.

Real processes: gateways, an instance with the script engine, the store, and the noisy client. They
share the machine's cores, so calm and noise take turns within one run and are compared with each
other; what else the machine does widens the interval that is told, and where the target lies within it
nothing is decided. Nor on a machine that had more to do than cores: there it is its scheduler that a
noisy client is felt through.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Annotated, Any

import typer
from websockets.asyncio.client import ClientConnection, connect

from launcher.bench.figures import Figure, percentile
from launcher.bench.mesh import RunningMesh, running_mesh
from launcher.bench.reader import script_messages
from launcher.blueprint import UpOptions
from launcher.ports import free_port

__all__ = ["Round", "decided", "main", "noise", "rise_between", "weights"]

WEIGHTS = {"gold": 5, "free": 2}
WEIGHTS_WITHIN = 0.03
# Eight places at the engine, four times as many streams that want one, all the time.
BATCH, STREAMS_EACH = 8, 16
ANSWER_TOKENS, DT_MS = 20, 15.0
WARM_S = 4.0

NOISY_LIMIT = 20
NOISY_TIMES = 10
QUIET_EVERY_S = 0.025
# What a small model needs for a prompt; the rest of a first token's time is the mesh's.
FIRST_MS = 50.0
# Short, so that whatever else the machine does befalls both alike.
PHASE_S = 1.0
RISE_MAX = 0.05
RESAMPLES = 2_000


def _key(tenant: str) -> str:
    return f"sk-{tenant}"


def _tenants_file(data: Path, **tenants: str) -> Path:
    lines = ["format: 1", "tenants:"]
    for tenant, rest in tenants.items():
        digest = hashlib.sha256(_key(tenant).encode()).hexdigest()
        lines.append(f'  {tenant}: {{keys: [{{sha256: "{digest}"}}], {rest}}}')
    path = data / "tenants.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _options(data: Path, tenants: Path, *, gateways: int, batch: int) -> UpOptions:
    return UpOptions(
        data=data,
        port=free_port(),
        gateways=gateways,
        instances=1,
        engine="script",
        gateway_flags=("--tenants-file", str(tenants)),
        inference_flags=("--batch-max", str(batch)),
    )


@dataclass
class _Caller:
    """One tenant's connection: asks, counts tokens, and hears of each stream's first frame and end."""

    connection: ClientConnection
    tokens: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    on_first: Callable[[str], None] = lambda _stream: None
    on_end: Callable[[str], None] = lambda _stream: None
    _begun: set[str] = field(default_factory=set)

    async def ask(self, stream: str, messages: list[dict[str, str]]) -> None:
        """Send one request."""
        frame = {"type": "generate", "id": stream, "messages": messages}
        await self.connection.send(json.dumps(frame))

    async def read(self) -> None:
        """Hear everything until cancelled."""
        async for text in self.connection:
            frame: dict[str, Any] = json.loads(text)
            stream = frame.get("id", "")
            match frame["type"]:
                case "token":
                    self.tokens += frame.get("tokens", 1)
                    if stream not in self._begun:
                        self._begun.add(stream)
                        self.on_first(stream)
                case "done" | "error":
                    self.codes[frame.get("code", "done")] += 1
                    self._begun.discard(stream)
                    self.on_end(stream)


def _url(mesh: RunningMesh, gateway: str) -> str:
    return f"ws://{mesh.specs[gateway].address}/v2/infer"


@contextlib.asynccontextmanager
async def _calling(url: str, tenant: str) -> AsyncIterator[_Caller]:
    headers = {"Authorization": f"Bearer {_key(tenant)}"}
    async with connect(url, additional_headers=headers, compression=None, proxy=None) as connection:
        caller = _Caller(connection)
        reading = asyncio.create_task(caller.read())
        try:
            yield caller
        finally:
            reading.cancel()


# ---------------------------------------------------------------- weights


async def weights(data: Path, seconds: float, gateways: int = 2) -> Figure:
    """Two tenants keep 5 : 2 of the tokens while both want more than there is."""
    file = _tenants_file(data, **{name: f"weight: {w}" for name, w in WEIGHTS.items()})
    options = _options(data, file, gateways=gateways, batch=BATCH)
    messages = script_messages([b"word "], dt_ms=DT_MS, repeat=ANSWER_TOKENS)
    async with running_mesh(options) as mesh, contextlib.AsyncExitStack() as stack:
        await mesh.serving()
        callers: dict[str, list[_Caller]] = {tenant: [] for tenant in WEIGHTS}
        for tenant, gateway in itertools.product(WEIGHTS, mesh.names("gateway")):
            caller = await stack.enter_async_context(_calling(_url(mesh, gateway), tenant))
            callers[tenant].append(caller)
            await _keep_asking(caller, messages, STREAMS_EACH // gateways)
        await asyncio.sleep(WARM_S)
        before = {tenant: sum(c.tokens for c in own) for tenant, own in callers.items()}
        await asyncio.sleep(seconds)
        made = {t: sum(c.tokens for c in own) - before[t] for t, own in callers.items()}
    gold, free = made["gold"], made["free"]
    ratio, wanted = gold / free, WEIGHTS["gold"] / WEIGHTS["free"]
    off = abs(ratio / wanted - 1)
    return Figure(
        f"weights 5 : 2, {gateways} gateways, {seconds:g} s of saturation",
        "within 3 %",
        f"{ratio * 2:.3f} : 2 (off by {off:.2%}; {gold} and {free} tokens)",
        off <= WEIGHTS_WITHIN,
    )


async def _keep_asking(caller: _Caller, messages: list[dict[str, str]], streams: int) -> None:
    names = (f"s{number}" for number in itertools.count())
    asking: set[asyncio.Task[None]] = set()

    def again(_ended: str) -> None:
        task = asyncio.create_task(caller.ask(next(names), messages))
        asking.add(task)
        task.add_done_callback(asking.discard)

    caller.on_end = again
    for _ in range(streams):
        await caller.ask(next(names), messages)


# ---------------------------------------------------------------- noise


@dataclass(frozen=True, slots=True)
class Round:
    """First-token times in seconds of one phase of calm and the one of noise beside it."""

    calm: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)


def _rise(rounds: Sequence[Round]) -> float:
    """How much higher the p99 is in noise."""
    calm, noise = ([t for one in rounds for t in getattr(one, p)] for p in ("calm", "noise"))
    return percentile(noise, 0.99) / percentile(calm, 0.99) - 1


def rise_between(rounds: Sequence[Round], seed: int = 1) -> tuple[float, float]:
    """Where the rise of the p99 lies in 95 of 100 cases: by the bootstrap over whole rounds.

    Rounds and not requests are drawn again, for what is slow in one moment is slow together.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    rises = [_rise(draw.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES)]
    return percentile(rises, 0.025), percentile(rises, 0.975)


def decided(low: float, high: float, *, busy: bool = False) -> bool | None:
    """Whether the target is met, as far as that is certain; on a `busy` machine nothing is."""
    if busy or low <= RISE_MAX < high:
        return None
    return high <= RISE_MAX


@dataclass
class _Quiet:
    """The quiet tenant's requests; `into` takes the first-token times of those asked for now."""

    caller: _Caller
    into: list[float] = field(default_factory=list)
    _asked: dict[str, tuple[float, list[float]]] = field(default_factory=dict)

    def first(self, stream: str) -> None:
        """A first token has come; in which phase counts where it was asked for."""
        asked_at, into = self._asked.pop(stream)
        into.append(asyncio.get_running_loop().time() - asked_at)

    async def run(self) -> None:
        """Ask at a steady pace, whatever comes back."""
        script = [
            {
                "role": "user",
                "content": json.dumps({"tokens_b64": ["YQ=="], "first_ms": FIRST_MS, "dt_ms": 0}),
            }
        ]
        loop = asyncio.get_running_loop()
        due = loop.time()
        for number in itertools.count():
            due += QUIET_EVERY_S
            await asyncio.sleep(max(0.0, due - loop.time()))
            stream = f"q{number}"
            self._asked[stream] = (loop.time(), self.into)
            await self.caller.ask(stream, script)


async def _press(url: str, rate: Synchronized[float], told: SimpleQueue[dict[str, int]]) -> None:
    messages = script_messages([b"word "], dt_ms=DT_MS, repeat=ANSWER_TOKENS)
    loop = asyncio.get_running_loop()
    due = loop.time()
    async with _calling(url, "noisy") as caller:
        for number in itertools.count():
            if not rate.value:
                break
            due += 1 / rate.value
            await asyncio.sleep(max(0.0, due - loop.time()))
            await caller.ask(f"n{number}", messages)
        told.put(dict(caller.codes))


def _press_apart(url: str, rate: Synchronized[float], told: SimpleQueue[dict[str, int]]) -> None:
    """The noisy client, in a process of its own: its work must not stand in the quiet one's way."""
    asyncio.run(_press(url, rate, told))


@contextlib.contextmanager
def _noisy(url: str) -> Iterator[tuple[Synchronized[float], SimpleQueue[dict[str, int]]]]:
    """A rate that may be changed, 0 to end, and where it is told what became of its requests."""
    context = multiprocessing.get_context("spawn")
    rate: Synchronized[float] = context.Value("d", NOISY_LIMIT)
    told: SimpleQueue[dict[str, int]] = context.SimpleQueue()
    process = context.Process(target=_press_apart, args=(url, rate, told))
    process.start()
    try:
        yield rate, told
    finally:
        rate.value = 0
        process.join(WARM_S)
        process.kill()


async def noise(data: Path, seconds: float, *, busy: bool = False) -> list[Figure]:
    """A quiet tenant's p99 while a noisy one sends its limit, and ten times its limit, in turns."""
    limits = (
        f"limits: {{requests_per_s: {NOISY_LIMIT}, tokens_per_s: {NOISY_LIMIT * ANSWER_TOKENS}}}"
    )
    file = _tenants_file(data, quiet="weight: 1", noisy=limits)
    options = _options(data, file, gateways=1, batch=256)
    async with running_mesh(options) as mesh:
        url = _url(mesh, "gateway-0")
        async with _calling(url, "quiet") as caller:
            quiet = _Quiet(caller)
            caller.on_first = quiet.first
            asking = asyncio.create_task(quiet.run())
            with _noisy(url) as (rate, told):
                await asyncio.sleep(WARM_S)
                rounds = [Round() for _ in range(max(2, round(seconds / PHASE_S / 2)))]
                for number, one in enumerate(rounds):
                    phases = [(one.calm, 1), (one.noise, NOISY_TIMES)]
                    # Each comes first as often: what grows meanwhile befalls both alike.
                    for quiet.into, times in phases[:: 1 if number % 2 else -1]:
                        rate.value = NOISY_LIMIT * times
                        await asyncio.sleep(PHASE_S)
                quiet.into = []
                rate.value = 0
                codes = await asyncio.to_thread(told.get)
            asking.cancel()
    ended = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
    return [_verdict(rounds, busy=busy), Figure("what became of the other's requests", "", ended)]


def _verdict(rounds: Sequence[Round], *, busy: bool) -> Figure:
    low, high = rise_between(rounds)
    met = decided(low, high, busy=busy)
    times = [[t * 1000 for one in rounds for t in getattr(one, p)] for p in ("calm", "noise")]
    p99, p50 = ([percentile(each, share) for each in times] for share in (0.99, 0.5))
    said = (
        f"{_rise(rounds):+.1%}, in 95 of 100 cases {low:+.1%} to {high:+.1%}"
        f"{': undecided' if met is None else ''} (p99 {p99[0]:.1f} ms, then {p99[1]:.1f} ms; "
        f"p50 {p50[0]:.1f} and {p50[1]:.1f}; {len(times[1])} requests each in {len(rounds)} rounds)"
    )
    return Figure("quiet tenant's first token, another at 10 x its limit", "p99 + ≤ 5 %", said, met)


def main(
    seconds: Annotated[float, typer.Option(min=1, help="Of saturation; of calm and noise.")] = 30.0,
    gateways: Annotated[int, typer.Option(min=1, max=4, help="That the tenants spread over.")] = 2,
) -> None:
    """Measure, and print a Markdown table."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    print(f"Load before: {load:.1f} on {cores} cores.\n")
    print("| what | target | measured | |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="seedance-tenants-") as folder:
        for name in ("weights", "noise"):
            (Path(folder) / name).mkdir()
        print(asyncio.run(weights(Path(folder) / "weights", seconds, gateways)).row(), flush=True)
        for figure in asyncio.run(noise(Path(folder) / "noise", 2 * seconds, busy=load > cores)):
            print(figure.row(), flush=True)


if __name__ == "__main__":
    typer.run(main)
