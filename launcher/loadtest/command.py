"""`seedance bench`: from flags to runs, and from runs to a table, a file and a page."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from launcher.bench.figures import more_files
from launcher.loadtest.crowd import Crowd
from launcher.loadtest.load import Face, Load, Target
from launcher.loadtest.page import to_html
from launcher.loadtest.prompts import Prompts, chat_prompts, file_prompts, script_prompts
from launcher.loadtest.report import BUSY_SHARE, Measured, as_json, markdown
from launcher.loadtest.run import NotServedError, check, run
from launcher.loadtest.tally import Tally
from mesh.settings import exit_with

__all__ = ["Asked", "read_keys", "read_prompts", "run_bench"]

KEYS_MAX = 10_000
# What a process has open beside its connections.
FILES_BESIDE = 64


class Asked:
    """The prompts of a run, made anew for each target, so that all are asked the same."""

    def __init__(self, source: str, load: Load, token_ms: float, *, unique: bool) -> None:
        self._source, self._load, self._token_ms = source, load, token_ms
        self._unique = unique

    def prompts(self) -> Prompts:
        """From the first one on. Raises `ValueError`, `OSError`."""
        temperature = self._load.temperature
        if self._source == "script":
            return script_prompts(self._load.max_tokens, self._token_ms)
        if self._source == "chat":
            return chat_prompts(unique=self._unique, temperature=temperature)
        return file_prompts(Path(self._source), unique=self._unique, temperature=temperature)

    @property
    def proof(self) -> str:
        """What answers are compared with."""
        prompts = self.prompts()
        if prompts.known:
            return "the SHA-256 of the text that the script spells"
        if prompts.comparable:
            return "the prompt's first answer, at temperature 0"
        return "nothing: no answer has to be equal to another"


def read_prompts(source: str, load: Load, token_ms: float, *, unique: bool) -> Asked:
    """The prompts by name or file; a fault ends the process with one line."""
    asked = Asked(source, load, token_ms, unique=unique)
    try:
        asked.prompts()
    except OSError as error:
        exit_with(f"--prompts {source}: {error.strerror}; write script, chat or a file's name")
    except ValueError as error:
        exit_with(f"--prompts: {error}")
    return asked


def read_keys(path: Path | None, key: str) -> tuple[str, ...]:
    """API keys, one a line; without a file the one key, if there is one."""
    if path is None:
        return (key,) if key else ()
    try:
        lines = path.read_text().split()
    except OSError as error:
        exit_with(f"--keys-file {path}: {error.strerror}")
    if not 1 <= len(lines) <= KEYS_MAX:
        exit_with(f"--keys-file {path} has {len(lines)} keys; 1 to {KEYS_MAX}, one a line")
    return tuple(lines)


class _Bar:
    """What happens now, on standard error."""

    def __init__(self, progress: Progress, load: Load, rounds: int) -> None:
        self._progress, self._load = progress, load
        self._task = progress.add_task("connecting", total=load.duration_s * rounds)
        self._name, self._before, self._tokens, self._at = "", 0.0, 0, 0.0

    def of(self, target: Target, done_s: float) -> None:
        """The next run begins."""
        self._name, self._before, self._tokens, self._at = target.name, done_s, 0, 0.0

    def tell(self, seconds: float, crowd: Crowd) -> None:
        """Four times a second."""
        tally = crowd.tally
        rate = (tally.tokens - self._tokens) / max(seconds - self._at, 1e-3) if self._at else 0.0
        self._tokens, self._at = tally.tokens, seconds
        text = f"{self._name}: {crowd.open:,} open, {crowd.live:,} live, {rate:,.0f} tokens/s"
        if errors := tally.errors.total():
            text += f", {errors:,} errors"
        done = self._before + min(seconds if tally.asked else 0.0, self._load.duration_s)
        self._progress.update(self._task, completed=done, description=text)


async def _run_all(targets: Sequence[Target], load: Load, asked: Asked, rounds: int) -> list[Tally]:
    """In turns, so that a machine's moods reach all targets alike."""
    for target in targets:
        await check(target, load, asked.prompts())
    tallies = [Tally() for _ in targets]
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = _Bar(progress, load, rounds * len(targets))
        for turn in range(rounds * len(targets)):
            number = turn % len(targets)
            bar.of(targets[number], turn * load.duration_s)
            tally = await run(targets[number], load, asked.prompts(), bar.tell)
            tallies[number].merge(tally)
    return tallies


def _measured(target: Target, tally: Tally, proof: str) -> Measured:
    one = Measured(target, tally, proof)
    if one.cpu_share > BUSY_SHARE:
        one.warnings.append(
            f"this program used {one.cpu_share:.0%} of a core against {target.name}: "
            "it measured itself too. Run several, or ask for less"
        )
    if tally.errors["dial_closed_4429"]:
        one.warnings.append(
            f"{target.name} refuses more connections: SEEDANCE_CONNECTIONS_PER_ADDRESS bounds those "
            "of one address, SEEDANCE_CONNECTIONS_MAX all of a process"
        )
    return one


def run_bench(
    targets: Sequence[Target],
    load: Load,
    asked: Asked,
    *,
    rounds: int,
    output_json: Path | None,
    html: Path | None,
) -> None:
    """Run, print the table, write the files; ends with 1 when an answer was not exact."""
    # OpenAI's API has one request on a connection at a time.
    loads = load if all(t.face is not Face.SSE for t in targets) else _spread(load)
    _room_for(loads.connections)
    tallies: list[Tally] = []
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            tallies = runner.run(_run_all(targets, loads, asked, rounds))
    except NotServedError as error:
        exit_with(str(error))
    except KeyboardInterrupt:
        exit_with("interrupted: nothing was measured to its end")
    measured = [_measured(t, y, asked.proof) for t, y in zip(targets, tallies, strict=True)]
    print(markdown(loads, measured))
    for path, data in (
        (output_json, json.dumps(as_json(loads, measured), indent=2).encode() + b"\n"),
        (html, to_html(loads, measured)),
    ):
        if path is not None:
            _write(path, data)
    if any(one.tally.inexact for one in measured):
        raise SystemExit(1)


def _room_for(connections: int) -> None:
    """As many open files as connections, and some: or one line that says how to have them."""
    more_files()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < connections + FILES_BESIDE:
        exit_with(f"{connections} connections need more open files than {allowed}: ulimit -n 65536")


def _spread(load: Load) -> Load:
    return replace(load, connections=load.connections * load.streams, streams=1)


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        exit_with(f"cannot write {path}: {error.strerror}")
