"""Processes that are kept alive, and ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from launcher.blueprint import ProcessSpec
from launcher.meshfile import read_mesh
from launcher.supervisor import StartFailedError, Supervisor
from tests.support.waiting import wait_until

# Takes its time to end, as a process that drains does.
SLOW_TO_END = 'trap "sleep 0.4; exit 0" TERM; while :; do sleep 0.02; done'


def _spec(folder: Path, name: str, *argv: str) -> ProcessSpec:
    return ProcessSpec("gateway", name, argv, "127.0.0.1:9", "redis", folder / f"{name}.log")


async def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Nobody waits for a process that cannot even be started."""
    supervisor = Supervisor(
        [_spec(tmp_path, "g", str(tmp_path / "none"))], tmp_path, environment={}
    )
    with pytest.raises(StartFailedError, match="cannot keep g running: No such file"):
        await supervisor.start()
    await supervisor.stop()


async def test_nothing_is_started_again_while_the_mesh_ends(tmp_path: Path) -> None:
    """A process whose restart was due when the end began would be nobody's."""
    told: list[tuple[str, str]] = []
    specs = [
        _spec(tmp_path, "slow", "sh", "-c", SLOW_TO_END),
        _spec(tmp_path, "short", "sh", "-c", "exit 1"),
    ]
    supervisor = Supervisor(
        specs, tmp_path, environment={}, on_change=lambda *what: told.append(what)
    )
    starting = asyncio.create_task(supervisor.start())
    await wait_until(lambda: ("short", "ended (1)") in told and ("slow", "started") in told)
    starts = told.count(("short", "started"))
    starting.cancel()
    await supervisor.stop()
    assert told.count(("short", "started")) == starts
    assert read_mesh(tmp_path) == []


@pytest.mark.parametrize(("restart", "times"), [(False, "once"), (True, "3 times")])
async def test_what_never_serves_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: str, *, restart: bool
) -> None:
    """A service that ends before it has ever served ends the start, with the way to its log."""
    monkeypatch.setattr("launcher.supervisor.STARTS_MAX", 3)
    monkeypatch.setattr("launcher.supervisor.RESTART_PAUSE_S", 0.01)
    spec = _spec(tmp_path, "short", "sh", "-c", "exit 1")
    supervisor = Supervisor([spec], tmp_path, environment={}, restart=restart)
    with pytest.raises(StartFailedError, match=f"short ended {times} before it served; see .*log"):
        await supervisor.start()
    await supervisor.stop()
