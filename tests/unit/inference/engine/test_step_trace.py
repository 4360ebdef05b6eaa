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
    """The wait and four stages a step in order; the compute event names the blocks of the tokens it computed."""
    path = tmp_path / "trace.json"
    driver = script_driver(block_size=4)
    trace = StepTrace(path, block_size=4)
    driver.engine._trace = trace
    heard = driver.play(1, [b"a"], repeat=3)
    driver.run()
    trace.close()
    events = [event for event in json.loads(path.read_text()) if event]
    assert [event["name"] for event in events] == [
        "fetch_wait",
        "fetch",
        "compute",
        "absorb",
        "emit",
    ] * 3
    assert all(event["dur"] >= 0 for event in events)
    prompt = heard.accepted[0].prompt_tokens
    (prefill,) = events[2]["args"]["rows"]
    assert prefill["tokens"] == prompt
    assert prefill["blocks"] == list(range(-(-prompt // 4)))
    (decode,) = events[7]["args"]["rows"]
    assert (decode["start"], decode["blocks"]) == (prompt, [prompt // 4])
    waits = [event["args"]["stage_fetch_wait_ms"] for event in events[::5]]
    assert waits == [0, 0, 0]


def test_each_token_is_traced_to_its_dispatch(tmp_path: Path) -> None:
    """By stream and index: when it was handed on, and by the step that computed it."""
    path = tmp_path / "trace.json"
    driver = script_driver()
    driver.engine._trace = trace = StepTrace(path, block_size=64)
    for stream in (1, 2):
        driver.play(stream, [b"a"], repeat=2, dt_ms=10)
    driver.run(tick_s=0.005)
    trace.close()
    events = [event for event in json.loads(path.read_text()) if event]
    dispatched: dict[tuple[str, int], float] = {}
    for event in events:
        if event["name"] == "emit":
            assert event["args"]["dispatched"] == event["ts"] + event["dur"]
            for tokens in event["args"]["tokens"]:
                assert tokens["tokens"] == 1
                dispatched[tokens["stream"], tokens["index"]] = event["args"]["dispatched"]
    assert dispatched.keys() == {("1/1", 0), ("1/1", 1), ("1/2", 0), ("1/2", 1)}
    assert dispatched["1/1", 1] - dispatched["1/1", 0] >= 10_000
    rows = [row for e in events if e["name"] == "compute" for row in e["args"]["rows"]]
    assert {row["stream"] for row in rows} == {"1/1", "1/2"}


def test_without_a_file_nothing_is_written() -> None:
    """Tracing is asked for."""
    engine = Engine(ScriptRunner(script_info()), EngineLimits(), FakeClock())
    engine.step()
    engine.close()
