"""A run against one target, from the first handshake to the last answer."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import socket
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from launcher.loadtest.arrivals import Arrivals, arrival_times
from launcher.loadtest.crowd import Crowd
from launcher.loadtest.load import Load, Target
from launcher.loadtest.prompts import Prompts
from launcher.loadtest.tally import Tally

__all__ = ["NotServedError", "check", "run"]

PROGRESS_EVERY_S = 0.25
POLL_S = 0.02
CHECK_WITHIN_S = 30.0

# Told four times a second: seconds since the start, and the crowd.
Progress = Callable[[float, Crowd], None]


class NotServedError(Exception):
    """The target does not answer a first request; the message says so in one line, and what to do."""


async def check(target: Target, load: Load, prompts: Prompts) -> None:
    """Ask once, apart from the run. Raises `NotServedError`."""
    one = replace(load, connections=1, streams=1, slow_share=0)
    crowd = Crowd(_resolved(target), one, prompts, dials=1)
    try:
        async with asyncio.timeout(CHECK_WITHIN_S):
            await crowd.connect()
            crowd.begin(closed_loop=False)
            crowd.ask(perf_counter())
            while crowd.live and not crowd.given_up:  # noqa: ASYNC110 - counters have no event
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        pass
    finally:
        await crowd.close()
    _judge(target, crowd.tally, prompts)


def _said(code: str) -> str:
    """A system's error by its words, all else as it is counted."""
    number = getattr(errno, code.removeprefix("dial_").upper(), None)
    return code if number is None else os.strerror(number).lower()


def _judge(target: Target, tally: Tally, prompts: Prompts) -> None:
    if tally.answered and not tally.inexact:
        return
    if tally.inexact:
        raise NotServedError(f"{target.name} does not play scripts: {_OTHER_PROMPTS}")
    code = next(iter(tally.errors), "nothing came")
    if code in {"bad_request", "http_400"}:
        other = _OTHER_PROMPTS if prompts.known else "does it play scripts? Then --prompts script"
        raise NotServedError(f"{target.name} refuses the prompts: {other}")
    if code in {"model_not_found", "http_404"}:
        raise NotServedError(f"{target.name} knows no such model or path: --model, --against-model")
    if "certificate" in code:
        raise NotServedError(
            f"{target.name} shows a certificate that nobody here vouches for: SSL_CERT_FILE=FILE names its authority"
        )
    raise NotServedError(
        f"{target.name} does not answer ({_said(code)}); `seedance up --engine script` starts a mesh"
    )


_OTHER_PROMPTS = "start it with --engine script, or give --prompts chat"


async def run(target: Target, load: Load, prompts: Prompts, progress: Progress) -> Tally:
    """Do the load's work, and tell what was seen."""
    crowd = Crowd(_resolved(target), load, prompts)
    watching = asyncio.create_task(_watch(crowd, progress))
    try:
        await crowd.connect()
        await _measure(crowd, load)
    finally:
        await crowd.close()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return crowd.tally


async def _measure(crowd: Crowd, load: Load) -> None:
    tally, cpu = crowd.tally, _cpu_s()
    crowd.begin(closed_loop=load.arrivals is Arrivals.CLOSED)
    loop = asyncio.get_running_loop()
    if load.storm_at_s:
        loop.call_later(load.storm_at_s, crowd.storm)
    if load.arrivals is not Arrivals.CLOSED:
        await _arrive(crowd, load)
    await asyncio.sleep(max(0.0, crowd.started + load.duration_s - perf_counter()))
    tally.elapsed_s = perf_counter() - crowd.started
    tally.in_time = tally.tokens
    tally.cpu_s = _cpu_s() - cpu
    crowd.finish()
    until = perf_counter() + load.drain_s
    while crowd.live and perf_counter() < until:  # noqa: ASYNC110 - counters have no event
        await asyncio.sleep(POLL_S)


async def _arrive(crowd: Crowd, load: Load) -> None:
    """Ask when it is time, whatever has come of what was asked before."""
    rng = random.Random(load.seed)  # noqa: S311 - a run can be repeated
    times = arrival_times(load.arrivals, load.rate, load.duration_s, load.burst_every_s, rng)
    for at in times:
        due = crowd.started + at
        early = due - perf_counter()
        if early > 0:
            await asyncio.sleep(early)
        crowd.ask(due)


async def _watch(crowd: Crowd, progress: Progress) -> None:
    while True:
        progress(perf_counter() - crowd.started, crowd)
        await asyncio.sleep(PROGRESS_EVERY_S)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resolved(target: Target) -> Target:
    """The target with its address: ten thousand connections need not ask for it each."""
    try:
        address = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        raise NotServedError(f"{target.host} is no host that is known here") from None
    return replace(target, address=str(address))
