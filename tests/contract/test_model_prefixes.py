"""A real model on blocks that another request filled."""

from __future__ import annotations

from pathlib import Path

from inference.engine.limits import EngineLimits
from inference.engine.runner import Prepared
from inference.model.load import load_model
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver, Heard
from tests.support.tiny_models import LLAMA, write_folder

PROMPT = [(7 * i) % 250 for i in range(50)]


def _driver(folder: Path, limits: EngineLimits) -> EngineDriver:
    runner, _ = load_model(
        folder, name="tiny", dtype="fp32", block_size=16, kv_blocks=64, threads=1
    )
    return EngineDriver(runner, limits)


def _ask(driver: EngineDriver, stream: int, prompt: list[int]) -> Heard:
    return driver.open(
        stream,
        Prepared(prompt, ([b"x"] * 300).__getitem__),
        GenerateRequest(
            prompt="x",
            max_tokens=40,
            ignore_eos=True,
            sampling=Sampling(seed=5, temperature=1.0 if stream % 2 else 0.0),
        ),
    )


def test_sharing_changes_no_token(tmp_path: Path) -> None:
    """fp32, greedy and sampled: the same ids from shared blocks as from its own (CASES 79)."""
    folder = write_folder(tmp_path, LLAMA)
    alone = _driver(folder, EngineLimits(prefix_cache=False))
    shared = _driver(folder, EngineLimits())
    for stream, prompt in enumerate([PROMPT, PROMPT, [*PROMPT[:40], 9], PROMPT], start=1):
        expected, heard = _ask(alone, stream, prompt), _ask(shared, stream, prompt)
        alone.run()
        shared.run()
        assert heard.ids == expected.ids
        cached = heard.end.usage.cached_tokens  # type: ignore[union-attr]
        assert cached == (0 if stream == 1 else len(prompt) // 16 * 16)
    shared.check_idle()
