"""What is asked, and what the answer must be.

The script engine plays a text that the prompt names, so every byte of every answer is known ahead.
A real model's answers are compared among themselves: at temperature 0 a prompt has one answer.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.bench.reader import script_messages

__all__ = ["Prompt", "Prompts", "chat_prompts", "file_prompts", "script_prompts"]

# Most prompts that a file may have.
PROMPTS_MAX = 100_000
_SCRIPTS = 16
_TEXT = "the café opens at 七 o'clock — 🦊 and keeper walk by the sea, naïve about déjà-vu"
_WORDS = _TEXT.split()
_LIST = 8
_QUESTIONS = (
    "Tell a long story about a lighthouse keeper, a fox and the sea. Begin in winter.",
    "Explain how a sailing boat can move against the wind, step by step, for a child.",
    "Write a letter to a friend who moves to another country, with advice on language and food.",
    "Describe a week in the life of a baker who has just inherited a small mountain hotel.",
    "What should somebody know before growing vegetables on a balcony? Go through the year.",
    "Compare three ways of learning an instrument as an adult, with a plan for the first month.",
    "Invent a board game for four players and explain its rules with an example turn.",
    "Write a dialogue between a river and the bridge that crosses it, over a hundred years.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's content. `expected`: the SHA-256 of its answer in hex; empty: not known."""

    messages: list[dict[str, str]]
    expected: str = ""


class Prompts:
    """Prompts in turn; with `unique` each begins with a number, so that no prefix cache helps."""

    def __init__(self, prompts: list[Prompt], *, unique: bool = False, comparable: bool) -> None:
        self.known = all(prompt.expected for prompt in prompts)
        # Whether two answers to one prompt must be the same text.
        self.comparable = comparable and not unique
        self._turns = itertools.cycle(prompts)
        self._numbers = itertools.count(1) if unique else None

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        prompt = next(self._turns)
        if self._numbers is None:
            return prompt
        *before, last = prompt.messages
        first = {**last, "content": f"Number {next(self._numbers)}. {last['content']}"}
        return Prompt([*before, first])


def script_prompts(tokens: int, token_ms: float) -> Prompts:
    """Scripts of this many tokens, one every `token_ms`; the request's `max_tokens` cuts them."""
    repeat = -(-tokens // _LIST)
    made = []
    for number in range(_SCRIPTS):
        words = (_WORDS[(number + 3 * at) % len(_WORDS)] for at in range(_LIST - 1))
        items = [f"{number}:".encode(), *(f" {word}".encode() for word in words)]
        text = b"".join((items * repeat)[:tokens])
        messages = script_messages(items, dt_ms=token_ms, repeat=repeat)
        made.append(Prompt(messages, hashlib.sha256(text).hexdigest()))
    return Prompts(made, comparable=True)


def chat_prompts(*, unique: bool, temperature: float) -> Prompts:
    """Questions that a chat model answers at length."""
    made = [Prompt([{"role": "user", "content": text}]) for text in _QUESTIONS]
    return Prompts(made, unique=unique, comparable=temperature == 0)


def file_prompts(path: Path, *, unique: bool, temperature: float) -> Prompts:
    """A prompt a line: text, or an object with `messages` or `prompt`.

    Raises `ValueError` for what cannot be used, `OSError` for what cannot be read.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not 1 <= len(lines) <= PROMPTS_MAX:
        raise ValueError(f"{path} has {len(lines)} prompts; 1 to {PROMPTS_MAX} are used")
    made = [Prompt(_messages(line, f"{path}:{at}")) for at, line in enumerate(lines, 1)]
    return Prompts(made, unique=unique, comparable=temperature == 0)


def _messages(line: str, where: str) -> list[dict[str, str]]:
    if not line.startswith("{"):
        return [{"role": "user", "content": line}]
    fault = f'{where}: write text, {{"messages": [{{"role", "content"}}]}} or {{"prompt": "…"}}'
    try:
        read: dict[str, Any] = json.loads(line)
    except ValueError:
        raise ValueError(fault) from None
    messages = read.get("messages", [{"role": "user", "content": read.get("prompt")}])
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise ValueError(fault)
    return messages


def _is_message(one: object) -> bool:
    return isinstance(one, dict) and all(isinstance(one.get(k), str) for k in ("role", "content"))
