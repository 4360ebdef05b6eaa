"""What is asked, and what answers are compared with."""

from __future__ import annotations

import base64
import hashlib
import json
from itertools import islice
from pathlib import Path

import pytest

from launcher.loadtest.prompts import chat_prompts, file_prompts, script_prompts


@pytest.mark.parametrize("tokens", [1, 7, 8, 61])
def test_a_script_announces_its_text(tokens: int) -> None:
    """The digest is that of the first `tokens` tokens that the engine will play."""
    for prompt in islice(script_prompts(tokens, 5), 20):
        script = json.loads(prompt.messages[-1]["content"])
        items = [base64.b64decode(item) for item in script["tokens_b64"]]
        text = b"".join((items * script["repeat"])[:tokens])
        assert hashlib.sha256(text).hexdigest() == prompt.expected
        assert len(items) * script["repeat"] >= tokens
        assert script["dt_ms"] == 5


def test_scripts_differ() -> None:
    """One answer delivered to another's stream would not be exact."""
    digests = {prompt.expected for prompt in islice(script_prompts(64, 0), 16)}
    assert len(digests) == 16


def test_a_number_keeps_the_prefix_cache_out() -> None:
    """With `unique` no two prompts begin alike, and no two answers are compared."""
    prompts = chat_prompts(unique=True, temperature=0)
    first = {prompt.messages[-1]["content"][:9] for prompt in islice(prompts, 9)}
    assert len(first) == 9
    assert not prompts.comparable


def test_answers_are_comparable_at_temperature_0_alone() -> None:
    """A sampled answer need not be the one before."""
    assert chat_prompts(unique=False, temperature=0).comparable
    assert not chat_prompts(unique=False, temperature=0.5).comparable


def test_a_file_has_text_and_conversations(tmp_path: Path) -> None:
    """A line is a prompt, an object with `prompt`, or one with `messages`; they come in turn."""
    path = tmp_path / "prompts"
    turn = {"role": "system", "content": "s"}
    path.write_text(f'plain\n\n{{"prompt": "p"}}\n{json.dumps({"messages": [turn]})}\n')
    prompts = file_prompts(path, unique=False, temperature=0)
    asked = [prompt.messages for prompt in islice(prompts, 4)]
    assert asked == [
        [{"role": "user", "content": "plain"}],
        [{"role": "user", "content": "p"}],
        [turn],
        [{"role": "user", "content": "plain"}],
    ]


@pytest.mark.parametrize("line", ["{", "{}", '{"messages": []}', '{"messages": [{"role": 1}]}', ""])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    """File and line of what is no prompt, or that there is none."""
    path = tmp_path / "prompts"
    path.write_text(line)
    with pytest.raises(ValueError, match="prompts"):
        file_prompts(path, unique=False, temperature=0)
