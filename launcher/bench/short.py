"""`make bench-short`: has a token become dearer? Under a minute, for every change.

Two answers, neither of which depends on who else uses the machine:

* how many calls of functions a token takes, counted by cProfile: the same on every machine with the
  same Python, so that a few percent more are told from none;
* what it takes of CPU time, in turns with a loop of plain Python that touches as much memory: the
  ratio counts, and only beyond what the rounds differ among themselves.

Both are compared with `baseline.json`. Whoever changes what a token costs writes it anew (`--write`),
and the difference stands in the review.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from launcher.bench.rounds import quiet, spread
from launcher.bench.targets.answers import AnswersPath
from mesh.telemetry.tracing import Tracing

__all__ = ["BASELINE", "Measured", "main", "verdicts"]

BASELINE = Path(__file__).with_name("baseline.json")
ROUNDS, ATTEMPTS = 7, 3
# Of calls: the buckets of a histogram are gone through as far as a time reaches. Of time: what other
# processors, and caches that others fill, make of the same ratio; what the rounds differ is added to it.
CALLS_MARGIN, TIME_MARGIN = 0.02, 0.50
# How often the rounds' own spread counts: beyond it nothing is chance.
SPREADS = 3
LOADS = {"64 streams": (64, 64), "512 streams": (512, 8)}


@dataclass(slots=True)
class _Thing:
    """As much state as a session has, roughly."""

    number: int = 0
    text: str = " quantum"
    kept: dict[int, str] = field(default_factory=dict)
    log: list[tuple[int, str]] = field(default_factory=list)

    def step(self, text: str) -> str:
        self.number += 1
        frame = f'{{"type":"token","seq":{self.number},"delta":"{text}"}}'
        self.log.append((self.number, frame))
        self.kept[self.number & 31] = frame
        if len(self.log) > 32:  # noqa: PLR2004 - a window's worth
            self.log = self.log[16:]
        return frame


def _calibrate(things: list[_Thing], turns: int) -> None:
    """Plain Python of the same kind: attributes, dictionaries, lists, short texts."""
    for _ in range(turns):
        for thing in things:
            for _ in range(8):
                thing.step(thing.text)


@dataclass(frozen=True, slots=True)
class Measured:
    """Of a load: calls a token, and its CPU time over the calibrating loop's, as the rounds had it."""

    calls: float
    ratios: list[float]

    @property
    def ratio(self) -> float:
        """What the quietest rounds say."""
        return quiet(self.ratios)


def verdicts(name: str, now: Measured, before: dict[str, float]) -> Iterator[tuple[str, bool]]:
    """A row for each answer, and whether it is within what is allowed."""
    calls = before["calls"] * (1 + CALLS_MARGIN)
    said = f"{before['calls']:.1f} | {now.calls:.1f} | ≤ {calls:.1f}"
    yield f"| {name} | calls a token | {said} |", now.calls <= calls
    ratio = before["ratio"] * (1 + TIME_MARGIN + SPREADS * spread(now.ratios))
    said = f"{before['ratio']:.2f} | {now.ratio:.2f} | ≤ {ratio:.2f}"
    yield f"| {name} | CPU time × the loop's | {said} |", now.ratio <= ratio


class _Load:
    """So many streams in a gateway in this process."""

    def __init__(self, streams: int, tokens: int) -> None:
        self._tokens = streams * tokens
        self._path = AnswersPath(
            "short", Tracing("gateway", "bench"), sessions=streams, answer_tokens=tokens
        )
        self._things = [_Thing() for _ in range(streams)]
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self._path.begin()
        await self._path.round(warm=True)

    def _round(self) -> None:
        self._loop.run_until_complete(self._path.round())

    def measure(self) -> Measured:
        """The calls of one round, and the time of several."""
        profile = cProfile.Profile()
        profile.runcall(self._round)
        calls = sum(entry.callcount for entry in profile.getstats())
        ratios = []
        for _ in range(ROUNDS):
            base = _cpu_s(lambda: _calibrate(self._things, self._tokens // len(self._things)))
            ratios.append(_cpu_s(self._round) / base)
        return Measured(calls / self._tokens, ratios)

    def close(self) -> None:
        """Give back what it took."""
        self._loop.run_until_complete(self._path.close())
        self._loop.close()


def _cpu_s(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@contextmanager
def _load(name: str) -> Iterator[_Load]:
    load = _Load(*LOADS[name])
    try:
        yield load
    finally:
        load.close()


def _judge(name: str, before: dict[str, float]) -> bool:
    """Measure until it is within what is allowed, a few times at most; print the last of it."""
    rows: list[tuple[str, bool]] = []
    with _load(name) as load:
        for _ in range(ATTEMPTS):
            rows = list(verdicts(name, load.measure(), before))
            if all(fine for _, fine in rows):
                break
    for row, fine in rows:
        print(f"{row} {'met' if fine else '**dearer**'} |", flush=True)
    return all(fine for _, fine in rows)


def _write(python: str, known: dict[str, dict[str, dict[str, float]]]) -> None:
    known[python] = {}
    for name in LOADS:
        with _load(name) as load:
            seen = [load.measure() for _ in range(ATTEMPTS)]
        ratio = min(now.ratio for now in seen)
        known[python][name] = {"calls": round(seen[0].calls, 1), "ratio": round(ratio, 2)}
    BASELINE.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def main(
    write: Annotated[bool, typer.Option("--write", help="Make this the baseline.")] = False,
) -> None:
    """Compare with the baseline; exit 1 when a token has become dearer."""
    known = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    python = ".".join(platform.python_version_tuple()[:2])
    if write:
        _write(python, known)
        return
    if python not in known:
        print(f"no baseline for Python {python}: python -m launcher.bench.short --write makes one")
        return
    print("| load | what | baseline | now | allowed | |\n| --- | --- | ---: | ---: | ---: | --- |")
    fine = [_judge(name, before) for name, before in known[python].items()]
    if not all(fine):
        print("a token has become dearer: if it must, say why, and --write the baseline anew")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
