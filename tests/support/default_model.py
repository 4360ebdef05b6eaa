"""The default model, loaded once for all tests that ask for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from inference.model.load import load_model
from inference.model.preparer import HfPreparer
from inference.model.torch_runner import TorchRunner
from launcher.models import resolve_model
from seedance.protocol.request import ChatMessage, GenerateRequest

__all__ = ["QUESTIONS", "ask", "default_model_path", "load_default_model"]

# Short and long, other scripts, digits, code: what a tokenizer and a model stumble over.
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "What is 12345 + 67890?",
    "Explain how a bicycle stays upright, in two sentences.",
    "List three uses of a paper clip.",
    "Translate 'good morning' into Spanish.",
    "def fibonacci(n):\n    # finish this function",
    "你好，请用一句话介绍量子计算",
    "Why is the sky blue?",
    "Who wrote Hamlet, and when?",
    "Tell me a story that begins with: It was raining.",
    "What does the word 'serendipity' mean? 🙂",
    "Give me a recipe for pancakes.",
    "How many days are there in a leap year?",
    (
        "Summarize: The quick brown fox jumps over the lazy dog. The dog does not care. The fox is "
        "pleased with itself and runs into the forest, where it meets a hedgehog."
    ),
    "Name the planets of the solar system.",
    "What is the difference between a list and a tuple in Python?",
    "Счастливого пути! What does that mean?",
    "x = 3.14159; print(x * 2)",
    "Say hello in five languages.",
)


def default_model_path() -> Path:
    """The default model's file; fetched at first use."""
    return resolve_model(None).path


@cache
def load_default_model(dtype: str) -> tuple[TorchRunner, HfPreparer]:
    """The default model in `dtype`, with 512 blocks of 16 tokens.

    One thread: on a machine that runs other tests too, two wait for each other.
    """
    return load_model(
        default_model_path(), name="default", dtype=dtype, block_size=16, kv_blocks=512, threads=1
    )


def ask(preparer: HfPreparer, question: str) -> list[int]:
    """A question's prompt."""
    request = GenerateRequest(messages=(ChatMessage("user", question),))
    return preparer.prepare(request).prompt_ids
