"""The whole of what `tests/contract/test_model_equality.py` samples."""

from __future__ import annotations

import pytest

from tests.support.default_model import QUESTIONS, ask, default_model_path, load_default_model
from tests.support.reference import greedy_ids, load_gguf
from tests.support.solo import SoloSequence, generate, run_together

TOKENS = 64


@pytest.mark.model
@pytest.mark.timeout(1800)
def test_twenty_prompts_equal_transformers() -> None:
    """In fp32, 64 greedy tokens of 20 prompts are transformers' ids, alone and all 20 together."""
    assert len(QUESTIONS) == 20
    runner, preparer = load_default_model("fp32")
    reference = load_gguf(default_model_path())
    prompts = [ask(preparer, question) for question in QUESTIONS]
    expected = [
        greedy_ids(reference, prompt, TOKENS, runner.info.eos_token_ids) for prompt in prompts
    ]
    assert [generate(runner, prompt, TOKENS) for prompt in prompts] == expected
    together = [SoloSequence(prompt, TOKENS, chunk=64) for prompt in prompts]
    run_together(runner, together)
    assert [sequence.answer_ids for sequence in together] == expected


@pytest.mark.model
@pytest.mark.timeout(1800)
def test_the_default_type_says_the_same_alone_and_together() -> None:
    """In the machine's default type, all 20 answers are the same alone and together."""
    runner, preparer = load_default_model("auto")
    prompts = [ask(preparer, question) for question in QUESTIONS]
    together = [SoloSequence(prompt, TOKENS, chunk=48) for prompt in prompts]
    run_together(runner, together)
    assert [generate(runner, prompt, TOKENS) for prompt in prompts] == [
        sequence.answer_ids for sequence in together
    ]
