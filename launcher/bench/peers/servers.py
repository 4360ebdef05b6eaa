"""The servers that are compared, each started for its rounds and ended after them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from launcher.ports import free_port

__all__ = ["CONTESTANTS", "Contestant", "ServerFailedError", "serving"]

START_S = 300.0
STOP_S = 20.0
LOOK_S = 0.2
_LOG_TAIL = 600


class ServerFailedError(Exception):
    """A server that did not start; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """How a server is started: in `command` its words are filled in, after it was split at blanks.

    `before` is run first, if there is any; `ready` is the path that answers 200 once it serves, `model` is
    what requests call the model.
    """

    name: str
    command: str
    ready: str
    model: str = ""
    before: str = ""


CONTESTANTS = {
    "seedance": Contestant(
        "seedance",
        "{ours} -m launcher up --port {port} --model {model} --data {data}/mesh "
        "--gateways 1 --instances 1",
        "/readyz",
    ),
    # Without the last flag a second request ends the first.
    "llama": Contestant(
        "llama-cpp-python",
        "{python} -m llama_cpp.server --model {model} --host 127.0.0.1 --port {port} "
        "--n_threads {threads} --n_threads_batch {threads} --n_ctx 2048 --interrupt_requests false",
        "/v1/models",
        "model",
    ),
    # Its own sizes are made for GPUs: a cache of most of the memory.
    "transformers": Contestant(
        "transformers serve",
        "{python} -m transformers.cli.transformers serve {data}/model --host 127.0.0.1 --port {port} "
        "--continuous-batching --dtype bfloat16 --device cpu "
        "--cb-num-blocks 512 --cb-block-size 32 --cb-max-batch-tokens 512",
        "/health",
        "{data}/model",
        "{ours} -m launcher.bench.peers.transformers_folder {model} {data}/model",
    ),
}


async def _answers(port: int, path: str) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def serving(
    contestant: Contestant, model: Path, *, python: str, threads: int
) -> AsyncIterator[tuple[int, str]]:
    """Start it and yield its port and its name of the model. Raises `ServerFailedError`."""
    port = free_port()
    with tempfile.TemporaryDirectory() as data:
        words = {
            "model": str(model),
            "port": str(port),
            "data": data,
            "python": python,
            "ours": sys.executable,
            "threads": str(threads),
        }
        log = Path(data) / "server.log"
        with log.open("wb") as output:

            async def start(command: str) -> asyncio.subprocess.Process:
                return await asyncio.create_subprocess_exec(
                    *(part.format(**words) for part in command.split()),
                    stdout=output,
                    stderr=output,
                    env=_environment(threads),
                )

            if contestant.before:
                await (await start(contestant.before)).wait()
            process = await start(contestant.command)
            try:
                await _until_ready(process, contestant, port, log)
                yield port, contestant.model.format(**words)
            finally:
                await _end(process)


def _environment(threads: int) -> dict[str, str]:
    # Settings of ours must not leak into what is measured, and nobody is to look for models elsewhere.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SEEDANCE_")}
    return kept | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}


async def _until_ready(
    process: asyncio.subprocess.Process, contestant: Contestant, port: int, log: Path
) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while process.returncode is None:
                if await _answers(port, contestant.ready):
                    return
                await asyncio.sleep(LOOK_S)
    said = (await asyncio.to_thread(log.read_text, errors="replace"))[-_LOG_TAIL:]
    raise ServerFailedError(f"{contestant.name} did not start: {said}")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
    await process.wait()
