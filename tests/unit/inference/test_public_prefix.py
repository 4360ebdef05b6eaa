"""Which tokens of a system prompt every chat with it begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.config import InferenceSettings
from inference.model.load import load_model
from inference.public_prefix import public_prefix
from inference.script import ScriptPreparer
from seedance.protocol.request import ChatMessage, GenerateRequest
from tests.support.tiny_models import LLAMA, write_folder

SYSTEM = "You say hello in 12 ways. " * 8


def _file(folder: Path, text: str) -> Path:
    path = folder / "system.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_chat_with_the_system_prompt_begins_with_it(tmp_path: Path) -> None:
    """The ids reach up to the user's first letter, whatever the user says; the file's last line end is not meant."""
    _, preparer = load_model(
        write_folder(tmp_path / "m", LLAMA), name="tiny", block_size=16, kv_blocks=4, threads=1
    )
    ids = public_prefix(_file(tmp_path, f"{SYSTEM}\n"), preparer)
    assert len(ids) > len(SYSTEM) // 4
    for text in ("hello", "12", "  the end"):
        chat = (ChatMessage("system", SYSTEM), ChatMessage("user", text))
        prompt = preparer.prepare(GenerateRequest(messages=chat)).prompt_ids
        assert tuple(prompt[: len(ids)]) == ids
    other = (ChatMessage("system", f"{SYSTEM}!"), ChatMessage("user", "hello"))
    prompt = preparer.prepare(GenerateRequest(messages=other)).prompt_ids
    assert tuple(prompt[: len(ids)]) != ids


def test_nothing_is_public_unless_it_is_declared() -> None:
    """No file, no ids."""
    assert public_prefix(None, ScriptPreparer()) == ()


def test_a_file_that_cannot_be_read_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the file and the flag."""
    with pytest.raises(SystemExit):
        public_prefix(tmp_path / "missing.txt", ScriptPreparer())
    assert "--public-prefix-file" in capsys.readouterr().err


def test_other_engines_have_no_public_prefix(tmp_path: Path) -> None:
    """The setting is refused where it would mean nothing."""
    with pytest.raises(ValueError, match="needs --engine native"):
        InferenceSettings(engine="script", public_prefix_file=_file(tmp_path, "x"))
