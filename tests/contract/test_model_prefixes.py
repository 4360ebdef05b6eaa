"""A real model on blocks that another request filled."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.limits import EngineLimits
from inference.engine.runner import Prepared
from inference.model.load import load_model
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver, Heard
from tests.support.native_models import LLAMA_SIZES, native_library
from tests.support.tiny_models import LLAMA, write_folder

PROMPT = [(7 * i) % 250 for i in range(50)]


def _driver(
    folder: Path, limits: EngineLimits, *, blocks: int = 64, offload_gib: float = 0.0
) -> EngineDriver:
    native = "native" in folder.name
    runner, _ = load_model(
        folder,
        name="tiny",
        dtype="auto" if native else "fp32",
        block_size=16,
        kv_blocks=blocks,
        kv_offload_gib=offload_gib,
        threads=1,
        cpu_backend="native" if native else "torch",
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


@pytest.fixture(params=["torch", "native"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny model, for each of the two steps; the folder's name says for which."""
    if request.param == "native" and native_library() is None:
        pytest.skip("no C++ compiler")
    sizes = LLAMA_SIZES if request.param == "native" else {}
    return write_folder(tmp_path / request.param, LLAMA | sizes)


def test_sharing_changes_no_token(folder: Path) -> None:
    """Greedy and sampled: the same ids from shared blocks as from its own (CASES 79)."""
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


def test_what_comes_back_from_the_cpu_tier_changes_no_token(folder: Path) -> None:
    """Four prompts in memory for two, asked in turn: restored blocks say what computed ones do."""
    alone = _driver(folder, EngineLimits(prefix_cache=False))
    tiered = _driver(folder, EngineLimits(), blocks=12, offload_gib=0.01)
    for stream in range(1, 13):
        prompt = [stream % 4, *PROMPT]
        expected, heard = _ask(alone, stream, prompt), _ask(tiered, stream, prompt)
        alone.run()
        tiered.run()
        assert heard.ids == expected.ids
        cached = heard.end.usage.cached_tokens  # type: ignore[union-attr]
        assert cached == (0 if stream <= 4 else 48)
    tiered.check_idle()
