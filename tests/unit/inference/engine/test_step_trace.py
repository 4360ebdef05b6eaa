"""The engine's steps as a Chrome trace."""

from __future__ import annotations

import json
from pathlib import Path

from inference.engine.engine import Engine
from inference.engine.limits import EngineLimits
from inference.engine.step_trace import StepTrace
from inference.script import ScriptRunner, script_info
from tests.support.engine_driver import FakeClock, script_driver


def test_stages_and_blocks_of_each_step(tmp_path: Path) -> None:
    """Four events a step in order; the compute event names the blocks of the tokens it computed."""
    path = tmp_path / "trace.json"
    driver = script_driver(block_size=4)
    trace = StepTrace(path, block_size=4)
    driver.engine._trace = trace
    heard = driver.play(1, [b"a"], repeat=3)
    driver.run()
    trace.close()
    events = [event for event in json.loads(path.read_text()) if event]
    assert [event["name"] for event in events] == ["fetch", "compute", "absorb", "emit"] * 3
    assert all(event["dur"] >= 0 for event in events)
    prompt = heard.accepted[0].prompt_tokens
    (prefill,) = events[1]["args"]["rows"]
    assert prefill["tokens"] == prompt
    assert prefill["blocks"] == list(range(-(-prompt // 4)))
    (decode,) = events[5]["args"]["rows"]
    assert (decode["start"], decode["blocks"]) == (prompt, [prompt // 4])


def test_without_a_file_nothing_is_written() -> None:
    """Tracing is asked for."""
    engine = Engine(ScriptRunner(script_info()), EngineLimits(), FakeClock())
    engine.step()
    engine.close()
