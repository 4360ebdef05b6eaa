"""Steps are timed as they are served."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.model.safetensors_weights import SafetensorsWeights
from inference.native.timing import decodes, prompt, step_seconds
from tests.support.native_models import BLOCK_SIZE, LLAMA_SIZES, native_library, native_runner
from tests.support.tiny_models import LLAMA, write_folder

pytestmark = pytest.mark.skipif(native_library() is None, reason="no C++ compiler")


def test_decodes_stand_at_the_end_of_their_context() -> None:
    """Each sequence has one token to compute, and blocks of its own for all of its context."""
    rows = decodes(3, context=33, block_size=16)
    assert [(row.start, len(row.token_ids), len(row.block_table)) for row in rows] == [
        (32, 1, 3)
    ] * 3
    assert len({block for row in rows for block in row.block_table}) == 9


def test_every_repeat_is_timed(tmp_path: Path) -> None:
    """Decodes and a prompt's chunk run as often as asked for, and each run takes some time."""
    runner = native_runner(SafetensorsWeights(write_folder(tmp_path / "m", LLAMA | LLAMA_SIZES)))
    rows = decodes(3, context=33, block_size=BLOCK_SIZE)
    chunk = prompt(20, start=5, block_size=BLOCK_SIZE)
    for plan in (rows, [chunk]):
        seconds = step_seconds(runner, plan, repeats=4)
        assert len(seconds) == 4
        assert min(seconds) > 0
    runner.close()
