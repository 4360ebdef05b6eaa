"""What the bench says of the engine's own time adds up."""

from __future__ import annotations

from pathlib import Path

from inference.model.load import load_model
from launcher.bench.engine_share import engine_share
from tests.support.tiny_models import LLAMA, write_folder


def test_all_decode_steps_are_counted_and_both_times_are_there(tmp_path: Path) -> None:
    """Three streams of 20 tokens: a step for each token after the prompts', and no time below 0."""
    runner, preparer = load_model(
        write_folder(tmp_path, LLAMA), name="tiny", block_size=16, kv_blocks=256, threads=1
    )
    found = engine_share(runner, preparer, streams=3, tokens=20)
    assert 15 <= found.steps <= 25
    assert found.model_s > 0
    assert found.engine_s > 0
    assert found.share == found.engine_s / found.model_s
