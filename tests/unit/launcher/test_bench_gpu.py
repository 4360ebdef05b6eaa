"""`make bench-gpu`, as far as a machine without a GPU can tell."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.model.load import load_model
from launcher.bench import gpu
from tests.support.tiny_models import LLAMA, write_folder


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and a sentence, before anything is loaded."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    assert stopped.value.code == 2
    assert "no GPU here" in capsys.readouterr().err


def test_every_figure_is_measured(tmp_path: Path) -> None:
    """On any runner: steps, prefill, first tokens and a whole engine's streams, all above 0."""
    runner, _ = load_model(
        write_folder(tmp_path, LLAMA), name="x", dtype="fp32", kv_blocks=64, threads=1
    )
    figures = gpu.measure(runner, (1, 3), 128, 2)
    assert set(figures) == {
        "decode step of 1, ms",
        "decode step of 3, ms",
        "prefill by 128, tokens/s",
        "prompt of 96 to first token, ms",
        "3 streams, tokens/s",
        "3 streams at once, first token, ms (median)",
        "3 streams at once, first token, ms (last)",
    }
    assert all(0 < figure < 1e9 for figure in figures.values())


def test_the_table_has_a_column_for_each_way() -> None:
    """A figure that one way lacks leaves its place empty."""
    assert gpu.table({"one": {"a": 1.0, "b": 2_000.5}, "two": {"b": 3.0}}).splitlines() == [
        "| | one | two |",
        "| --- | ---: | ---: |",
        "| a | 1.00 |  |",
        "| b | 2,000.50 | 3.00 |",
    ]
